"""The engine on the database does what it does in memory, also when it forgets everything between two passes."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest

from policies.model.cluster import Cluster, Server
from policies.rank import REFRESH_S_MIN
from policies.registry import make_policy
from service.db.session import Database
from service.db.store import SqlStore
from service.engine.engine import Engine
from service.engine.record import JobRecord
from service.sim.drive import Drive
from service.sim.experiment import SimulationOptions, Simulator
from service.sim.jobs import prepare
from service.sim.results import JobOutcome
from service.sim.workloads.generate import generate

CLUSTER = Cluster("two", (Server("a", 4), Server("b", 4)))
OPTIONS = SimulationOptions(checkpoint_s=5.0, restart_s=20.0)


class SqlSimulator(Simulator):
    """A simulation whose store is the database. ``restart_every``: passes after which the engine starts over from it."""

    restart_every: int = 0
    _passes: int = 0

    def use(self, database: Database, policy: str, restart_every: int = 0) -> None:
        """Swap the store, before the first step."""
        self._database = database
        self._policy = policy
        self.restart_every = restart_every
        self.store = _Submitting(database)  # type: ignore[assignment]
        self._build()

    def _build(self) -> None:
        old = self.engine
        ports = replace(old._ports, store=self.store)
        # What no job tells (since when one waits for a better placement) comes back exactly if each cycle keeps it.
        old.settings.dump_every_s = 0.0
        self.engine: Engine[Any] = Engine(make_policy(self._policy), CLUSTER, ports, old._costs, old.settings)
        # What the old engine asked to be woken for is asked again by the new one, but only at its first cycle.
        wake_at_s = self._drive._wake_at_s
        self._drive = Drive(self.engine, self.clock)
        self._drive._wake_at_s = wake_at_s

    def step(self) -> bool:
        """One instant, and now and then a restart."""
        self._passes += 1
        if self.restart_every and self._passes % self.restart_every == 0:
            self._build()
        return super().step()


class _Submitting(SqlStore):
    """Takes submissions as the memory store does."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._own = database

    def submit(self, job: JobRecord) -> None:  # type: ignore[override]
        with self._own.writing() as session:
            assert super().submit(session, [job.spec], job.submitted_at_s) == [job.id]


def _simulator(kind: type[Simulator], policy: str) -> Any:
    workload = generate(7, 24)
    crowded = replace(
        workload, jobs=tuple(replace(job, submit_time_s=job.submit_time_s / 50.0) for job in workload.jobs)
    )
    prepared = prepare(crowded, CLUSTER, checkpoint_period_s=300.0, skip_invalid=True)
    return kind(prepared.jobs, CLUSTER, make_policy(policy), "oracle", OPTIONS)


def _outcomes(simulator: Simulator) -> list[JobOutcome]:
    simulator.run()
    return simulator.outcomes()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["asrpt", "fifo_backfill", "las"])
@pytest.mark.parametrize("restart_every", [0, 7])
def test_the_database_changes_nothing(any_database: Database, policy: str, restart_every: int) -> None:
    expected = _outcomes(_simulator(Simulator, policy))
    assert len(expected) > 15
    assert policy == "fifo_backfill" or any(outcome.preemptions for outcome in expected), "nothing to remember"
    simulator = _simulator(SqlSimulator, policy)
    simulator.use(any_database, policy, restart_every)
    assert [asdict(outcome) for outcome in _outcomes(simulator)] == [_nearly(outcome) for outcome in expected]


def _nearly(outcome: JobOutcome) -> dict[str, object]:
    """A rank computed anew at another instant may differ in its last bits, and so be refreshed ``REFRESH_S_MIN`` later."""
    nearly = partial(pytest.approx, abs=10 * REFRESH_S_MIN)
    return {name: nearly(value) if isinstance(value, float) else value for name, value in asdict(outcome).items()}
