"""The index of placements, the delays and the reasons of waiting jobs against plain dictionaries."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choose import Candidate
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.model.reasons import Reason
from policies.options import Options, Preemption
from policies.state.delays import PlacementDelays
from policies.state.placements import PlacementIndex
from policies.state.wait_reasons import WaitReasons
from service.engine.record import JobRecord
from service.engine.world import Costs, World
from tests.contended import on, ring_spec, ring_times
from tests.contended import servers as equal_servers

SERVERS = st.sets(st.integers(0, 3), min_size=1)
HOLDS = st.lists(st.tuples(st.booleans(), st.integers(1, 6), SERVERS, st.integers(0, 3)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(HOLDS)
def test_placements_agree_with_a_dictionary(operations: list[tuple[bool, int, set[int], int]]) -> None:
    index = PlacementIndex()
    held: dict[JobId, set[int]] = {}
    stretches: dict[JobId, int] = {}
    for adds, number, servers, stretch in operations:
        job = JobId(number)
        record = JobRecord(job, JobSpec("j", "u", 1, checkpoint_period_s=300.0 if number % 2 else None), 0.0)
        if adds and job not in held:
            held[job] = servers
            index.add(record, place([ServerShare(ServerIndex(server), 1) for server in servers]))
            if stretch:
                stretches[job] = stretch
                index.add_stretch(record, float(stretch))
        elif job in held:
            index.remove(job, place([ServerShare(ServerIndex(server), 1) for server in held.pop(job)]))
            stretches.pop(job, None)
        index.check()
        for server in range(4):
            holders = {job: len(on) == 1 for job, on in held.items() if server in on}
            assert index.on_server.get(ServerIndex(server), {}) == holders
        assert set(index.without_checkpoints) == {job for job in held if job % 2 == 0}
        slowest_first = sorted(stretches, key=lambda job: (-stretches[job], job))
        assert [job for _, _, job in index.stretched] == slowest_first


def test_a_delay_begins_once_and_survives_a_dump() -> None:
    delays = PlacementDelays()
    assert [delays.begin(JobId(1), 5.0), delays.begin(JobId(1), 9.0), delays.begin(JobId(2), 9.0)] == [5.0, 5.0, 9.0]
    restored = PlacementDelays()
    restored.restore(delays.dump(), {JobId(1)})
    assert restored.since_s == {1: 5.0}, "job 2 is gone"
    delays.end(JobId(1))
    delays.end(JobId(7))
    assert delays.begin(JobId(1), 20.0) == 20.0


def test_a_start_that_slows_others_waits_although_jobs_wait_for_no_better_placement() -> None:
    """1 + 3 s an iteration instead of 1 s: at most three times its remaining 100 s, where it slows others on a link."""
    cluster = equal_servers(4)
    view = World(cluster, Costs())
    job = JobRecord(JobId(1), ring_spec(4), 0.0, iteration_times=ring_times(cluster, 4))
    job.estimate = Estimate((100.0,), Unit.SERVICE_S, "true")
    never = Options(delay_factor=0.0)
    delays = PlacementDelays()
    assert delays.until_s(never, view, job, Candidate(on(0, 0, 1, 1), 4.0)) is None
    assert delays.until_s(never, view, job, Candidate(on(0, 0, 1, 1), 4.0, crowded=True)) == 300.0
    preempting = Options(delay_factor=0.0, preemption=Preemption.GUIDED)
    assert delays.until_s(preempting, view, job, Candidate(on(0, 0, 1, 1), 4.0, crowded=True)) is None
    view.now_s = 300.0
    assert delays.until_s(never, view, job, Candidate(on(0, 0, 1, 1), 4.0, crowded=True)) is None


def test_a_waiting_job_has_a_reason_or_is_missing_one() -> None:
    reasons = WaitReasons()
    reasons.require(JobId(1))
    reasons.require(JobId(2))
    assert [reasons.set(JobId(1), Reason.PRIORITY), reasons.set(JobId(1), Reason.PRIORITY)] == [True, False]
    assert reasons.take_missing() == [2]
    assert reasons.take_missing() == []
    reasons.drop(JobId(1))
    reasons.require(JobId(1))
    assert reasons.take_missing() == [1]
