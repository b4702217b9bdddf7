"""The policies that others are compared with: what each prefers, by hand."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Policy
from policies.builtin.easy import PASSING_PER_CLASS_MAX
from policies.builtin.fair import FairState
from policies.builtin.gittins import GittinsState
from policies.model.cluster import Gangs
from policies.model.decision import Change, Decision
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId
from policies.model.job import Level, Topology
from policies.model.parallelism import ParallelismConfig
from policies.model.reasons import Reason
from policies.model.view import ClusterView
from policies.registry import make_policy
from service.engine.cycle import EngineSettings
from service.sim.executor import ExecutorCosts
from tests.scenarios.chance import Flaky, Watched
from tests.scenarios.dsl import Story, cluster, policy

# Shortest time, smallest work.


def _wide_and_narrow(name: str, **options: object) -> Story:
    """One job runs; then 4 GPUs x 100 s and 1 GPU x 300 s ask for the same cluster of four."""
    story = cluster("1x4", policy(name, **options))
    story.job("running", gpus=4, runs_s=50).until(0)
    return story.job("narrow", gpus=1, runs_s=300).job("wide", gpus=4, runs_s=100).until(1)


@pytest.mark.parametrize("name", ["sjf", "wcs_duration"])
def test_by_duration_the_short_wide_job_goes_first(name: str) -> None:
    _wide_and_narrow(name, guard_share=0).until(50).starts("wide")


@pytest.mark.parametrize("name", ["swf", "wcs_workload"])
def test_by_workload_the_long_narrow_job_goes_first(name: str) -> None:
    """300 GPU-seconds against 400."""
    _wide_and_narrow(name, guard_share=0).until(50).starts("narrow")


def test_the_smallest_workload_blocks_the_rest_where_the_queue_is_strict() -> None:
    for queue, started in (("skip", ["small"]), ("strict", [])):
        story = cluster("1x4", policy("swf", queue=queue, guard_share=0))
        story.job("running", gpus=3, runs_s=50).until(0)
        story.job("wide", gpus=4, runs_s=10).job("small", gpus=1, runs_s=45).until(1).starts(*started)


def test_a_job_of_unknown_size_comes_last_by_workload() -> None:
    story = cluster("1x1", policy("swf"))
    story.job("running", runs_s=50).until(0)
    story.job("unknown", runs_s=1, predicted=None).job("known", runs_s=900).until(1)
    story.to_the_end().starts("known", "unknown")


def test_remaining_time_counts_no_gpus_and_remaining_service_does() -> None:
    """400 s on 1 GPU is left of the running job; the newcomer asks for 4 GPUs x 150 s on a cluster of four."""
    for name, displaced in (("srtf", True), ("srsf", False)):
        story = cluster("1x4", policy(name, guard_share=0))
        story.job("narrow", gpus=1, runs_s=400).until(0)
        story.job("wide", gpus=4, runs_s=150).until(1).preempts(*(["narrow"] if displaced else []))


def test_remaining_time_falls_by_a_second_a_second_whatever_the_gang() -> None:
    """At 101 s one GPU's job has 299 s left and that of seven GPUs 301 s: the latter is the worst, and 302 s beat neither."""
    story = cluster("1x8", policy("srtf", guard_share=0))
    story.job("one", gpus=1, runs_s=400).job("seven", gpus=7, runs_s=402).until(0).starts("one", "seven")
    story.job("late", gpus=1, runs_s=302, at_s=101).until(101).preempts()
    story.job("less", gpus=1, runs_s=300.5, at_s=101).until(101).preempts("seven")


def test_remaining_time_pays_for_a_preemption_in_seconds_if_told_to() -> None:
    """0.8 x 1000 s - 60 s = 740 s, on one of four GPUs as on all."""
    for gpus in (1, 4):
        for left_s, displaced in ((739, True), (741, False)):
            story = cluster(
                f"1x{gpus} 1x4:A100",
                policy("srtf", preemption="guided", guard_share=0),
                costs=ExecutorCosts(restart_s=60.0),
            )
            story.job("long", gpus=gpus, runs_s=1000, gpu_type="V100").until(0)
            story.job("new", gpus=gpus, runs_s=left_s, gpu_type="V100").until(0)
            story.preempts(*(["long"] if displaced else []))


