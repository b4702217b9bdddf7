"""The JSON documents of the HTTP API as a client sees them: keys and types. Times are ISO 8601 in UTC (``*_at``).

A test compares each with what the API declares. They are plain dictionaries: a newer service may add keys.
"""

from typing import Any, TypedDict


class Prediction(TypedDict):
    """A prediction of a job's total in ``unit`` (``iterations`` or ``service_s``)."""

    id: int
    job_id: int
    p10: float
    p50: float
    p90: float
    point: float
    unit: str
    source: str
    model_version: str | None
    seconds_per_unit: float | None
    made_at: str
    actual: float | None
    scored_at: str | None
    log_error: float | None


class Told(TypedDict):
    """A forecast on record; ``milestone`` is ``start`` or ``finish``."""

    id: int
    job_id: int
    milestone: str
    made_at: str
    p10: str
    p50: str
    p90: str
    samples: int
    source: str
    policy: str
    model_version: str | None
    cycle: int
    actual_at: str | None
    scored_at: str | None
    error_s: float | None
    inside: bool | None
    pinball_s: float | None


class Job(TypedDict):
    """A job."""

    id: int
    name: str
    user: str | None
    project: str | None
    state: str
    reason: str
    reason_sentence: str
    gpus: int
    priority: int
    held: bool
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    attempts: int
    preemptions: int
    iterations_done: float | None
    prediction: Prediction | None
    forecasts: list[Told]
    eta: str | None
    eta_reason: str | None
    servers: list[str]
    exit_code: int | None
    array_id: int | None
    array_index: int | None
    links: dict[str, str]


class Share(TypedDict):
    """What an attempt holds on one server."""

    server: str
    gpus: int
    gpu_ids: list[int]


class Attempt(TypedDict):
    """One placement-to-stop life of a job."""

    id: str
    job_id: int
    number: int
    state: str
    reason: str | None
    reason_sentence: str | None
    placement: list[Share]
    opened_at: str
    started_at: str | None
    stop_requested_at: str | None
    ended_at: str | None
    exit_code: int | None
    resume_iteration: float
    last_iteration: float | None


class Event(TypedDict):
    """One line of a job's story."""

    id: int
    at: str
    source: str | None
    target: str
    cause: str
    reason: str
    reason_sentence: str
    cycle: int
    attempt_id: str | None
    detail: str


class ShadowOpinion(TypedDict):
    """What the shadow policy thinks of a job: ``wants`` is ``start``, ``wait``, ``stop``, or None where it agrees."""

    policy: str
    wants: str | None
    sentence: str


class Explanation(TypedDict):
    """Why a job is where it is."""

    job_id: int
    state: str
    reason: str
    sentence: str
    gpus_needed: int
    gpus_free: int | None
    servers_with_free_gpus: int | None
    servers_wanted: int | None
    jobs_ahead: int | None
    rank: float | None
    waiting_for: list[int]
    numbers: dict[str, float]
    shadow: ShadowOpinion | None


class Spread(TypedDict):
    """Three quantiles of an instant."""

    p10: str
    p50: str
    p90: str


class JobForecast(TypedDict):
    """When a job will start and end, as seen at ``made_at``."""

    job_id: int
    made_at: str
    start_at: Spread | None
    finish_at: Spread | None
    samples: int
    source: str
    reason: str | None


class Forecasts(TypedDict):
    """The forecasts of one snapshot."""

    made_at: str
    samples: int
    forecasts: list[JobForecast]


class Tally(TypedDict):
    """The scores of many forecasts."""

    forecasts: int
    jobs: int
    coverage_80: float
    median_error_s: float
    median_absolute_error_s: float
    median_relative_error: float | None
    mean_pinball_s: float


class HorizonTally(Tally):
    """Of those that looked so far ahead."""

    horizon_s_min: float | None
    horizon_s_max: float | None


class GangTally(Tally):
    """Of gangs of such a size."""

    gpus_min: int
    gpus_max: int


