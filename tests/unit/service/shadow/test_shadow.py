"""Shadow policy: correct counts of agreement, and no effect on the first policy."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ranked
from policies.base import Policy
from policies.builtin import las
from policies.model.decision import Change, ChangeKind, Decision
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import ServerShare, place
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView
from policies.registry import BUILT_IN
from service.engine.watch import WatchingPolicy, unwatched
from service.engine.world import World
from service.shadow.agreement import Agreement, SavedAgreement, Totals, Unwanted, Wish
from service.shadow.comparison import Comparison
from service.shadow.decider import View
from service.shadow.shadow import Shadow, Status
from tests.conformance.policy_suite import disturb, history
from tests.local_shadow import local_shadow
from tests.scenarios.chance import Flaky, Watched, crowd
from tests.scenarios.dsl import Story, cluster, policy

NAMES = sorted(BUILT_IN)
SEEDS = st.integers(min_value=0, max_value=10**9)


def beside(first: str, shadow: str | Policy[Any], **options: object) -> Shadow:
    other = policy(shadow, **options) if isinstance(shadow, str) else shadow
    return local_shadow(policy(first), other)


def agreement(story: Story) -> Agreement:
    assert isinstance(story.policy, Shadow)
    return story.policy.agreement(story.engine.world)


def opinion_of(shadow: Shadow, world: World, job: JobId) -> Wish | Unwanted | Explanation | None:
    return shadow.opinion(world, job, shadow.request_explanation(world, job) if job in world.jobs else None)


def totals(story: Story) -> Totals:
    return agreement(story).totals


def starts(story: Story) -> tuple[int, int, int]:
    tally = totals(story).starts
    return tally.both, tally.first_only, tally.shadow_only


def stops(story: Story) -> tuple[int, int, int]:
    tally = totals(story).preemptions
    return tally.both, tally.first_only, tally.shadow_only


# Counted by hand.


def test_fifo_beside_sjf() -> None:
    """Both come at once on 4 GPUs: the first in line takes 100 s, the other 10 s."""
    story = cluster("1x4", beside("fifo", "sjf"))
    story.job("long", gpus=4, runs_s=100.0).job("short", gpus=4, runs_s=10.0)
    story.until(0)
    # Only FIFO starts the long one, only SJF the short one.
    assert starts(story) == (0, 1, 1)
    assert agreement(story).since_s == 0.0
    unwanted = agreement(story).unwanted[story.ids["long"]]
    assert (unwanted.since_s, unwanted.gpus) == (0.0, 4)
    # What it would have started says why; there is no need to ask.
    assert (unwanted.shadow, unwanted.instead) == (None, (story.ids["short"],))
    story.until(50)
    # On the GPUs that are taken SJF would not start anything either.
    assert agreement(story).wished_starts == {}
    assert totals(story).starts.first_only_gpu_s == 4 * 50.0
    story.to_the_end()
    counts = totals(story)
    assert starts(story) == (1, 1, 1)
    assert counts.starts.agreement_ratio == pytest.approx(1 / 3)
    assert (counts.starts.both_gpu_s, counts.starts.first_only_gpu_s, counts.starts.shadow_only_gpu_s) == (
        40.0,
        400.0,
        0.0,
    )
    assert (counts.same_placement, counts.skipped) == (1, 0)
    # SJF would have started the short one at once, FIFO did so after 100 s.
    assert (counts.granted_later, counts.granted_later_s) == (1, 100.0)
    assert agreement(story).unwanted == {}
    newest, oldest = agreement(story).differences[0], agreement(story).differences[-1]
    assert newest is oldest
    assert (oldest.at_s, oldest.cycle) == (0.0, None)
    assert (oldest.starts_both, oldest.starts_first, oldest.starts_shadow) == (0, (1,), (2,))


def test_a_start_that_the_shadow_would_delay_is_explained() -> None:
    """A-SRPT's gate is shut for all four; two are asked about, and the answer was true before they started."""
    story = cluster("1x4", beside("fifo", "asrpt", preemption="never"))
    for name in "abcd":
        story.job(name, gpus=1, runs_s=100.0)
    story.until(1)
    assert len(agreement(story).unwanted) == 4
    explanations = [each.shadow for each in agreement(story).unwanted.values()]
    assert [each is not None for each in explanations] == [True, True, False, False]
    assert explanations[0] is not None
    assert (explanations[0].reason, explanations[0].gpus_free) == (Reason.VIRTUAL_GATE, 4)


