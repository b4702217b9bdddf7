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
    """Starts. The GPU-seconds of the first two were held by attempts so far; those of ``shadow_only`` were free on GPUs that
    the shadow would have used."""

    both: int
    first_only: int
    shadow_only: Annotated[int, Field(description="A wish to start a job counts once until the job starts.")]
    agreement_ratio: Annotated[float | None, Field(description="both / all; null without any decision.")]
    both_gpu_s: float
    first_only_gpu_s: float
    shadow_only_gpu_s: float
    granted_later: Annotated[
        int, Field(description="Of shadow_only: starts that the first policy made in a later cycle.")
    ]
    granted_later_s: Annotated[float, Field(description="Seconds between the two, in total.")]
    same_placement: Annotated[int, Field(description="Of both: on the same servers, with the same GPUs on each.")]
    fewer_servers: Annotated[int, Field(description="Of both: the shadow would have used fewer servers.")]
    more_servers: int
    other_servers: Annotated[int, Field(description="Of both: as many servers, but others, or other shares.")]


class ShadowStopsDocument(TypedDict):
    """Preemptions. GPU-seconds are the work that each would lose because no checkpoint holds it."""

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
            description="start: it waits, and would start now. wait: it runs, and would not have been started. "
            "stop: it runs, and would be stopped now."
        ),
    ]
    servers: Annotated[list[PlacedDocument], Field(description="Where it would start.")]
    for_job_id: Annotated[int | None, Field(description="For which job it would be stopped.")]
    first_reason: Reason
    first_sentence: str
    shadow_sentence: str


class ShadowCycleDocument(TypedDict):
    """A cycle in which the two decided differently: jobs by number."""

    cycle: Annotated[int | None, Field(description="null for a cycle without changes.")]
    at: Time
    starts_both: int
    starts_first_only: list[int]
    starts_shadow_only: Annotated[
        list[int], Field(description="Starts that the shadow wished in this cycle and not in the one before.")
    ]
    preemptions_both: int
    preemptions_first_only: list[int]
    preemptions_shadow_only: list[int]


class ShadowDocument(TypedDict):
    """A second policy that decides beside the first and changes nothing."""

    policy: str
    options: dict[str, str]
    first_policy: str
    first_options: dict[str, str]
    status: Status
    status_reason: Annotated[str | None, Field(description="Why it does not watch.")]
    since: Annotated[Time, Field(description="What is counted began then.")]
    at: Annotated[Time, Field(description="The newest cycle.")]
    passes: Annotated[int, Field(description="Cycles in which both decided.")]
    skipped: Annotated[int, Field(description="Passes without the shadow.")]
    overruns: Annotated[int, Field(description="Decisions that took longer than shadow_budget_s.")]
    failures: int
    rejected: Annotated[int, Field(description="Decisions that broke a rule, and counted for nothing.")]
    starts: ShadowStartsDocument
    preemptions: ShadowStopsDocument
    disagreements: Annotated[list[DisagreementDocument], Field(description="Of now, oldest first; at most 100.")]
    disagreements_total: int
    cycles: Annotated[
        list[ShadowCycleDocument], Field(description="The newest cycles with a difference, newest first; at most 100.")
    ]
