"""What the shadow policy would have done, as the API answers it."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from policies.model.reasons import Reason
from service.shadow.live import Want
from service.shadow.shadow import Status
from service.wire.predictions import PlacedDocument
from service.wire.times import Time


class ShadowStartsDocument(TypedDict):
    """Starts. `both_gpu_s` and `first_only_gpu_s` were held by attempts so far; `shadow_only_gpu_s` counts free GPUs that the
    shadow would have used.
    """

    both: int
    first_only: int
    shadow_only: Annotated[
        int, Field(description="A start that only the shadow would make counts once until the job starts.")
    ]
    agreement_ratio: Annotated[float | None, Field(description="both / all; null if there are none.")]
    both_gpu_s: float
    first_only_gpu_s: float
    shadow_only_gpu_s: float
    granted_later: Annotated[
        int, Field(description="Of shadow_only: starts that the active policy made in a later cycle.")
    ]
    granted_later_s: Annotated[
        float, Field(description="Total seconds between the shadow's start and the actual start.")
    ]
    same_placement: Annotated[int, Field(description="Of both: on the same servers, with the same GPUs on each.")]
    fewer_servers: Annotated[int, Field(description="Of both: the shadow would have used fewer servers.")]
    more_servers: int
    other_servers: Annotated[int, Field(description="Of both: as many servers, but other servers or other shares.")]


class ShadowStopsDocument(TypedDict):
    """Preemptions. GPU-seconds are the work without a checkpoint that each would lose."""

    both: int
    first_only: int
    shadow_only: int
    agreement_ratio: float | None
    both_lost_gpu_s: float
    first_only_lost_gpu_s: float
    shadow_only_lost_gpu_s: float


class DisagreementDocument(TypedDict):
    """A job on which the two policies disagree now."""

    job_id: int
    name: str
    gpus: int
    since: Time
    shadow_wants: Annotated[
        Want,
        Field(
            description="start: it waits, and the shadow would start it now. wait: it runs, and the shadow would not have "
            "started it. stop: it runs, and the shadow would stop it now."
        ),
    ]
    servers: Annotated[list[PlacedDocument], Field(description="Placement of that start.")]
    for_job_id: Annotated[int | None, Field(description="The job for which it would be stopped.")]
    first_reason: Reason
    first_sentence: str
    shadow_sentence: str


class ShadowCycleDocument(TypedDict):
    """A cycle in which the two policies decided differently, with the job numbers."""

    cycle: Annotated[int | None, Field(description="null for a cycle without changes.")]
    at: Time
    starts_both: int
    starts_first_only: list[int]
    starts_shadow_only: Annotated[
        list[int], Field(description="Starts that the shadow would have made in this cycle, but not in the one before.")
    ]
    preemptions_both: int
    preemptions_first_only: list[int]
    preemptions_shadow_only: list[int]


class ShadowDocument(TypedDict):
    """The comparison of the shadow policy, which has no effect, with the active policy (`first_policy`)."""

    policy: str
    options: dict[str, str]
    first_policy: str
    first_options: dict[str, str]
    status: Status
    status_reason: Annotated[str | None, Field(description="Why the shadow is not watching.")]
    since: Annotated[Time, Field(description="Start of the counts.")]
    at: Annotated[Time, Field(description="The newest cycle.")]
    passes: Annotated[int, Field(description="Cycles in which both decided.")]
    skipped: Annotated[int, Field(description="Cycles without a decision of the shadow.")]
    overruns: Annotated[int, Field(description="Decisions that took longer than shadow_budget_s.")]
    failures: int
    rejected: Annotated[int, Field(description="Decisions that broke a rule. They are not counted elsewhere.")]
    starts: ShadowStartsDocument
    preemptions: ShadowStopsDocument
    disagreements: Annotated[
        list[DisagreementDocument], Field(description="The current disagreements, oldest first; at most 100.")
    ]
    disagreements_total: int
    cycles: Annotated[
        list[ShadowCycleDocument], Field(description="The newest cycles with a difference, newest first; at most 100.")
    ]
