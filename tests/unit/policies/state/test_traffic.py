"""The index of traffic: jobs come, are stopped and go, tentative changes are undone, and counts follow."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.ids import JobId
from policies.placement.pool import FreePool
from policies.state.traffic import TrafficIndex
from service.engine.record import JobRecord
from tests.contended import PLAIN, on, ring_spec, servers

FOUR = servers(4)
WHERE = st.lists(st.integers(0, 3), min_size=2, max_size=5)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "start", "stop", "undo", "future"]), st.integers(1, 5), WHERE),
    max_size=30,
)


def crowds(pool: FreePool) -> list[int]:
    assert pool.shared_links is not None
    return [pool.shared_links.crowds.jobs_on(server) for server in range(4)]


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_counts_follow_the_jobs(operations: list[tuple[str, int, list[int]]]) -> None:
    pool = FreePool(FOUR, [4] * 4)
    index = TrafficIndex(pool, PLAIN, fills_up=True)
    held: dict[int, list[int]] = {}
    now: dict[int, list[int]] = {}
    tentative = False
    for operation, number, where in operations:
        job = JobRecord(JobId(number), ring_spec(len(where)), 0.0)
        tentative = operation in ("start", "stop") or (tentative and operation != "undo")
        if operation == "add" and not tentative:
            index.add(job, FOUR, on(*where))
            held[number] = where
            now = dict(held)
        elif operation == "remove" and not tentative:
            index.remove(job.id)
            held.pop(number, None)
            now = dict(held)
        elif operation == "start":
            index.start_tentatively(job, FOUR, on(*where))
            now[number] = where
        elif operation == "stop":
            index.leave_tentatively(job.id)
            now.pop(number, None)
        elif operation == "future":
            index.put_back(job.id, index.remove(job.id))
        elif operation == "undo":
            index.undo_tentative()
            now = dict(held)
        index.check()
        straddling = [set(each) for each in now.values() if len(set(each)) > 1]
        assert crowds(pool) == [sum(server in each for each in straddling) for server in range(4)]


def test_a_search_knows_when_traffic_has_changed() -> None:
    pool = FreePool(FOUR, [4] * 4)
    index = TrafficIndex(pool, PLAIN, fills_up=True)
    before = pool.traffic_version
    index.add(JobRecord(JobId(1), ring_spec(2), 0.0), FOUR, on(0, 1))
    assert pool.traffic_version != before
    assert index.stretch(JobId(1)) == 2.0
    assert index.stretch(JobId(2)) == 1.0


def test_without_contention_nothing_is_counted() -> None:
    pool = FreePool(FOUR, [4] * 4)
    index = TrafficIndex(pool, None, fills_up=True)
    index.add(JobRecord(JobId(1), ring_spec(2), 0.0), FOUR, on(0, 1))
    assert pool.shared_links is None
    assert index.stretch(JobId(1)) == 1.0
