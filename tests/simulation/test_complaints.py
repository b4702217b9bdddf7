"""What users of other schedulers complain of most about preemption, as promises of every policy that preempts."""

from bisect import bisect_left
from collections.abc import Sequence

import pytest

from policies.model.cluster import Cluster, Server
from policies.options import Options
from policies.registry import BUILT_IN, make_policy
from service.sim.executor import ExecutorCosts
from service.sim.experiment import SimulationOptions, run
from service.sim.results import JobOutcome
from service.sim.workloads.model import Workload, WorkloadJob
from tests.scenarios.dsl import cluster, policy

DAY_S = 86_400.0
PREEMPTIVE = sorted(name for name, factory in BUILT_IN.items() if factory.preemptive)
DEFAULTS = Options()
PREEMPTIONS_PER_DAY_MAX = int(DEFAULTS.restarts_free + DAY_S / DEFAULTS.restarted_attempt_s_min + 1)


def a_day_of_short_jobs(name: str, mode: str, **options: str) -> JobOutcome:
    """One job of two days on the only server, and every three minutes another one of a minute that wants it."""
    rows = [WorkloadJob("long", 0.0, 4, 2 * DAY_S)]
    rows += [WorkloadJob(f"short{n}", 60.0 + 180.0 * n, 4, 60.0) for n in range(int(DAY_S / 180))]
    chosen = make_policy(name, {"preemption": mode, "guard_share": "0"} | options)
    settings = SimulationOptions(restart_s=5.0, keep_spans=True)
    outcomes = run(Workload("w", tuple(rows)), Cluster("c", (Server("s", 4),)), chosen, "oracle", settings).outcomes
    assert len(outcomes) == len(rows)
    return outcomes[0]


def most_in_a_day(at_s: Sequence[float]) -> int:
    """The most of these instants (ascending) in any window of 24 hours, both ends included."""
    return max(position - bisect_left(at_s, late_s - DAY_S) + 1 for position, late_s in enumerate(at_s))


@pytest.mark.parametrize("mode", ["guided", "always"])
@pytest.mark.parametrize("name", PREEMPTIVE)
def test_no_job_is_preempted_more_than_k_times_a_day(name: str, mode: str) -> None:
    assert PREEMPTIONS_PER_DAY_MAX == 117  # as the documentation says
    long = a_day_of_short_jobs(name, mode)
    stopped_at_s = [span.end_s for span in long.spans[:-1]]
    assert len(stopped_at_s) == long.preemptions
    assert most_in_a_day(stopped_at_s) <= PREEMPTIONS_PER_DAY_MAX


@pytest.mark.parametrize("name", ["asrpt", "srsf"])
def test_without_that_rule_it_would_be(name: str) -> None:
    long = a_day_of_short_jobs(name, "guided", restarts_free="1e6")
    assert most_in_a_day([span.end_s for span in long.spans[:-1]]) > 400


@pytest.mark.parametrize("name", ["asrpt", "srsf"])
def test_a_job_makes_way_freely_until_it_has_started_over_so_often(name: str) -> None:
    long = a_day_of_short_jobs(name, "guided", restarts_free="3", restarted_attempt_s_min="1000")
    held_s = [span.end_s - span.start_s for span in long.spans]
    assert max(held_s[:3]) < 180.0
    assert min(held_s[3:-1]) >= 1000.0


def test_an_eviction_never_leaves_part_of_a_gang() -> None:
    """Each of two gangs over all servers is stopped for the other at once, everywhere, and holds all GPUs until it is gone."""
    story = cluster(
        "4x2",
        policy("srsf", preemption="guided", guard_share=0),
        costs=ExecutorCosts(checkpoint_s=20.0, restart_s=0.0, stop_latency_s=3.0),
    )
    story.job("wide", gpus=8, runs_s=10_000).until(100).starts("wide").on("wide", 0, 1, 2, 3)
    story.job("single", gpus=1, runs_s=50).until(100).preempts("wide").starts()
    world = story.engine.world
    for at_s in range(101, 123):
        # Warned, then checkpointing: whole until the last process is gone.
        story.until(at_s).starts().on("wide", 0, 1, 2, 3)
        assert [world.free_gpus(server) for server in range(4)] == [0, 0, 0, 0]  # type: ignore[arg-type]
    story.until(123).starts("single")
    assert sum(world.free_gpus(server) for server in range(4)) == 7  # type: ignore[arg-type]
    assert story.record("wide").attempt is None
    story.until(173).finishes("single").starts("wide").on("wide", 0, 1, 2, 3)


@pytest.mark.parametrize("name", PREEMPTIVE)
@pytest.mark.parametrize("predicted", ["truth", None])
def test_who_was_displaced_does_not_displace_in_turn(name: str, predicted: str | None) -> None:
    """Two jobs that want the same GPUs: whatever is known of them, they change places a few times at most."""
    story = cluster("1x4", policy(name, preemption="guided", guard_share=0), costs=ExecutorCosts(restart_s=10.0))
    story.job("one", gpus=4, runs_s=20_000, predicted=predicted)
    story.job("two", gpus=4, runs_s=15_000, at_s=50, predicted=predicted).to_the_end()
    assert story.record("one").preemptions + story.record("two").preemptions <= 12
    assert story.record("one").wasted_gpu_s <= 0.01 * 4 * 20_000
