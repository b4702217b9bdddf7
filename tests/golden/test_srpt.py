"""The relaxation by hand, against every preemptive order on tiny instances, and below every schedule of the cluster."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.registry import BUILT_IN, make_policy
from policies.relaxation import Completion, VirtualMachine
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.model import Workload, WorkloadJob

Jobs = list[tuple[int, int]]
"""(release, work) of each."""

TINY = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4)


def completions(jobs: Jobs) -> list[Completion]:
    """What the virtual machine does with these jobs."""
    machine, done = VirtualMachine(), []
    for number, (release_s, work_s) in sorted(enumerate(jobs, start=1), key=lambda job: (job[1][0], job[0])):
        done += machine.advance(float(release_s))
        machine.add(JobId(number), float(work_s), float(release_s))
    return done + machine.advance(1e6)


def least_sum(jobs: Jobs) -> int:
    """The least sum of completion times over all schedules that give each unit of time to one job, or to none."""

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        choices = [job for job, (release, _) in enumerate(jobs) if left[job] and release <= now]
        found = [best(now + 1, left)] if len(choices) < sum(1 for work in left if work) else []
        for job in choices:
            rest = tuple(work - (other == job) for other, work in enumerate(left))
            found.append(best(now + 1, rest) + (now + 1 if rest[job] == 0 else 0))
        return min(found)

    return best(0, tuple(work for _, work in jobs))


def test_by_hand_with_a_preemption_and_a_tie() -> None:
    # A (10 s) runs 0-2; B (3 s) displaces it 2-5; C arrives at 5 with 8 s, as much as A has left: A came first.
    assert completions([(0, 10), (2, 3), (5, 8)]) == [(5.0, 2), (13.0, 1), (21.0, 3)]


def test_equal_in_everything_goes_to_the_smaller_number() -> None:
    assert [job for _, job in completions([(0, 4), (0, 4), (0, 4)])] == [1, 2, 3]


def test_idle_time_is_not_saved_up() -> None:
    assert completions([(0, 1), (100, 2)]) == [(1.0, 1), (102.0, 2)]


@settings(max_examples=150, deadline=None)
@given(TINY)
def test_no_preemptive_order_is_better(jobs: Jobs) -> None:
    assert sum(at_s for at_s, _ in completions(jobs)) == least_sum(jobs)


GANGS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 80)), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(GANGS, st.sampled_from(sorted(BUILT_IN)))
def test_the_sum_of_virtual_completions_is_below_that_of_any_schedule(
    gangs: list[tuple[int, int, int]], name: str
) -> None:
    rows = sorted(gangs)
    workload = Workload("w", tuple(WorkloadJob(f"j{n}", at, gpus, s) for n, (at, gpus, s) in enumerate(rows)))
    cluster = Cluster("two", (Server("a", 4), Server("b", 4)))
    real = run(workload, cluster, make_policy(name), "oracle", SimulationOptions(restart_s=0.0)).outcomes
    machine, virtual_s = VirtualMachine(float(rows[0][0])), 0.0
    for number, (at_s, gpus, seconds) in enumerate(rows, start=1):
        virtual_s += sum(done.at_s for done in machine.advance(float(at_s)))
        machine.add(JobId(number), gpus * seconds / 8, float(at_s))
    virtual_s += sum(done.at_s for done in machine.advance(1e9))
    assert virtual_s <= sum(outcome.finish_time_s for outcome in real) + 1e-6


@pytest.mark.parametrize("at_s", [3.0, 9.0])
def test_a_dump_tells_all_that_the_rest_depends_on(at_s: float) -> None:
    machine = VirtualMachine()
    for job, work_s in ((1, 5.0), (2, 2.0), (3, 4.0)):
        machine.add(JobId(job), work_s, 0.0)
    machine.advance(at_s)
    dump = machine.dump()
    again = VirtualMachine(dump["now_s"])
    for job, left_s in dump["remaining_s"].items():
        again.add(JobId(int(job)), left_s, 0.0)
    assert again.advance(100.0) == machine.advance(100.0)