def test_a_wish_that_lasts_several_cycles_counts_once() -> None:
    """Strict FIFO lets nobody pass the blocked head; backfill would start "small" from 20 s on."""
    story = cluster("1x4", beside("fifo", "fifo_backfill"))
    story.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    story.job("small", gpus=2, runs_s=20.0, at_s=20.0).job("other", gpus=4, runs_s=1.0, at_s=30.0)
    story.until(60)
    assert starts(story) == (1, 0, 1)
    wish = agreement(story).wished_starts[story.ids["small"]]
    assert (wish.since_s, wish.gpus) == (20.0, 2)
    assert wish.placement is not None
    assert wish.placement.servers == (0,)
    assert totals(story).starts.shadow_only_gpu_s == 2 * 40.0
    assert len(agreement(story).differences) == 1
    # At 100 s both start the head, and "small" has no GPUs any more.
    story.until(110)
    assert starts(story) == (2, 0, 1)
    assert totals(story).starts.shadow_only_gpu_s == 2 * 80.0
    # At 150 s, when the head has ended, it would start again: still the same job that it would have started at 20 s.
    story.until(150)
    assert (starts(story), totals(story).granted_later, totals(story).granted_later_s) == ((3, 0, 1), 1, 130.0)
    story.to_the_end()
    assert (starts(story), totals(story).granted_later) == ((4, 0, 1), 1)


def test_a_wished_start_that_the_first_policy_makes_later_is_counted_with_its_delay() -> None:
    """When the head is cancelled at 70 s FIFO starts what backfill has wished for since 20 s."""
    story = cluster("1x4", beside("fifo", "fifo_backfill"))
    story.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    story.job("small", gpus=2, runs_s=20.0, at_s=20.0)
    story.until(70).cancel("head").until(70).starts("small")
    assert (starts(story), totals(story).granted_later, totals(story).granted_later_s) == ((2, 0, 1), 1, 50.0)
    assert totals(story).starts.shadow_only_gpu_s == 2 * 50.0
    story.until(80)
    assert totals(story).starts.shadow_only_gpu_s == 2 * 50.0
    assert agreement(story).wished_starts == {}


@pytest.mark.parametrize("event", ["cancel", "hold"])
def test_a_wish_ends_with_its_job(event: str) -> None:
    story = cluster("1x4", beside("fifo", "fifo_backfill"))
    story.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    story.job("small", gpus=2, runs_s=20.0, at_s=20.0)
    getattr(story.until(70), event)("small").until(70)
    assert agreement(story).wished_starts == {}
    assert len(agreement(story).saved().first_wished) == (event == "hold"), "a held job may come back"
    story.until(90)
    assert totals(story).starts.shadow_only_gpu_s == 2 * 50.0


def test_preemptions_of_the_shadow_alone_are_counted() -> None:
    """SJF lets the long job run; SRTF would stop it at 100 s, and lose 4 x 100 GPU-seconds that no checkpoint holds."""
    story = cluster("1x4", beside("sjf", "srtf", preemption="always"))
    story.job("long", gpus=4, runs_s=1000.0, preemption=None).job("short", gpus=4, runs_s=10.0, at_s=100.0)
    story.job("later", gpus=4, runs_s=2000.0, at_s=150.0)
    story.until(100).until(200)
    assert stops(story) == (0, 0, 1)
    assert totals(story).preemptions.shadow_only_gpu_s == 400.0
    wish = agreement(story).wished_stops[story.ids["long"]]
    assert (wish.since_s, wish.gpus, wish.for_job, wish.placement) == (100.0, 4, story.ids["short"], None)
    # It is gone while nobody shorter waits, and when it comes back it is counted already.
    story.hold("short").until(210)
    assert agreement(story).wished_stops == {}
    story.release("short").until(220)
    assert agreement(story).wished_stops[story.ids["long"]].since_s == 220.0
    assert stops(story) == (0, 0, 1)
    story.to_the_end()
    assert stops(story) == (0, 0, 1)
    assert agreement(story).wished_stops == {}


def test_a_wished_stop_counts_again_for_the_next_attempt() -> None:
    story = cluster("1x4", beside("sjf", "srtf", preemption="always"))
    story.job("long", gpus=4, runs_s=1000.0).job("short", gpus=4, runs_s=10.0, at_s=100.0).until(99).until(110)
    assert stops(story) == (0, 0, 1)
    story.hold("short").crash("long").until(120).starts("long")
    story.release("short").until(130)
    assert stops(story) == (0, 0, 2)


def test_preemptions_of_the_first_policy_alone_are_counted() -> None:
    story = cluster("1x4", local_shadow(policy("srtf", preemption="always"), policy("sjf")))
    story.job("long", gpus=4, runs_s=1000.0).job("short", gpus=4, runs_s=10.0, at_s=100.0)
    story.until(99).until(100).preempts("long").starts("short")
    assert (stops(story), starts(story)) == ((0, 1, 0), (2, 0, 0))
    # It is graceful: nothing is lost.
    assert totals(story).preemptions.first_only_gpu_s == 0.0


