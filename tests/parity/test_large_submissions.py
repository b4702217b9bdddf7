"""Large submissions are admitted over many cycles on a database; others pass them, and a failure in the middle loses nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import select

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import ArrayPlace, JobSpec
from policies.model.reasons import Reason
from service.db.check import check_connection
from service.db.rows import REQUESTS_A_TURN
from service.db.servers import enroll
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import JOBS, METADATA, REQUESTS
from service.engine.commands import Launch
from service.engine.crash_points import CrashPoint, on_reached
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import EngineRequest, JobEvent, RequestKind
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord
from tests.scenarios.dsl import cluster, policy

PER_CYCLE = 20

SPEC = JobSpec("sweep", "ada", 4, hold=True)
"""On one server of one GPU nothing of it ever starts."""


@dataclass
class Cycles:
    """Sink: how many jobs each cycle wrote, and which job each event was about."""

    jobs: list[int] = field(default_factory=list)

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Ignore."""

    def cycle(self, batch: CycleBatch) -> None:
        self.jobs.append(len(batch.writes))


class Service:
    """An engine on a database, which can be started again."""

    def __init__(self, database: Database, shape: str = "1x1") -> None:
        self.database, self.store, self.cycles = database, SqlStore(database), Cycles()
        self.story = cluster(shape, policy("fifo"))
        enroll(database, self.story.cluster)
        self.start()

    def start(self) -> None:
        told = self.story.told
        ports = Ports(self.store, self.story.wire, self.story.clock, told, self.cycles)
        settings = EngineSettings(facts_per_cycle_max=PER_CYCLE)
        self.engine = Engine(self.story.policy, self.story.cluster, ports, settings=settings)

    def submit(self, *specs: JobSpec) -> list[JobId]:
        with self.database.writing() as session:
            ids = self.store.submit(session, specs, 0.0)
        self.story.told.points |= dict.fromkeys(ids, (1.0,))
        return ids

    def ask(self, *requests: EngineRequest) -> None:
        with self.database.writing() as session:
            self.store.add_requests(session, requests)

    def admitted(self) -> set[JobId]:
        return set(self.engine.world.jobs)

    def to_the_end(self) -> None:
        for _ in range(1000):
            if not self.store.has_requests():
                return
            self.engine.cycle()
        raise AssertionError("the requests do not end")


@pytest.fixture
def service(any_database: Database) -> Iterator[Service]:
    yield Service(any_database)
    on_reached(None)


def array(count: int) -> list[JobSpec]:
    return [replace(SPEC, array=ArrayPlace(index, count)) for index in range(count)]


def test_a_cycle_takes_a_limited_number_of_a_large_array(service: Service) -> None:
    ids = service.submit(*array(10 * PER_CYCLE + 1))
    service.to_the_end()
    assert service.cycles.jobs == [PER_CYCLE] * 10 + [1]
    assert service.admitted() == set(ids)


