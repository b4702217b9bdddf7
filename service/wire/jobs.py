"""Jobs, their attempts, events and progress as the API answers them."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.estimate import Unit
from policies.model.reasons import Reason
from service.domain.forecast_scores import Milestone
from service.shadow.live import Want
from service.wire.plans import JobPlanDocument
from service.wire.times import Time


class PredictionDocument(TypedDict):
    """A prediction of a job's total: its 10%, 50% and 90% points, in `unit`."""

    id: int
    job_id: int
    p10: float
    p50: float
    p90: float
    point: Annotated[
        float, Field(description="The point prediction. Its champion may differ from that of the distribution.")
    ]
    unit: Unit
    source: Annotated[str, Field(description="Source of the prediction, in words.")]
    model_version: Annotated[str | None, Field(description="null for a rule without a model.")]
    seconds_per_unit: float | None
    made_at: Time
    actual: Annotated[float | None, Field(description="The true total, once the job has ended.")]
    scored_at: Time | None
    log_error: Annotated[float | None, Field(description="ln(p50 / actual). Above 0: the prediction was too long.")]


class ToldDocument(TypedDict):
    """A recorded forecast of when a job reaches a milestone, and its error once the job has reached it."""

    id: int
    job_id: int
    milestone: Milestone
    made_at: Time
    p10: Time
    p50: Time
    p90: Time
    samples: Annotated[int, Field(description="Number of sampled futures.")]
    source: Annotated[str, Field(description="Source of the job's possible totals, in words.")]
    policy: Annotated[str, Field(description="The policy of the simulated futures.")]
    model_version: Annotated[
        str | None, Field(description="The model that predicted the job; null for a rule without a model.")
    ]
    cycle: Annotated[int, Field(description="The last cycle before the forecast.")]
    actual_at: Annotated[
        Time | None, Field(description="When the job reached the milestone; null before that, and for a cancelled job.")
    ]
    scored_at: Time | None
    error_s: Annotated[float | None, Field(description="p50 minus actual_at. Above 0: the forecast was too late.")]
    inside: Annotated[bool | None, Field(description="Whether p10 <= actual_at <= p90.")]
    pinball_s: Annotated[float | None, Field(description="Mean pinball loss of the three quantiles, seconds.")]


class JobLinks(TypedDict):
    """Links to the details of a job."""

    self: str
    explanation: str
    attempts: str
    events: str
    logs: str
    progress: str
    prediction: str
    forecasts: str


class JobDocument(TypedDict):
    """A job."""

    id: int
    name: str
    user: str | None
    project: str | None
    state: JobState
    reason: Reason
    reason_sentence: str
    gpus: int
    priority: int
    held: bool
    submitted_at: Time
    started_at: Annotated[Time | None, Field(description="Of its first attempt.")]
    finished_at: Time | None
    attempts: int
    preemptions: int
    iterations_done: Annotated[float | None, Field(description="null until the program has reported progress.")]
    prediction: PredictionDocument | None
    forecasts: Annotated[
        list[ToldDocument], Field(description="The newest forecast records, of its next start and of its end.")
    ]
    eta: Annotated[Time | None, Field(description="p50 of its end from 'forecasts'; null once it has ended.")]
    eta_reason: Annotated[str | None, Field(description="Why there is no ETA.")]
    servers: Annotated[list[str], Field(description="The servers on which it holds GPUs now.")]
    exit_code: Annotated[int | None, Field(description="Of its newest attempt that has ended with one.")]
    array_id: Annotated[
        int | None, Field(description="The job array that it is an element of: the id of the array's first job.")
    ]
    array_index: int | None
    links: JobLinks
    plan: NotRequired[
        Annotated[
            JobPlanDocument | None,
            Field(
                json_schema_extra={"default": None},
                description="What the training plan asks of the cluster as it is now; null without one. Lists leave it out.",
            ),
        ]
    ]


class JobsDocument(TypedDict):
    """The jobs of one submission, in the same order."""

    jobs: list[JobDocument]


class SeatDocument(TypedDict):
    """What one GPU computes: a pipeline stage, a data-parallel replica of it, and a place in the replica's tensor group."""

    rank: int
    gpu_id: int
    stage: int
    replica: int
    tensor: int


