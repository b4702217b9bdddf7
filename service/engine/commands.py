"""What the engine asks of an executor. Commands carry the attempt id and are idempotent: sending one twice changes nothing."""

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
    """End an attempt: warn it where it wants that (``graceful``), then SIGTERM, then SIGKILL.

    Also the fence against a zombie: stopping an attempt that does not exist makes sure it never starts.
    """

    attempt: AttemptId
    graceful: bool
    warning_signal: str | None = None
    grace_s: float = 30.0
    fencing_token: int = 0


Command = Launch | Stop
