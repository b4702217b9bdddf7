"""Reasons for the state of a job. Each has a sentence that names what would change it; docs/reference/reasons.md lists all."""

from dataclasses import dataclass, field
from enum import StrEnum

from policies.model.ids import JobId


class Reason(StrEnum):
    """Why a job waits, or how it ended. `sentence` explains it."""

    # Waiting
    NEW = "new"
    PRIORITY = "priority"
    RESOURCES = "resources"
    FRAGMENTED = "fragmented"
    CONSOLIDATION_DELAY = "consolidation_delay"
    VIRTUAL_GATE = "virtual_gate"
    QUEUE_HEAD_BLOCKED = "queue_head_blocked"
    RESERVED = "reserved"
    HELD = "held"
    DEPENDENCY = "dependency"
    RETRY_BACKOFF = "retry_backoff"
    QUOTA = "quota"
    QUOTA_TOO_SMALL = "quota_too_small"
    QUEUE_PAUSED = "queue_paused"
    RESERVED_SERVERS = "reserved_servers"
    NO_SUCH_SERVERS = "no_such_servers"
    REFUSED = "refused"
    # Leaving the GPUs
    PREEMPTED = "preempted"
    YIELDED = "yielded"
    CRASHED = "crashed"
    LAUNCH_FAILED = "launch_failed"
    NODE_LOST = "node_lost"
    COMMAND_NOT_FOUND = "command_not_found"
    WORKING_DIR_NOT_FOUND = "working_dir_not_found"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    DISK_FULL = "disk_full"
    OUT_OF_MEMORY = "out_of_memory"
    NO_CONTAINERS = "no_containers"
    # The end
    COMPLETED = "completed"
    CANCELLED_BY_USER = "cancelled_by_user"
    WALLTIME = "walltime"
    RETRIES_EXHAUSTED = "retries_exhausted"
    YIELDS_EXHAUSTED = "yields_exhausted"
    DEPENDENCY_FAILED = "dependency_failed"
    # On the GPUs
    STARTED = "started"

    @property
    def sentence(self) -> str:
        """One sentence: what the reason means and what would change it."""
        return SENTENCES[self]

    @property
    def retryable(self) -> bool:
        """Whether a failed attempt with this reason may be tried again."""
        return self not in _NOT_RETRYABLE


SENTENCES: dict[Reason, str] = {
    Reason.NEW: "The next cycle considers the job.",
    Reason.PRIORITY: "Jobs with a better rank come first; the job starts when enough of them have ended.",
    Reason.RESOURCES: "Too few GPUs are free; the job starts when enough become free.",
    Reason.FRAGMENTED: "Enough GPUs are free, but spread over more servers than the job can use well.",
    Reason.CONSOLIDATION_DELAY: "The job waits a limited time for a placement that keeps its traffic inside servers.",
    Reason.VIRTUAL_GATE: "The job may start once the virtual machine has completed it.",
    Reason.QUEUE_HEAD_BLOCKED: "The first job of a strict queue cannot start yet, and no job may pass it.",
    Reason.RESERVED: "GPUs are being vacated for the job; it starts when the jobs on them have stopped.",
    Reason.HELD: "The job is held; it can start when it is released.",
    Reason.DEPENDENCY: "The job waits for the jobs in 'after'.",
    Reason.RETRY_BACKOFF: "The last attempt failed, or yielded without progress; the job starts again after a pause.",
    Reason.QUOTA: "The job's user, project or array has reached its GPU limit; the job can start when it holds fewer "
    "GPUs.",
    Reason.QUOTA_TOO_SMALL: "A quota of the job's user or project is smaller than its gang; the job can start when the quota is "
    "raised.",
    Reason.QUEUE_PAUSED: "The queue, or the user's or project's part of it, is paused; the job can start when it is resumed.",
    Reason.RESERVED_SERVERS: "The free servers are reserved for other jobs; the job starts on other servers, or after the "
    "reservation.",
    Reason.NO_SUCH_SERVERS: "No set of servers that are up can hold the gang; add, resume or repair servers.",
    Reason.REFUSED: "A start could not be applied; the next cycle decides again, after a pause if this repeats.",
    Reason.PREEMPTED: "A job with a better rank took the GPUs; this job resumes from its checkpoint.",
    Reason.YIELDED: "The program requested to be resumed later (exit code 75).",
    Reason.CRASHED: "The program ended with an error.",
    Reason.LAUNCH_FAILED: "The program could not be launched.",
    Reason.NODE_LOST: "The server stopped responding, and the attempt has certainly ended.",
    Reason.COMMAND_NOT_FOUND: "The command does not exist or is not executable on the server.",
    Reason.WORKING_DIR_NOT_FOUND: "working_dir is not the absolute path of a folder that the server can enter.",
    Reason.CHECKPOINT_UNREADABLE: "The job's checkpoint folder cannot be read or written.",
    Reason.DISK_FULL: "The disk that holds logs and checkpoints is full.",
    Reason.OUT_OF_MEMORY: "The program used more memory than the job's memory_gib and was ended; ask for more.",
    Reason.NO_CONTAINERS: "The job's image cannot run: the server has neither podman nor apptainer, or a volume is refused.",
    Reason.COMPLETED: "The program ended with exit code 0.",
    Reason.CANCELLED_BY_USER: "The job was cancelled on request.",
    Reason.WALLTIME: "The job exceeded its walltime.",
    Reason.RETRIES_EXHAUSTED: "The job failed more often than max_retries allows.",
    Reason.YIELDS_EXHAUSTED: "The job yielded more often than yields_max allows.",
    Reason.DEPENDENCY_FAILED: "A job in 'after' did not succeed.",
    Reason.STARTED: "The job has its GPUs.",
}