def test_a_single_job_is_admitted_before_the_rest_of_earlier_arrays(service: Service) -> None:
    for _ in range(2):
        service.submit(*array(4 * REQUESTS_A_TURN))
    for _ in range(2 * REQUESTS_A_TURN // PER_CYCLE):
        service.engine.cycle()
    [single] = service.submit(SPEC)
    small = service.submit(*array(3))
    service.engine.cycle()
    assert {single, *small} <= service.admitted()
    assert len(service.admitted()) < 3 * REQUESTS_A_TURN
    service.to_the_end()
    assert len(service.admitted()) == 8 * REQUESTS_A_TURN + 4


def test_submissions_that_share_a_transaction_take_their_own_turns(service: Service) -> None:
    with service.database.writing() as session:
        service.store.submit(session, [SPEC] * (REQUESTS_A_TURN + 2), 0.0, [REQUESTS_A_TURN + 1, 1])
        turns = session.connection().execute(select(REQUESTS.c.turn).order_by(REQUESTS.c.id)).scalars().all()
    assert turns == [0] * REQUESTS_A_TURN + [1, 0]


def test_a_request_about_a_job_takes_its_admission_along(service: Service) -> None:
    ids = service.submit(*array(4 * REQUESTS_A_TURN))
    late = ids[-1]
    service.ask(EngineRequest(0, RequestKind.CANCEL, 1.0, late))
    for _ in range(REQUESTS_A_TURN // PER_CYCLE + 1):
        service.engine.cycle()
    assert len(service.admitted()) < 2 * REQUESTS_A_TURN
    [job] = service.store.jobs([late])
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.CANCELLED_BY_USER)
    service.to_the_end()
    assert service.admitted() == set(ids[:-1])


def test_what_is_asked_of_one_job_is_done_in_its_order(service: Service) -> None:
    ids = service.submit(*array(4 * REQUESTS_A_TURN))
    late = ids[-1]
    service.ask(*(EngineRequest(0, RequestKind.PRIORITY, 1.0, job, priority=1) for job in ids))
    service.ask(EngineRequest(0, RequestKind.PRIORITY, 2.0, late, priority=2))
    while late not in service.admitted():
        service.engine.cycle()
    assert service.engine.world.jobs[late].priority == 2
    assert len(service.admitted()) < len(ids)
    service.to_the_end()
    assert [service.engine.world.jobs[job].priority for job in ids] == [1] * (len(ids) - 1) + [2]


def test_each_element_is_launched_with_its_own_index(any_database: Database) -> None:
    service = Service(any_database, "1x4")
    service.story.wire.cut = True
    places = [ArrayPlace(index, 3) for index in (5, 3, 9)]
    ids = service.submit(*(replace(SPEC, gpus=1, hold=False, array=place) for place in places))
    service.engine.cycle()
    service.start()
    service.engine.reconcile()
    launched = [command for command in service.story.wire.sent if isinstance(command, Launch)]
    expected = [(job, replace(place, id=ids[0])) for job, place in zip(ids, places, strict=True)]
    assert [(launch.job, launch.spec.array) for launch in launched] == expected * 2
    shared = {id(job.spec) for job in service.engine.world.jobs.values()}
    assert len(shared) == 1


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("point", [CrashPoint.DECIDED, CrashPoint.WRITTEN, CrashPoint.COMMITTED])
def test_a_death_in_the_middle_loses_no_element_and_admits_none_twice(service: Service, point: CrashPoint) -> None:
    ids = service.submit(*array(6 * PER_CYCLE))
    for cycles_before in (1, 2):
        for _ in range(cycles_before):
            service.engine.cycle()

        def die(reached: CrashPoint) -> None:
            if reached is point:
                raise Died

        on_reached(die)
        with pytest.raises(Died):
            service.engine.cycle()
        on_reached(None)
        service.start()
    service.to_the_end()
    assert service.admitted() == set(ids)
    assert sum(service.cycles.jobs) + (2 * PER_CYCLE if point is CrashPoint.COMMITTED else 0) == len(ids)
    with service.database.reading() as session:
        connection = session.connection()
        assert set(connection.execute(select(JOBS.c.version)).scalars()) == {1}
        assert check_connection(connection).faults == ()


def test_rows_of_an_element_are_few_and_small(service: Service) -> None:
    """However large the spec is that an array shares: bytes of all rows that one more element adds."""
    large = replace(SPEC, env={f"NAME_{number}": "x" * 1000 for number in range(100)})
    service.submit(*(replace(large, array=ArrayPlace(0, 1)),))
    service.to_the_end()
    before = _bytes(service.database)
    service.submit(*(replace(large, array=ArrayPlace(index, 300)) for index in range(300)))
    service.to_the_end()
    added = _bytes(service.database) - before - 110_000  # the array's own spec
    assert added < 300 * 1500


def _bytes(database: Database) -> int:
    """The length of all values of all rows, as text."""
    total = 0
    with database.reading() as session:
        for table in METADATA.sorted_tables:
            rows = session.connection().execute(select(table))
            total += sum(len(str(value)) for row in rows for value in row)
    return total