# EASY backfilling.


def _textbook(**of_the_candidate: Any) -> Story:
    """Ten GPUs: 6 until 100 s, 2 until 200 s, 2 free; the head asks for 7.

    Its shadow time is 100 s: then 6 + 2 GPUs are free, of which one is extra.
    """
    story = cluster("1x10", policy("easy"))
    story.job("six", gpus=6, runs_s=100).job("two", gpus=2, runs_s=200).until(0).starts("six", "two")
    story.job("head", gpus=7, runs_s=50).job("next", **of_the_candidate)
    return story


@pytest.mark.parametrize(
    ("gpus", "runs_s", "passes"),
    [(2, 90, True), (2, 91, False), (1, 91, True), (1, 10_000, True), (2, 10_000, False), (3, 1, False)],
)
def test_a_job_passes_the_head_if_it_ends_by_its_shadow_time_or_takes_extra_gpus(
    gpus: int, runs_s: float, passes: bool
) -> None:
    """It is 10 s by the clock: 90 s to the shadow time, two GPUs free now, one of them extra."""
    story = _textbook(gpus=gpus, runs_s=runs_s, at_s=10).until(10)
    story.starts(*(["next"] if passes else [])).waits("head", Reason.RESOURCES)
    if not passes:
        story.waits("next", Reason.RESOURCES if gpus > 2 else Reason.PRIORITY)
    story.until(100)
    assert story.record("head").first_started_at_s == 100.0, "the head starts no later than it would have without"


def test_extra_gpus_are_given_once() -> None:
    story = _textbook(gpus=1, runs_s=500).job("other", gpus=1, runs_s=500).job("short", gpus=1, runs_s=100)
    story.until(0).starts("next", "short").waits("other", Reason.RESOURCES)
    story.until(100).starts("head").waits("other", Reason.RESOURCES)
    assert story.record("head").first_started_at_s == 100.0


def test_all_that_end_at_the_shadow_time_leave_extra_gpus() -> None:
    story = cluster("1x10", policy("easy"))
    story.job("a", gpus=5, runs_s=100).job("b", gpus=3, runs_s=100).until(0)
    story.job("head", gpus=7).job("fits", gpus=2, runs_s=900).until(1).starts("fits")  # 2 + 5 = 7, and 3 more
    story.until(100).starts("head")


def test_the_walltime_counts_and_not_the_estimate() -> None:
    """Both run for 10 s and are predicted so; only what they ask for differs. The head's shadow is a walltime too."""
    story = cluster("1x4", policy("easy"))
    story.job("running", gpus=3, runs_s=50, walltime_s=100).until(0)
    story.job("head", gpus=4).job("much", runs_s=10, walltime_s=101).job("little", runs_s=10, walltime_s=100)
    story.until(0).starts("little").waits("much", Reason.RESOURCES)
    story.until(50).finishes("little", "running").starts("head")


def test_without_a_walltime_the_median_of_the_estimate_counts() -> None:
    story = cluster("1x4", policy("easy"))
    story.job("running", gpus=3, runs_s=100, predicted=(10.0, 100.0, 5000.0)).until(0)
    story.job("head", gpus=4).job("long", runs_s=90, predicted=(1.0, 101.0, 102.0))
    story.job("short", runs_s=90, predicted=(1.0, 100.0, 9000.0)).until(0).starts("short")


def test_a_job_that_nobody_can_predict_passes_on_extra_gpus_alone() -> None:
    story = _textbook(gpus=2, runs_s=1, predicted=None).until(0).starts()
    story.job("one", gpus=1, runs_s=1, predicted=None).until(1).starts("one")


def test_nobody_passes_a_head_whose_shadow_time_nobody_knows() -> None:
    story = cluster("1x4", policy("easy"))
    story.job("running", gpus=3, runs_s=50, predicted=None).until(0)
    story.job("head", gpus=2).job("short", runs_s=1).until(0).starts().waits("short", Reason.PRIORITY)
    story.until(50).starts("head", "short")