class ShareDocument(TypedDict):
    """The GPUs that an attempt holds on one server. If the engine of the cluster chooses the indices, they are those that it
    reported, and before the start provisional ones.
    """

    server: str
    gpus: int
    gpu_ids: list[int]
    seats: Annotated[
        list[SeatDocument], Field(description="One a GPU, in the order of gpu_ids. Empty for a job without stages.")
    ]


class AttemptDocument(TypedDict):
    """One run of a job, from a start to a stop."""

    id: str
    job_id: int
    number: int
    state: AttemptState
    reason: Reason | None
    reason_sentence: str | None
    placement: list[ShareDocument]
    opened_at: Time
    started_at: Time | None
    stop_requested_at: Time | None
    ended_at: Time | None
    exit_code: int | None
    resume_iteration: float
    last_iteration: float | None


class EventDocument(TypedDict):
    """One change of a job's state.

    The first one is the submission; it has no ``source``. Until a cycle has admitted the job, it has the id and the cycle 0.
    """

    id: int
    at: Time
    source: JobState | None
    target: JobState
    cause: Cause
    reason: Reason
    reason_sentence: str
    cycle: int
    attempt_id: str | None
    detail: str


class StreamedEvent(EventDocument):
    """One change of a job's state, with what names the job."""

    job_id: int
    name: str
    user: str
    project: str


class ProgressDocument(TypedDict):
    """One progress report."""

    id: int
    at: Time
    attempt_id: str
    iteration: float
    total_iterations: float | None
    checkpoint_iteration: float | None
    loss: float | None
    input_s: Annotated[float | None, Field(description="Seconds waited for input since the program started.")]


class AcceptedDocument(TypedDict):
    """A request that the next cycle acts on."""

    accepted: str
    job_id: NotRequired[Annotated[int | None, Field(json_schema_extra={"default": None})]]
    server: NotRequired[Annotated[str | None, Field(json_schema_extra={"default": None})]]


class AcceptedServerDocument(AcceptedDocument):
    """The same for a new server."""

    warnings: NotRequired[Annotated[list[str], Field(description="What the request leaves open, and what is assumed.")]]


class ArrayDocument(TypedDict):
    """A job array: the number of elements in each state."""

    array_id: int
    jobs: int
    states: Annotated[
        dict[JobState, int], Field(description="Number of elements by state. States without elements are omitted.")
    ]


class ArrayAcceptedDocument(TypedDict):
    """An accepted request about the `jobs` unfinished elements of an array. The next cycle acts on it."""

    accepted: str
    array_id: int
    jobs: int


class ShadowOpinionDocument(TypedDict):
    """The shadow policy's decision about a job."""

    policy: str
    wants: Annotated[
        Want | None,
        Field(
            description="start: it waits, and the shadow would start it now. wait: it runs, and the shadow would not have "
            "started it. stop: it runs, and the shadow would stop it now. null: the policies agree."
        ),
    ]
    sentence: str


class ExplanationDocument(TypedDict):
    """The reason of a job's state. The numbers are null for a job that the scheduling loop does not hold."""

    job_id: int
    state: JobState
    reason: Reason
    sentence: str
    gpus_needed: int
    gpus_free: Annotated[
        int | None,
        Field(description="Of the GPU type that the job takes with most free GPUs: a gang never mixes types."),
    ]
    servers_with_free_gpus: Annotated[int | None, Field(description="Servers on which these are.")]
    servers_wanted: int | None
    jobs_ahead: int | None
    rank: float | None
    waiting_for: list[int]
    numbers: dict[str, float]
    will_preempt: Annotated[
        list[int],
        Field(
            description="Jobs that the first cycle from preemption_at on stops for this one, unless something else changes."
        ),
    ]
    will_be_preempted_by: Annotated[
        int | None, Field(description="The job for which that cycle stops this one; null if none is foreseen.")
    ]
    preemption_at: Time | None
    shadow: Annotated[ShadowOpinionDocument | None, Field(description="null unless a shadow policy is watching.")]