class MilestoneAccuracy(TypedDict):
    """How right the forecasts of one milestone were."""

    all: Tally | None
    by_horizon: list[HorizonTally]
    by_gpus: list[GangTally]


class Accuracy(TypedDict):
    """How right the forecasts were that were made since ``since``."""

    since: str
    forecasts: int
    start: MilestoneAccuracy
    finish: MilestoneAccuracy


class Estimate(TypedDict):
    """What would be predicted for a job, in ``unit``."""

    p10: float
    p50: float
    p90: float
    unit: str
    source: str
    model_version: str | None
    seconds_per_unit: float | None


class Placed(TypedDict):
    """GPUs on one server."""

    server: str
    gpus: int


class Plan(TypedDict):
    """What would become of a job if it were submitted."""

    name: str
    gpus: int
    prediction: Estimate | None
    placement: list[Placed]
    iteration_s: float | None
    fits_now: bool
    start_at: Spread | None
    finish_at: Spread | None
    samples: int | None
    source: str | None
    reason: str | None


class Plans(TypedDict):
    """The jobs of one body, in its order."""

    made_at: str
    plans: list[Plan]


class Server(TypedDict):
    """One server."""

    name: str
    state: str
    gpus: int
    usable_gpus: int
    free_gpus: int
    gpu_type: str
    rack: str
    nic_gbps: float
    intra_gbps: float
    gpu_speed: float
    gpu_memory_gib: float | None
    reservation: int | None


class ClusterStatus(TypedDict):
    """All servers, and their GPUs in all."""

    name: str
    gpus: int
    usable_gpus: int
    free_gpus: int
    servers: list[Server]


class Model(TypedDict):
    """One trained model."""

    id: str
    kind: str
    state: str
    trained_until: str
    rows: int
    feature_schema: str
    libraries: dict[str, Any]
    metrics: dict[str, Any]
    sha256: str
    created_at: str


class TrainingRun(TypedDict):
    """A retraining; ``outcome`` is None while it is under way."""

    id: int
    started_at: str
    ended_at: str | None
    outcome: str | None
    detail: str


class Accepted(TypedDict):
    """A request that the next cycle acts on."""

    accepted: str
    job_id: int | None
    server: str | None


class ShadowStarts(TypedDict):
    """Starts that two policies, or one of them alone, wanted."""

    both: int
    first_only: int
    shadow_only: int
    agreement_ratio: float | None
    both_gpu_s: float
    first_only_gpu_s: float
    shadow_only_gpu_s: float
    granted_later: int
    granted_later_s: float
    same_placement: int
    fewer_servers: int
    more_servers: int
    other_servers: int


class ShadowStops(TypedDict):
    """Preemptions likewise, and the work that they would lose."""

    both: int
    first_only: int
    shadow_only: int
    agreement_ratio: float | None
    both_lost_gpu_s: float
    first_only_lost_gpu_s: float
    shadow_only_lost_gpu_s: float


class Disagreement(TypedDict):
    """A job on which the two policies disagree now."""

    job_id: int
    name: str
    gpus: int
    since: str
    shadow_wants: str
    servers: list[Placed]
    for_job_id: int | None
    first_reason: str
    first_sentence: str
    shadow_sentence: str


class ShadowCycle(TypedDict):
    """A pass in which the two did not want the same."""

    cycle: int | None
    at: str
    starts_both: int
    starts_first_only: list[int]
    starts_shadow_only: list[int]
    preemptions_both: int
    preemptions_first_only: list[int]
    preemptions_shadow_only: list[int]


class Shadow(TypedDict):
    """A second policy that decides beside the first and changes nothing."""

    policy: str
    options: dict[str, str]
    first_policy: str
    first_options: dict[str, str]
    status: str
    status_reason: str | None
    since: str
    at: str
    passes: int
    skipped: int
    overruns: int
    failures: int
    rejected: int
    starts: ShadowStarts
    preemptions: ShadowStops
    disagreements: list[Disagreement]
    disagreements_total: int
    cycles: list[ShadowCycle]