def test_a_running_job_that_outlives_its_estimate_is_given_double() -> None:
    """Said 100 s, runs 300: from 100 s on it is expected at 200 s, so 80 s fit at 110 s and 100 s do not."""
    for seconds, passes in ((80, True), (100, False)):
        story = cluster("1x4", policy("easy"))
        story.job("liar", gpus=3, runs_s=300, predicted=100).until(0)
        story.job("head", gpus=4).until(1)
        story.job("next", runs_s=seconds, at_s=110).until(110).starts(*(["next"] if passes else []))


def test_gpus_of_a_type_that_the_head_does_not_want_are_free_for_all() -> None:
    story = cluster("1x4 1x2:A100", policy("easy"))
    story.job("running", gpus=3, runs_s=100, gpu_type="V100").until(0)
    story.job("head", gpus=4, gpu_type="V100").job("v", runs_s=500, gpu_type="V100")
    story.job("a", gpus=2, runs_s=500, gpu_type="A100").until(0).starts("a").waits("v", Reason.PRIORITY)


def test_a_tensor_group_at_the_head_leaves_nothing_extra() -> None:
    """At 100 s a whole server is free, and a GPU more on the other: but a count does not say which."""
    graph, config = StageGraph((Stage("s", 0.1, 0.2, 1000),), ()), ParallelismConfig((1,), (4,))
    story = cluster("2x4", policy("easy"))
    story.job("a", gpus=3, runs_s=100).job("b", gpus=3, runs_s=200).until(0)
    story.job("head", gpus=4, runs_s=10, stage_graph=graph, parallelism=config)
    story.job("long", runs_s=500).job("short", runs_s=90).until(0).starts("short").waits("head", Reason.RESOURCES)


@pytest.mark.parametrize(
    ("gangs", "head"),
    [
        (Gangs.ANY, {"topology": Topology(Level.SERVER)}),
        (Gangs.ANY, {"servers": 1}),
        (Gangs.ONE_SERVER, {}),
    ],
)
def test_a_head_that_must_be_on_one_server_leaves_nothing_extra(gangs: Gangs, head: dict[str, Any]) -> None:
    """At 100 s the first server is free, and a GPU more on the other; "long" would take one of the first."""
    story = cluster("2x4", policy("easy"), gangs=gangs)
    story.job("a", gpus=3, runs_s=100).job("b", gpus=3, runs_s=1000).until(0).on("a", 0)
    story.job("head", gpus=4, runs_s=10, **head).job("long", runs_s=2000).until(1).starts()
    story.waits("long", Reason.PRIORITY).until(100).finishes("a").starts("head", "long").on("head", 0)


def test_gpus_of_servers_that_are_closed_to_the_head_are_not_extra() -> None:
    """At 100 s the head fits on the first server. The two free GPUs of the other are not for it, so they replace none there."""
    story = cluster("2x4", policy("easy"))
    story.reserve(1, from_s=0, until_s=10_000, user="other").until(0)
    story.job("a", gpus=3, runs_s=100).job("others", user="other", gpus=2, runs_s=1000).until(0)
    story.starts("a", "others").on("a", 0).on("others", 1)
    story.job("head", gpus=4, runs_s=10).job("long", runs_s=2000).until(1).starts().waits("long", Reason.PRIORITY)
    story.until(100).finishes("a").starts("head").on("head", 0)


def test_without_a_shadow_time_nobody_takes_any_type_that_the_head_takes() -> None:
    """The jobs of two GPUs would keep the A100s busy for ever. The head prefers V100s, which are busy until nobody knows when."""
    story = cluster("1x4:V100 1x4:A100 1x4:T4", policy("easy"))
    story.job("v", gpus=4, runs_s=10_000, predicted=None, gpu_type="V100")
    story.job("a", gpus=2, runs_s=100, predicted=None, gpu_type="A100").until(0).starts("v", "a")
    story.job("head", gpus=4, gpu_type="V100", gpu_type_fallbacks=("A100",))
    for number in range(4):
        story.job(f"a{number}", gpus=2, runs_s=100, at_s=2 + 50 * number, gpu_type="A100", predicted=None)
    story.job("t", gpus=2, runs_s=100, at_s=2, gpu_type="T4", predicted=None).until(99).starts("t")
    story.until(100).finishes("a").starts("head").on("head", 1)