def test_a_preemption_by_both_policies_counts_as_agreement() -> None:
    story = cluster("1x4", local_shadow(policy("srtf", preemption="always"), policy("srsf", preemption="always")))
    story.job("long", gpus=4, runs_s=1000.0).job("short", gpus=4, runs_s=10.0, at_s=100.0)
    story.to_the_end()
    assert (stops(story), starts(story)) == ((1, 0, 0), (3, 0, 0))
    assert totals(story).preemptions.agreement_ratio == 1.0


def placed(*servers: tuple[int, int]) -> Any:
    return place([ServerShare(ServerIndex(server), gpus) for server, gpus in servers])


def test_placements_of_starts_by_both_policies_are_compared() -> None:
    made = placed((0, 2), (1, 2))
    pairs = [made, placed((0, 4)), placed((0, 1), (1, 1), (2, 2)), placed((0, 2), (2, 2)), placed((0, 1), (1, 3))]
    numbers = [JobId(number) for number in range(len(pairs))]
    seen = Comparison(
        0.0,
        dict.fromkeys(numbers, made),
        dict(zip(numbers, pairs, strict=True)),
        {},
        {},
        dict.fromkeys(numbers, 4),
        {},
        {},
    )
    agreement = Agreement(SavedAgreement(0.0, 0.0))
    agreement.count(seen)
    counts = agreement.totals
    assert (counts.same_placement, counts.fewer_servers, counts.more_servers, counts.other_servers) == (1, 1, 1, 2)
    assert (counts.starts.both, len(agreement.differences)) == (5, 0)


def test_a_committed_cycle_has_its_number() -> None:
    story = cluster("1x4", beside("fifo", "sjf"))
    story.job("long", gpus=4, runs_s=100.0).job("short", gpus=4, runs_s=10.0)
    story.until(0)
    shadow = story.policy
    assert isinstance(shadow, Shadow)
    shadow.committed(7)  # the pass with the difference is over: this is a later one's
    assert agreement(story).differences[0].cycle is None
    story = cluster("1x4", beside("fifo", "sjf"))
    shadow = story.policy
    assert isinstance(shadow, Shadow)
    story.job("long", gpus=4, runs_s=100.0).job("short", gpus=4, runs_s=10.0)
    story.clock.advance(0.0)
    story.cycle()
    shadow.committed(1)
    assert agreement(story).differences[0].cycle == 1


# Opinions of jobs.


def test_opinions_of_running_waiting_and_held_jobs() -> None:
    story = cluster("1x4", beside("fifo", "fifo_backfill"))
    story.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    story.job("small", gpus=2, runs_s=20.0, at_s=20.0).job("held", gpus=1, at_s=20.0, hold=True)
    story.until(30)
    shadow, world = story.policy, story.engine.world
    assert isinstance(shadow, Shadow)
    runs, head, small, held = (opinion_of(shadow, world, job) for job in story.ids.values())
    assert isinstance(runs, Explanation) and isinstance(head, Explanation)
    assert isinstance(small, Wish) and small.placement is not None
    assert (head.reason, head.jobs_ahead) == (Reason.RESOURCES, 0)
    assert held is None
    assert story.engine.explain(story.ids["small"]).reason is Reason.QUEUE_HEAD_BLOCKED


def test_an_opinion_is_about_the_world_after_the_newest_cycle() -> None:
    """The copy that the shadow decided about lacks the start of the job."""
    story = cluster("1x4", beside("fifo", "fifo")).job("a", gpus=4, runs_s=100.0)
    story.clock.advance(0.0)
    story.cycle()
    shadow = story.policy
    assert isinstance(shadow, Shadow)
    opinion = opinion_of(shadow, story.engine.world, story.ids["a"])
    assert isinstance(opinion, Explanation)
    assert opinion == story.engine.explain(story.ids["a"])
    assert opinion.reason is Reason.STARTED


# Properties under random faults.


def fuzzed(seed: int, shadow: Policy[Any], *, failing: float = 0.0) -> Story:
    """Stale rows, crashes, holds, and if asked for transactions that fail."""
    flaky = Flaky(seed, failing=0.0, stale=0.15)
    story = crowd(seed, shadow, store=flaky)
    flaky.failing = failing
    disturb(story, seed)
    flaky.failing = flaky.stale = 0.0
    return story.to_the_end()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(SEEDS)
