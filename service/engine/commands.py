"""Commands of the engine to an executor. They carry the attempt id and are idempotent: a second copy has no effect."""

from policies.model.ids import AttemptId, JobId
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.value import value


@value
class Launch:
    """Run an attempt. ``gpu_ids[i]`` are the GPU indices on the server of ``placement.shares[i]``."""

    attempt: AttemptId
    job: JobId
    number: int
    spec: JobSpec
    placement: Placement
    gpu_ids: tuple[tuple[int, ...], ...]
    resume_iteration: int
    fencing_token: int = 0


@value
class Stop:
    """End an attempt: the warning signal if ``graceful``, then SIGTERM, then SIGKILL.

    A stop of an attempt that does not exist keeps it from ever starting. The engine uses this as a fence.
    """

    attempt: AttemptId
    graceful: bool
    warning_signal: str | None = None
    grace_s: float = 30.0
    fencing_token: int = 0


Command = Launch | Stop