def test_nobody_waits_for_a_job_that_no_server_can_hold_today() -> None:
    story = cluster("2x4", policy("easy"))
    story.drain(1).until(0)
    story.job("wide", gpus=6).job("long", gpus=2, runs_s=900).until(1).starts("long")
    story.waits("wide", Reason.NO_SUCH_SERVERS)


def test_shorter_jobs_of_one_size_pass_those_before_them_that_would_delay_the_head() -> None:
    story = cluster("1x4", policy("easy"))
    story.job("running", gpus=3, runs_s=100).until(0)
    story.job("head", gpus=4).job("long", runs_s=101).job("short", runs_s=99).until(0).starts("short")


class ShadowsKept(Watched):
    """Notes the earliest shadow time that was ever computed for each job at the head."""

    def __init__(self, inner: Policy[Any]) -> None:
        Watched.__init__(self, inner)
        self.promised_s: dict[JobId, float] = {}

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        decision = Watched.decide(self, view, changes, state)
        placed = {action.job for action in decision.actions}
        waiting = sorted((job.submitted_at_s, job.id) for job in view.jobs.values() if job.waiting)
        if state.head is not None and state.head.shadow_s is not None:
            head = next(job for _, job in waiting if job not in placed)
            self.promised_s[head] = min(state.head.shadow_s, self.promised_s.get(head, math.inf))
        return decision


@given(
    st.lists(
        st.tuples(st.integers(0, 100), st.sampled_from((1, 1, 2, 3, 5, 8)), st.integers(1, 60)),
        min_size=8,
        max_size=25,
    ),
    st.sampled_from(("1x8", "2x4")),
)
@settings(max_examples=40, deadline=None)
def test_nobody_who_passes_delays_the_head(jobs: list[tuple[int, int, int]], shape: str) -> None:
    watched = ShadowsKept(policy("easy"))
    story = cluster(shape, watched)
    for number, (at_s, gpus, runs_s) in enumerate(sorted(jobs)):
        story.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=at_s)
    story.to_the_end()
    started_s = {job.id: job.first_started_at_s for job in story.memory.jobs(sorted(story.ids.values()))}
    assert {job: at_s for job, at_s in watched.promised_s.items() if (started_s[job] or 0.0) > at_s} == {}


def test_only_the_first_so_many_of_a_size_are_looked_at() -> None:
    for before, passes in ((PASSING_PER_CLASS_MAX, True), (PASSING_PER_CLASS_MAX + 1, False)):
        story = cluster("1x4", policy("easy"))
        story.job("running", gpus=3, runs_s=100).until(0)
        story.job("head", gpus=4)
        for number in range(before):
            story.job(f"long{number}", runs_s=101)
        story.job("short", runs_s=99).until(0).starts(*(["short"] if passes else []))


# 2D-Gittins.


def _history(name: str, *seconds: float) -> Story:
    """One GPU, on which jobs of these durations have run before anything else."""
    story = cluster("1x1", policy(name, guard_share=0, preemption="guided"))
    for number, runs_s in enumerate(seconds):
        story.job(f"past{number}", runs_s=runs_s, predicted=None)
    return story.to_the_end()


def test_a_job_that_has_outlived_the_short_mode_makes_way() -> None:
    """Half of the past jobs took 10 s and half 1000 s: after 20 s only long ones are left, before that most are short.

    By attained service alone the newcomer would have come first at once.
    """
    story = _history("gittins", *[10, 1000] * 8)
    now_s = story.clock.now_s()
    story.job("old", runs_s=1000, predicted=None).until(now_s).starts("old")
    story.job("early", runs_s=10, predicted=None, at_s=now_s + 5).until(now_s + 6).preempts()
    story.until(now_s + 30).preempts("old").starts("early", "old")
    assert 10 < story.record("old").held_gpu_s <= 20, "what it had when it was stopped"


def test_until_enough_jobs_have_ended_the_least_attained_service_comes_first() -> None:
    story = _history("gittins", *[10, 1000] * 7)
    now_s = story.clock.now_s()
    story.job("old", runs_s=1000, predicted=None).until(now_s)
    story.job("early", runs_s=10, predicted=None, at_s=now_s + 5).until(now_s + 5).preempts("old")


