"""Promised ends: what a job is told, what its promise weighs, and what a restart keeps."""

import json
from dataclasses import replace

import pytest

from policies.builtin.promise import PromiseState
from policies.model.cluster import Cluster
from policies.registry import make_policy
from policies.state.promises import RATIO_AT_FIRST
from service.sim.experiment import SimulationOptions, run
from service.sim.results import Simulation
from service.sim.workloads.generate import generate, make_families
from tests.scenarios.dsl import Story, cluster, policy, servers

FIRST_S = 100 * RATIO_AT_FIRST
"""What a job of 100 s is promised when nothing is known and nothing waits."""


def _stream(weight: float, *, level: float = 0.9) -> Story:
    """A job of 100 s, and then jobs of 50 s for 1000 s, each of which comes before it by remaining work."""
    story = cluster("1x1", policy("promise", guard_share=0, promise_weight=weight, promise_level=level))
    story.job("first", runs_s=50).job("long", runs_s=100, at_s=1)
    for number in range(20):
        story.job(f"short{number}", runs_s=50, at_s=10 + 50 * number)
    return story


def _promise(story: Story, name: str) -> float | None:
    return story.engine.promised_end_s(story.ids[name])


def test_a_job_is_told_once_when_it_ends() -> None:
    story = _stream(0.5).until(1)
    assert _promise(story, "long") == 1 + FIRST_S
    assert story.engine.explain(story.ids["long"]).numbers == {"promised_end_s": 1 + FIRST_S}
    story.until(90)
    assert _promise(story, "long") == 1 + FIRST_S
    # 100 s of the long job come after it, 40 s of another short one or none before it.
    assert _promise(story, "short1") == 60 + 50 * RATIO_AT_FIRST


def test_waiting_work_of_better_ranks_is_part_of_the_promise() -> None:
    story = cluster("1x2", policy("promise", guard_share=0))
    story.job("running", gpus=2, runs_s=5, priority=1).until(0)
    story.job("small", gpus=1, runs_s=40, at_s=1).job("large", gpus=2, runs_s=100, at_s=2).until(2)
    assert _promise(story, "large") == 2 + RATIO_AT_FIRST * (100 + 40 / 2)


def test_a_job_without_an_estimate_is_told_nothing() -> None:
    story = cluster("1x1", policy("promise")).job("unknown", predicted=None).until(0)
    assert _promise(story, "unknown") is None
    assert story.engine.explain(story.ids["unknown"]).numbers == {}


def test_a_promise_in_danger_is_kept_only_if_it_weighs() -> None:
    kept = _stream(0.75).until(FIRST_S)
    assert "long" in [name for name in kept.records if kept.state(name).value == "succeeded"]
    broken = _stream(0.0).until(FIRST_S)
    assert broken.record("long").attempts == 0


def test_the_weight_falls_late() -> None:
    """200 s of slack: half of it is gone at 101 s; a fourth of 100 s comes before the 50 s of the others, but half does not."""
    assert _stream(0.75).until(100).record("long").attempts == 0
    assert _stream(0.75).until(102).record("long").attempts == 1
    assert _stream(0.4).until(102).record("long").attempts == 0


def test_a_promise_that_cannot_be_kept_any_more_weighs_nothing() -> None:
    """Until 210 s a job of larger priority holds the GPU; the long job would have had to start by 201 s."""
    for blocked_s, started in ((190, "long"), (210, "short")):
        story = cluster("1x1", policy("promise", guard_share=0, promise_weight=1))
        story.job("first", runs_s=blocked_s, priority=1).job("long", runs_s=100, at_s=1).until(1)
        story.job("short", runs_s=60, at_s=blocked_s - 1).until(blocked_s).starts(started)


@pytest.mark.parametrize(("weight", "first"), [(0, "later"), (1, "earlier")])
def test_of_two_promises_in_danger_the_earlier_one_comes_first_and_displaces_nothing(weight: int, first: str) -> None:
    story = cluster("1x1", policy("promise", guard_share=0, promise_weight=weight))
    story.job("first", runs_s=170, priority=1).job("earlier", runs_s=110, at_s=1).job("later", runs_s=100, at_s=60)
    story.until(169).until(170).starts(first).until(200).preempts()


def test_a_restart_keeps_promises_and_what_was_learned() -> None:
    story = _stream(0.75).until(420)
    dump = json.loads(json.dumps(story.engine.dump()))
    assert dump["promises"]["of"]
    assert dump["promises"]["calibration"]["all"][1]
    rebuilt = story.policy.rebuild(story.engine.world, dump)
    assert json.loads(json.dumps(rebuilt.dump())) == dump


def test_without_a_dump_jobs_that_never_started_get_new_promises_and_others_none() -> None:
    story = _stream(0.0).until(30)
    state = story.policy.rebuild(story.engine.world)
    story.policy.decide(story.engine.world, (), state)
    assert isinstance(state, PromiseState)
    assert [(job, promise.made_at_s) for job, promise in sorted(state.promises.of.items())] == [
        (story.ids["long"], 30.0),
        (story.ids["short0"], 30.0),
    ]


def test_a_cancelled_job_is_forgotten() -> None:
    story = _stream(0.5).until(5).cancel("long").until(6)
    assert str(story.ids["long"]) not in story.engine.dump()["promises"]["of"]
    assert story.engine.dump()["promises"]["calibration"]["all"][1] == []


CROWDED = generate(5, 700, make_families(5, 20, 5), gpus=16, load=0.9)


def _simulate(name: str, **options: str) -> Simulation:
    made = make_policy(name, options)
    return run(CROWDED, Cluster("c", servers("2x8")), made, "noisy:0.5", SimulationOptions(keep_spans=True))


@pytest.mark.parametrize("fill", ["first_fit", "server_filling", "auto"])
def test_without_weight_the_schedule_is_that_of_asrpt(fill: str) -> None:
    plain, promised = _simulate("asrpt", fill=fill), _simulate("promise", fill=fill, promise_weight="0")
    assert promised.result.promises == 700
    assert [replace(outcome, promised_end_s=None) for outcome in promised.outcomes] == list(plain.outcomes)
    assert plain.result.promises_kept_ratio is None


def test_filling_servers_is_another_schedule() -> None:
    """So the test above compares different ones."""
    assert _simulate("promise").outcomes != _simulate("promise", fill="server_filling").outcomes


@pytest.mark.parametrize("level", [0.7, 0.9])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_stated_share_of_promises_is_kept(level: float, weight: float) -> None:
    result = _simulate("promise", promise_level=str(level), promise_weight=str(weight)).result
    assert result.promises_kept_ratio == pytest.approx(level, abs=0.05)
    # Worth something: not far beyond the time that a job takes.
    assert result.promised_jct_ratio is not None
    assert result.promised_jct_ratio < 3.0