BEFORE_THE_PROGRAM = frozenset(
    {
        Reason.LAUNCH_FAILED,
        Reason.COMMAND_NOT_FOUND,
        Reason.WORKING_DIR_NOT_FOUND,
        Reason.CHECKPOINT_UNREADABLE,
        Reason.NO_CONTAINERS,
    }
)
"""Reasons for which an attempt ended before its program ran: it has no output."""

_NOT_RETRYABLE = frozenset(
    {
        Reason.COMMAND_NOT_FOUND,
        Reason.WORKING_DIR_NOT_FOUND,
        Reason.CHECKPOINT_UNREADABLE,
        Reason.NO_CONTAINERS,
        Reason.WALLTIME,
    }
)


PROMISED_END = "promised_end_s"
"""In the numbers of an explanation: the end that a policy has promised the job, in seconds on the engine's clock."""

ALIKE_RUNS = "alike_runs"
"""Likewise: how many runs of its program rank the job, the first of them, as worth more than its own end."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason with the numbers behind it, computed on request.

    ``will_preempt``: from ``preemption_at_s`` on the next cycle stops these jobs for this one; ``will_be_preempted_by``: it stops
    this job for that one. Both hold if nothing else changes before, and are left out where that time is unknown.
    """

    reason: Reason
    gpus_needed: int
    gpus_free: int
    servers_with_free_gpus: int
    servers_wanted: int | None = None
    jobs_ahead: int | None = None
    rank: float | None = None
    waiting_for: tuple[JobId, ...] = ()
    detail: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    will_preempt: tuple[JobId, ...] = ()
    will_be_preempted_by: JobId | None = None
    preemption_at_s: float | None = None
    gpu_type: str = ""
    """The type whose free GPUs are counted, where the cluster has several: the one of those that the job takes with most."""
    stopping: bool = False
    """Whether the job is being stopped: the reason is that of the stop."""

    @property
    def sentence(self) -> str:
        """The numbers first, then what would change the state."""
        if self.stopping:
            return f"Holds {_count(self.gpus_needed, 'GPU')} until its program has stopped. {self.reason.sentence}"
        if self.reason is Reason.STARTED:
            return f"Holds {_count(self.gpus_needed, 'GPU')}. {self.detail or self.reason.sentence}"
        parts = [f"Needs {_count(self.gpus_needed, 'GPU')}"]
        if self.servers_wanted is not None:
            parts[0] += f" on <={_count(self.servers_wanted, 'server')}"
        free = f"{self.gpus_free} {self.gpu_type}".rstrip()
        parts.append(f"{free} free on {_count(self.servers_with_free_gpus, 'server')}")
        if self.jobs_ahead is not None:
            verb = "precedes" if self.jobs_ahead == 1 else "precede"
            parts.append(f"{_count(self.jobs_ahead, 'job')} {verb} it")
        head = "; ".join(parts) + ". "
        return head + (self.detail or self.reason.sentence)


def _count(number: int, what: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