def test_a_distribution_of_its_own_counts_more_than_the_clusters_and_a_point_nothing() -> None:
    story = _history("gittins", *[100] * 16)
    now_s = story.clock.now_s()
    story.job("running", runs_s=60, predicted=None).until(now_s)
    story.job("point", runs_s=1, predicted=1).job("two", runs_s=9, predicted=(90.0, 90.5)).job(
        "worse", runs_s=5, predicted=(300.0, 300.5)
    )
    story.until(now_s + 59).to_the_end().starts("two", "point", "worse")


def test_what_was_learnt_survives_a_restart_of_the_service() -> None:
    story = _history("gittins", *[10, 1000] * 8)
    dump = story.engine.dump()
    assert sorted(gpu_s for _, gpu_s in dump["ended_gpu_s"]) == [10.0] * 8 + [1000.0] * 8
    assert dump["points_gpu_s"] == [10.0] * 8 + [1000.0] * 8
    assert story.policy.rebuild(story.engine.world, dump).dump() == dump


def test_a_job_that_never_ran_teaches_nothing() -> None:
    story = cluster("1x1", policy("gittins"))
    story.job("running", runs_s=50, predicted=None).job("gone").until(0)
    story.cancel("gone").until(60).finishes("running")
    assert story.engine.dump()["ended_gpu_s"] == [[1, 50.0]]


# Max-min over users.


def test_the_user_who_has_had_least_goes_first() -> None:
    story = cluster("1x1", policy("fair", guard_share=0))
    story.job("a1", user="ann", runs_s=100)
    for number in range(2, 5):
        story.job(f"a{number}", user="ann", runs_s=100)
    story.job("b1", user="bob", runs_s=100).job("c1", user="cem", runs_s=20).job("c2", user="cem", runs_s=100)
    # Ann has had 100 when Bob starts; Cem 20 after his first job, less than Bob's and Ann's 100.
    story.to_the_end().starts("a1", "b1", "c1", "c2", "a2", "a3", "a4")


def test_gpus_count_as_seconds_do() -> None:
    """Ann holds four GPUs for 100 s, Bob one for 300 s: Bob has had less."""
    story = cluster("1x5", policy("fair", guard_share=0))
    story.job("a1", user="ann", gpus=4, runs_s=300).job("b1", user="bob", runs_s=300).until(0)
    story.job("a2", user="ann", gpus=5, runs_s=1).job("b2", user="bob", gpus=5, runs_s=1).until(1)
    story.to_the_end().starts("b2", "a2")


def test_a_waiting_users_order_changes_while_others_jobs_run() -> None:
    """When both asked, Ann had had more; by the time a GPU is free Bob's running job has overtaken her."""
    story = cluster("1x2", policy("fair", guard_share=0))
    story.job("a1", user="ann", runs_s=100).job("b1", user="bob", runs_s=10).until(10)
    story.job("b2", user="bob", runs_s=1000).until(100).finishes("a1")
    story.job("c1", user="cem", runs_s=200).until(101)
    story.job("b3", user="bob").job("a2", user="ann").until(102)
    story.until(301).finishes("c1").starts("a2")


def test_accounts_survive_the_jobs_and_a_restart() -> None:
    story = cluster("1x1", policy("fair", guard_share=0))
    story.job("a1", user="ann", runs_s=500).job("b1", user="bob", runs_s=50).to_the_end()
    dump = story.engine.dump()
    assert (dump["had_gpu_s"], dump["closing"]) == ({"ann": 500.0}, [[2, "bob", 50.0]])
    state = story.policy.rebuild(story.engine.world, dump)
    assert {user: account.line.at(550.0) for user, account in state.accounts.items()} == {"ann": 500.0, "bob": 50.0}
    state.settle()
    assert state.dump()["had_gpu_s"] == {"ann": 500.0, "bob": 50.0}


def test_jobs_of_nobody_count_for_their_project() -> None:
    story = cluster("1x1", policy("fair", guard_share=0))
    for name, project in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        story.job(name, user="", project=project, runs_s=100)
    story.to_the_end().starts("a1", "b1", "a2")


# Memory.


