"""The queue in the order of the policy."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import JobState
from policies.model.reasons import Reason
from service.wire.predictions import SpreadDocument
from service.wire.times import Time


class QueuedJobDocument(TypedDict):
    """A queued job and its place in the order. Guarded jobs come first, then larger priorities, smaller levels, smaller ranks,
    earlier submissions and smaller ids.
    """

    position: Annotated[
        int | None,
        Field(description="1 is the first of all jobs. null for a job that may not start now; 'reason' says why."),
    ]
    job_id: int
    name: str
    user: str | None
    project: str | None
    gpus: int
    priority: int
    guarded: Annotated[
        bool,
        Field(description="The starvation guard puts it before all jobs that are not guarded, whatever their ranks."),
    ]
    level: Annotated[int, Field(description="The level of its project; 0 unless the policy shares use fairly.")]
    rank: Annotated[float | None, Field(description="By the policy. null without a position.")]
    held: bool
    state: JobState
    reason: Reason
    reason_sentence: str
    submitted_at: Time
    waiting_s: Annotated[float, Field(description="Seconds since the submission.")]
    start: Annotated[SpreadDocument | None, Field(description="By the newest forecast; null without one.")]
    end: Annotated[SpreadDocument | None, Field(description="By the newest forecast; null without one.")]


class QueueJobsDocument(TypedDict):
    """A page of the queue."""

    items: list[QueuedJobDocument]
    next: Annotated[
        str | None, Field(description="Give it as `after` to get the next page; null on the last one. Opaque.")
    ]
    total: Annotated[int, Field(description="Queued jobs that the caller may see.")]
    ordered: Annotated[int, Field(description="How many of them have a position.")]
    cycle: Annotated[int, Field(description="The newest cycle.")]
    policy: str
    note: Annotated[str | None, Field(description="What the order alone does not show of how jobs start.")]
