"""Workloads in which a service that dies at any crash point is started anew on what its store and its machines have kept."""

from collections.abc import Callable, Sequence
from typing import Any

from policies.lifecycle import JobState
from policies.model.ids import ServerIndex
from policies.model.job import PreemptionSignal
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.commands import Command
from service.engine.crash_points import CrashPoint, reached
from service.engine.cycle import EngineSettings
from service.engine.engine import CycleOutcome
from service.engine.events import EngineRequest, Report
from service.engine.ports import Store
from service.engine.record import JobRecord
from service.sim.executor import ExecutorCosts
from tests.crash.dying import Crash, Death, Reaper, dying
from tests.scenarios.dsl import Wire, policy
from tests.simulation.checked import Checked, assert_all_over

COSTS = ExecutorCosts(checkpoint_s=6.0, restart_s=5.0, launch_latency_s=2.0, stop_latency_s=3.0)
"""Starts and stops take time, so that a crash falls into the middle of them."""


class OneByOne(Wire):
    """Commands and acknowledgements go out one at a time, and the service may die between any two."""

    def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            super().send([command])
            reached(CrashPoint.COMMANDED)

    def acknowledge(self, reports: Sequence[Report]) -> None:
        for report in reports:
            super().acknowledge([report])
            reached(CrashPoint.SETTLED)


class SqlMemory(SqlStore):
    """The database's store with the memory store's way of taking submissions, which is how a scenario makes them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._own = database

    def submit(self, job: JobRecord) -> None:  # type: ignore[override]
        with self._own.writing() as session:
            assert super().submit(session, [job.spec], job.submitted_at_s) == [job.id]

    def add_request(self, request: EngineRequest) -> None:  # type: ignore[override]
        with self._own.writing() as session:
            super().add_request(session, request)


class Mortal(Checked):
    """A scenario whose service may die in any pass; whoever runs the scenario starts it again at once."""

    def __init__(self, shape: str, name: str, store: Store | None = None, **options: object) -> None:
        super().__init__(
            shape,
            policy(name, **options),
            costs=COSTS,
            # A dump with every pass: what comes back after a crash is what was there before it.
            settings=EngineSettings(retry_backoff_s=4.0, dump_every_s=0.0),
            store=store,
        )
        if store is not None:
            self.memory = store  # type: ignore[assignment]
        self.wire = OneByOne(self.executor, self.cluster)
        self.engine = self._engine()
        self.deaths = 0

    def cycle(self) -> CycleOutcome:
        """One pass that is survived, and the promises after each death as well."""
        while True:
            try:
                return super().cycle()
            except Crash:
                self._come_back()

    def _come_back(self) -> None:
        while True:
            self.deaths += 1
            self.check_machines()
            try:
                self.restart()
            except Crash:
                continue
            return


Workload = Callable[[Mortal], None]


def crowd(story: Mortal) -> None:
    """Gangs and single GPUs, long ones first, so that a preemptive policy stops some for others."""
    wish = PreemptionSignal(grace_s=10.0)
    story.job("long", gpus=8, runs_s=90, checkpoint_period_s=20.0, preemption=wish, iterations=900.0)
    story.job("hard", gpus=4, runs_s=60, at_s=5, checkpoint_period_s=10.0, preemption=None)
    story.job("short", gpus=4, runs_s=10, at_s=20, preemption=wish)
    for number in range(3):
        story.job(f"one{number}", gpus=1, runs_s=8 + number, at_s=22 + number, preemption=wish)
    story.to_the_end()


def trouble(story: Mortal) -> None:
    """Programs that crash, a server that dies, holds, cancellations, dependencies and priorities."""
    story.job("a", gpus=4, runs_s=40, checkpoint_period_s=10.0, max_retries=9)
    story.job("b", gpus=2, runs_s=30, checkpoint_period_s=None, max_retries=9)
    story.job("after", gpus=2, runs_s=10, after=["b"], max_retries=9)
    story.job("never", gpus=4, runs_s=500, max_retries=9)
    story.job("wait", gpus=2, runs_s=15, max_retries=9)
    story.until(8).hold("a", preempt=True).until(12)
    story.prioritise("wait", 1).until(14)
    if story.state("b") is JobState.RUNNING:
        story.crash("b")
    story.until(20).release("a").until(30)
    story.executor.fail_server(ServerIndex(0))
    story.until(33)
    story.executor.repair_server(ServerIndex(0))
    story.cancel("never").until(60).drain(1).until(70).resume(1)
    story.to_the_end()


WORKLOADS: dict[str, tuple[Workload, str, dict[str, Any]]] = {
    "crowd, A-SRPT": (crowd, "asrpt", {"preemption": "always", "attempt_duration_s_min": 0, "restarts_free": 20}),
    "crowd, easy": (crowd, "easy", {}),
    "trouble, LAS": (trouble, "las", {"attempt_duration_s_min": 0, "restarts_free": 20}),
    "trouble, A-SRPT": (trouble, "asrpt", {"preemption": "guided"}),
}


def live_through(name: str, *deaths: Death, store: Store | None = None) -> tuple[Mortal, Reaper]:
    """The workload from its beginning to its end, dying on the way; all promises are checked."""
    run, chosen, options = WORKLOADS[name]
    story = Mortal("2x4", chosen, store, **options)
    with dying(*deaths) as reaper:
        run(story)
    told = f"{name}, dying at {', '.join(map(str, deaths))}"
    assert len(reaper.died_at) == story.deaths, told
    try:
        assert_all_over(story)
        for job_name in story.ids:
            expected = JobState.CANCELLED if job_name == "never" else JobState.SUCCEEDED
            record = story.record(job_name)
            assert record.state is expected, f"{job_name}: {record}"
            # In a crowd nothing fails but the service, and that is no fault of a job.
            assert run is not crowd or record.retries == 0, f"{job_name} lost an attempt"
    except AssertionError as error:
        raise AssertionError(told) from error
    return story, reaper