def test_fair_counts_what_ended_jobs_held_before_a_restart() -> None:
    story = cluster("1x8", policy("fair"), settings=EngineSettings(dump_every_s=30.0))
    story.job("days", user="alice", gpus=8, runs_s=200_000).until(0)
    story.job("tiny", user="bob", gpus=1, runs_s=5, at_s=100_000).until(100_000)
    story.until(200_000).finishes("days").starts("tiny")
    story.restart()
    held = {account.name: account.used_gpu_s for account in story.engine.shares().users}
    assert held["alice"] == pytest.approx(8 * 200_000)
    story.restart()
    assert story.engine.shares().users[0].used_gpu_s == pytest.approx(8 * 200_000), "also twice"


def test_fair_counts_up_to_the_dump_what_a_job_held_that_ended_later() -> None:
    story = cluster("1x8", policy("fair"), settings=EngineSettings(dump_every_s=100.0))
    story.job("days", user="alice", gpus=4, runs_s=1_010).until(0)
    story.job("tiny", user="bob", gpus=1, runs_s=5, at_s=1_000).until(1_000)
    story.until(1_010).finishes("tiny", "days")
    story.restart()
    held = {account.name: account.used_gpu_s for account in story.engine.shares().users}
    assert held["alice"] == pytest.approx(4 * 1_000)


def _many_users(seed: int, chosen: Policy[Any], store: Flaky | None = None) -> Story:
    """The contract's crowd is one user's, and too small for a distribution: here are several users, and jobs that end early."""
    dice = random.Random(seed)
    story = cluster("2x4", chosen, store=store, settings=EngineSettings(dump_every_s=0.0))
    if store is not None:
        story.memory = store.inner
    for number, at_s in enumerate(sorted(dice.randrange(1500) for _ in range(60))):
        runs_s = dice.choice((2, 9, 40, 180))
        story.job(
            f"j{number}",
            user=dice.choice("abcd"),
            gpus=dice.choice((1, 1, 2, 4, 8)),
            runs_s=runs_s,
            at_s=at_s,
            predicted=dice.choice((None, runs_s, runs_s * 2, (runs_s / 2, runs_s, runs_s * 4))),
            walltime_s=dice.choice((None, 600.0)),
            max_retries=1000,
        )
    return story


class DumpsAgree(Watched):
    """A twin that is rebuilt before each decision knows as much after it."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        twin = self.inner.rebuild(view, state.dump())
        decision = Watched.decide(self, view, changes, state)
        self.inner.decide(view, (), twin)
        assert _known(twin, view.now_s) == _known(state, view.now_s)
        return decision


def _known(state: Any, now_s: float) -> object:
    if isinstance(state, FairState):
        known = {user: (account.line.at(now_s), account.level) for user, account in state.accounts.items()}
        return {user: had for user, had in known.items() if had[0]}
    if isinstance(state, GittinsState):
        return sorted(state.ended_gpu_s.items()), state.points_gpu_s, state.unseen
    return list(state.ends), state.head


@pytest.mark.parametrize("name", ["fair", "easy", "gittins"])
@pytest.mark.parametrize("seed", range(3))
def test_with_many_users_it_decides_as_if_it_had_just_been_rebuilt(name: str, seed: int) -> None:
    story = _many_users(seed, DumpsAgree(make_policy(name), rebuilt=True)).to_the_end()
    assert len(story.told.learnt) == 60


@pytest.mark.parametrize("name", ["fair", "gittins"])
@pytest.mark.parametrize("seed", range(3))
def test_what_ended_counts_once_although_transactions_fail(name: str, seed: int) -> None:
    flaky = Flaky(seed, failing=0.0, stale=0.3)
    story = _many_users(seed, policy(name), flaky)
    flaky.failing = 0.05
    story.to_the_end()
    assert flaky.bumped > 10
    flaky.failing = 0.0
    ended = story.memory.jobs(sorted(story.ids.values()))
    state = story.policy.rebuild(story.engine.world, story.engine.dump())
    if isinstance(state, GittinsState):
        assert state.ended_gpu_s == {job.id: job.held_gpu_s for job in ended}
    else:
        for user, account in state.accounts.items():
            assert account.line.at(story.clock.now_s()) == sum(job.held_gpu_s for job in ended if job.spec.user == user)