def test_a_policy_agrees_with_itself(name: str, seed: int) -> None:
    story = fuzzed(seed, beside(name, name))
    counts = totals(story)
    assert counts.starts.both > 0
    assert (counts.starts.first_only, counts.starts.shadow_only) == (0, 0)
    assert (counts.preemptions.first_only, counts.preemptions.shadow_only) == (0, 0)
    assert counts.same_placement == counts.starts.both
    assert (agreement(story).wished_starts, agreement(story).unwanted, list(agreement(story).differences)) == (
        {},
        {},
        [],
    )


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), SEEDS)
def test_the_shadow_decides_as_a_policy_rebuilt_from_the_same_world(first: str, other: str, seed: int) -> None:
    """Refused at every turn, it keeps its book right; and it changes nothing that it is lent."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (ranked, las):
            monkeypatch.setattr(module, "REFRESH_S_MIN", 1e-6)
        shadow = beside(first, Watched(policy(other), rebuilt=True))
        story = fuzzed(seed, shadow, failing=0.03)
    assert shadow.status is Status.WATCHING, shadow.reason
    assert shadow.rejected == 0
    counts = agreement(story)
    assert (counts._agreed, counts.unwanted, counts.wished_starts) == ({}, {}, {})
    assert (counts._gpus_agreed, counts._gpus_unwanted, counts._gpus_wished) == (0, 0, 0)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), SEEDS)
def test_agreed_and_unwanted_gpu_seconds_sum_to_those_held(first: str, other: str, seed: int) -> None:
    story = crowd(seed, beside(first, other)).to_the_end()
    counts = totals(story).starts
    held_gpu_s = sum(story.record(name).held_gpu_s for name in story.ids)
    assert counts.both_gpu_s + counts.first_only_gpu_s == pytest.approx(held_gpu_s)
    assert counts.both + counts.first_only == sum(story.record(name).attempts for name in story.ids)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), SEEDS)
def test_a_start_that_was_rolled_back_is_not_counted(first: str, other: str, seed: int) -> None:
    story = crowd(seed, beside(first, other), store=Flaky(seed, failing=0.0, stale=0.2)).to_the_end()
    counts = totals(story).starts
    assert counts.both + counts.first_only == sum(story.record(name).attempts for name in story.ids)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), SEEDS)
def test_the_first_policy_decides_as_without_a_shadow(first: str, other: str, seed: int) -> None:
    alone, watched = Watched(policy(first)), Watched(policy(first))
    plain = fuzzed(seed, alone, failing=0.03)
    shadowed = fuzzed(seed, local_shadow(watched, policy(other)), failing=0.03)
    assert history(plain) == history(shadowed)
    assert repr(alone.decisions) == repr(watched.decisions)


# Around it.


def test_a_restart_without_a_file_counts_from_zero() -> None:
    story = cluster("1x4", beside("asrpt", "asrpt"))
    story.job("a", gpus=4, runs_s=100.0).job("b", gpus=2, runs_s=50.0, at_s=10.0).job("c", gpus=2, at_s=20.0)
    story.until(30)
    story.policy = beside("asrpt", "asrpt")
    story.restart().to_the_end()
    assert agreement(story).since_s == 30.0
    both, first_only, shadow_only = starts(story)
    assert both > 0
    assert (first_only, shadow_only) == (0, 0)


def test_the_shadow_receives_a_refusal_for_each_action_that_was_not_taken() -> None:
    refusals: list[Change] = []

    class Listening(WatchingPolicy):
        def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
            refusals.extend(change for change in changes if change.kind is ChangeKind.REFUSED)
            return super().decide(view, changes, state)

    story = cluster("1x4", beside("fifo", Listening(policy("sjf"))))
    story.job("long", gpus=4, runs_s=100.0).job("short", gpus=4, runs_s=10.0).until(1)
    assert refusals == [Change(ChangeKind.REFUSED, story.ids["short"], reason=Reason.REFUSED)]


def test_a_view_shows_the_world_at_its_instant() -> None:
    story = cluster("2x4", policy("fifo")).job("a", gpus=6, runs_s=100.0).until(5)
    world = story.engine.world
    view = View(world)
    assert (view.now_s, view.cluster, view.costs) == (5.0, world.cluster, world.costs)
    assert dict(view.jobs) == world.jobs
    assert [view.free_gpus(ServerIndex(server)) for server in (0, 1)] == [0, 2]
    assert view.usable_gpus(ServerIndex(1)) == 4
    assert list(view.holding()) == [story.ids["a"]]
    view.now_s = 99.0
    assert world.now_s == 5.0


def test_unwatched_returns_the_innermost_policy() -> None:
    inner = policy("fifo")
    assert unwatched(local_shadow(WatchingPolicy(inner), policy("sjf"))) is inner
    assert unwatched(inner) is inner
