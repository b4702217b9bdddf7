"""A scenario that is looked at after every pass: what must hold of the machines and of the engine's beliefs at any instant."""

from collections.abc import Iterator
from typing import Any

from policies.lifecycle import TERMINAL, JobState
from policies.model.estimate import Unit
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.reasons import Reason
from service.engine.engine import CycleOutcome
from service.engine.ports import AttemptStatus
from service.sim.work import Run
from tests.scenarios.chance import WAITING_REASONS
from tests.scenarios.dsl import Story

EPSILON_S = 1e-6


class Checked(Story):
    """A scenario in which every promise is checked after each pass, whatever the engine believes."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self._kept_s: dict[JobId, float] = {}
        self._attempts: dict[JobId, int] = {}
        super().__init__(*given, **more)

    def cycle(self) -> CycleOutcome:
        """One pass, then every promise."""
        outcome = super().cycle()
        assert self.engine.counters["decisions_rejected"] == 0
        self.check_machines()
        now_s = self.engine.world.now_s
        if not outcome.failed and (outcome.wake_at_s is None or outcome.wake_at_s > now_s):
            # Else the engine will look at once what became of rows that others changed.
            self._check_jobs(now_s)
        return outcome

    def live(self) -> Iterator[tuple[AttemptId, Run]]:
        """What truly runs, starts or stops."""
        for attempt, run in self.executor._runs.items():
            if run.status is not AttemptStatus.ENDED:
                yield attempt, run

    def check_machines(self) -> None:
        """One attempt a job, one job a GPU, and no step behind a checkpoint; whatever the engine believes."""
        jobs: set[JobId] = set()
        kept_s = {job: truth.productive_s for job, truth in self.truths.items()}
        gpus: set[tuple[ServerIndex, int]] = set()
        for attempt, run in self.live():
            assert run.launch.job not in jobs, f"two attempts of job {run.launch.job} at once"
            jobs.add(run.launch.job)
            for share, ids in zip(run.launch.placement.shares, run.launch.gpu_ids, strict=True):
                for gpu in ids:
                    assert (share.server, gpu) not in gpus, (
                        f"GPU {gpu} of server {share.server} runs {attempt} and another"
                    )
                    gpus.add((share.server, gpu))
            kept_s[run.launch.job] += _checkpointed_s(run, self.clock.now_s())
        for job, truth in self.truths.items():
            assert truth.done_s <= truth.duration_s
            assert kept_s[job] >= self._kept_s.get(job, 0.0) - EPSILON_S, f"job {job} fell behind a checkpoint"
        self._kept_s = kept_s

    def _check_jobs(self, now_s: float) -> None:
        """What the engine believes of the jobs agrees with itself, and every "no" has its reason."""
        for job in self.engine.world.jobs.values():
            assert job.done(Unit.SERVICE_S, now_s) >= job.checkpoint_service_s - EPSILON_S
            assert job.done(Unit.ITERATIONS, now_s) >= job.checkpoint_iteration - EPSILON_S
            assert job.preemptions <= job.attempts
            assert self._attempts.get(job.id, 0) <= job.attempts
            self._attempts[job.id] = job.attempts
            if job.reservation is not None:
                assert job.waiting, f"GPUs are set aside for job {job.id}, which may not start"
                servers = self.engine.world.servers
                assert all(servers[n].usable for n in job.reservation.servers), (
                    f"job {job.id} waits for a server that is out"
                )
            if job.state in (JobState.STARTING, JobState.RUNNING):
                assert job.reason is Reason.STARTED, f"job {job.id} runs and says {job.reason}"
            elif job.state is JobState.QUEUED:
                assert job.reason in _reasons(job.held, job.unmet_dependencies, job.waiting), f"{job.id}: {job.reason}"


def _checkpointed_s(run: Run, now_s: float) -> float:
    """Productive seconds of this attempt that a periodic checkpoint holds: whole periods."""
    productive_s, period_s = run.productive_s(now_s), run.launch.spec.checkpoint_period_s
    return 0.0 if period_s is None else productive_s - (productive_s % period_s if period_s else 0.0)


def _reasons(held: bool, unmet: int, waiting: bool) -> frozenset[Reason]:
    if waiting:
        return WAITING_REASONS
    if held:
        return frozenset({Reason.HELD})
    return frozenset({Reason.DEPENDENCY}) if unmet else frozenset({Reason.RETRY_BACKOFF, Reason.REFUSED})


def assert_all_over(story: Checked) -> None:
    """All jobs have ended, no attempt is open, nothing runs, and every GPU is free again."""
    states = {name: story.state(name) for name in story.ids}
    assert set(states.values()) <= TERMINAL, f"unfinished: {[name for name, s in states.items() if s not in TERMINAL]}"
    assert not list(story.live()), "attempts that nobody wants are left"
    assert not story.executor.observed()
    world = story.engine.world
    assert not world.jobs
    assert [world.free_gpus(ServerIndex(n)) for n in range(len(world.servers))] == [
        s.gpus for s in world.cluster.servers
    ]
    for name, job in story.ids.items():
        record, truth = story.record(name), story.truths[job]
        assert record.attempt is None
        if states[name] is JobState.SUCCEEDED:
            assert truth.done_s == truth.duration_s, f"{name} is said to be done and is not"
