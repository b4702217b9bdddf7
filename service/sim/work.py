"""The remaining work of a simulated job, and the progress of one attempt at varying speed."""

from dataclasses import dataclass
from math import floor, inf

from policies.model.job import IterationTimes
from service.engine.commands import Launch
from service.engine.ports import AttemptStatus
from service.sim.network import Flow


@dataclass(slots=True)
class JobTruth:
    """The true size and progress of a job, known only to the executor and the oracle.

    ``duration_s`` is productive time at the best placement, ``iterations`` the total or None for a job that reports none,
    ``times`` its constants on the cluster or None without a stage graph. ``done_s`` is the work that its checkpoints hold,
    ``productive_s`` the time on GPUs that this work took, ``lost_s`` the time on GPUs whose work was lost with an attempt.
    """

    duration_s: float
    iterations: float | None = None
    times: IterationTimes | None = None
    done_s: float = 0.0
    productive_s: float = 0.0
    lost_s: float = 0.0

    def advance(self, productive_s: float, work_s: float) -> None:
        """Add productive time and the work done in it."""
        self.productive_s += productive_s
        self.done_s = min(self.duration_s, self.done_s + work_s)

    def iteration_at(self, done_s: float) -> float | None:
        """The iterations of this much work; None for a job that reports none."""
        return None if self.iterations is None else self.iterations * done_s / self.duration_s


@dataclass(slots=True)
class Run:
    """One attempt. ``progress_from_s`` is when work begins (inf until it started), ``stop_at_s`` when it must end.

    ``stretch`` holds since ``rated_at_s`` seconds of progress, before which ``rated_work_s`` of work was done; the newest
    periodic checkpoint from before then holds ``saved_work_s`` of it. ``due_at_s`` is when its finish is checked next.
    """

    launch: Launch
    truth: JobTruth
    stretch: float
    flow: Flow | None = None
    status: AttemptStatus = AttemptStatus.PENDING
    progress_from_s: float = inf
    finish_at_s: float = inf
    due_at_s: float = inf
    stop_at_s: float = inf
    graceful: bool = False
    rated_at_s: float = 0.0
    rated_work_s: float = 0.0
    saved_work_s: float = 0.0

    def productive_s(self, at_s: float) -> float:
        """Seconds of progress in this attempt until ``at_s``."""
        return max(0.0, min(at_s, self.stop_at_s) - self.progress_from_s)

    def work_s(self, productive_s: float) -> float:
        """Work of this attempt in its first ``productive_s`` seconds of progress, not fewer than ``rated_at_s``."""
        return self.rated_work_s + (productive_s - self.rated_at_s) / self.stretch

    def checkpointed_s(self, at_s: float) -> float:
        """Productive seconds of this attempt that the newest periodic checkpoint holds."""
        period_s = self.launch.spec.checkpoint_period_s
        productive_s = self.productive_s(at_s)
        if period_s is None or productive_s < period_s:
            return 0.0
        return productive_s if period_s <= 0.0 else floor(productive_s / period_s) * period_s

    def checkpointed_work_s(self, at_s: float) -> float:
        """The work that this checkpoint holds."""
        kept_s = self.checkpointed_s(at_s)
        return self.saved_work_s if kept_s < self.rated_at_s else self.work_s(kept_s)

    def rate(self, now_s: float, stretch: float) -> None:
        """Continue at another speed from now."""
        productive_s = self.productive_s(now_s)
        self.saved_work_s = self.checkpointed_work_s(now_s)
        self.rated_work_s = self.work_s(productive_s)
        self.rated_at_s = productive_s
        self.stretch = stretch
        self.expect(now_s)

    @property
    def iterations_per_s(self) -> float | None:
        """Its present speed; None for a job that reports none."""
        truth = self.truth
        return None if truth.iterations is None else truth.iterations / (truth.duration_s * self.stretch)

    def expect(self, now_s: float) -> None:
        """Compute when it finishes at its present speed."""
        left_s = max(0.0, self.truth.duration_s - self.truth.done_s - self.rated_work_s)
        self.finish_at_s = max(now_s, self.progress_from_s) + left_s * self.stretch
