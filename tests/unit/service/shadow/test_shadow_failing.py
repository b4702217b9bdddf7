"""A shadow policy that raises, breaks invariants, writes to its world or hangs. The live policy is not affected."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from policies.base import Policy
from policies.model.decision import Change, Decision, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.shadow.decider import NoAnswer, Request
from service.shadow.shadow import OVERRUNS_MAX, PAUSE_S, Shadow, Status
from tests.conformance.policy_suite import history
from tests.local_shadow import LocalWorker, local_shadow
from tests.scenarios.chance import crowd
from tests.scenarios.dsl import cluster, policy
from tests.unit.service.shadow.test_shadow import agreement, beside, opinion_of, placed, starts, totals


class Broken(WatchingPolicy):
    """A policy in which something happens before its n-th decision (n counted from 0) and every later one."""

    def __init__(self, inner: Policy[Any], happens: Callable[[ClusterView], object], nth: int = 10) -> None:
        super().__init__(inner)
        self.decisions = self.rebuilds = 0
        self.happens = happens
        self.nth = nth

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        self.rebuilds += 1
        return super().rebuild(view, dump)

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        self.decisions += 1
        if self.decisions > self.nth:
            self.happens(view)
        return super().decide(view, changes, state)


def _raise(view: ClusterView) -> None:
    raise ValueError("no idea")


def _write(view: ClusterView) -> None:
    view.jobs.clear()  # type: ignore[attr-defined]


def _bind(view: ClusterView) -> None:
    view.bind(JobId(1), None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (_raise, "it failed: ValueError: no idea"),
        (_write, "it failed: AttributeError: 'mappingproxy' object has no attribute 'clear'"),
        (_bind, "it failed: AttributeError: 'View' object has no attribute 'bind'"),
    ],
)
def test_an_exception_switches_the_shadow_off_and_the_first_policy_decides_the_same(
    happens: Callable[[ClusterView], object], expected: str
) -> None:
    warnings: list[tuple[str, BaseException | None]] = []
    broken = Broken(policy("sjf"), happens)
    shadow = local_shadow(policy("asrpt"), broken, warn=lambda *warning: warnings.append(warning))
    story = crowd(1, shadow).to_the_end()
    assert history(story) == history(crowd(1, policy("asrpt")).to_the_end())
    assert (shadow.status, shadow.reason, shadow.failures) == (Status.DISABLED, expected, 1)
    assert broken.decisions == 11
    ((message, error),) = warnings
    assert message == f"the shadow policy sjf is switched off: {expected}"
    assert isinstance(error, Exception)
    assert totals(story).passes == 10
    assert opinion_of(shadow, story.engine.world, JobId(1)) is None


def test_an_exception_in_rebuild_or_explain_switches_the_shadow_off() -> None:
    class NoStart(WatchingPolicy):
        def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
            raise KeyError("lost")

    shadow = local_shadow(policy("fifo"), NoStart(policy("fifo")))
    cluster("1x4", shadow).job("a").to_the_end()
    assert (shadow.status, shadow.reason) == (Status.DISABLED, "it failed: KeyError: 'lost'")

    class NoExplanation(WatchingPolicy):
        def explain(self, view: ClusterView, state: Any, job: JobId) -> Explanation:
            raise KeyError("why")

    shadow = local_shadow(policy("fifo"), NoExplanation(policy("fifo")))
    story = cluster("1x4", shadow).job("a", gpus=4).until(0)
    assert opinion_of(shadow, story.engine.world, story.ids["a"]) is None
    assert shadow.status is Status.DISABLED


def test_a_decision_that_breaks_an_invariant_is_rejected_and_not_counted() -> None:
    class Greedy(WatchingPolicy):
        """Starts every waiting job on the first server, even if its GPUs are taken."""

        def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
            super().decide(view, changes, state)
            waiting = [job for job in view.jobs.values() if job.waiting]
            return Decision([Start(job.id, placed((0, job.spec.gpus))) for job in waiting])

    shadow = beside("fifo", Greedy(policy("fifo")))
    story = cluster("1x4", shadow).job("a", gpus=4).job("b", gpus=4).job("c", gpus=4, at_s=15.0).to_the_end()
    assert shadow.status is Status.WATCHING
    # With two in the queue at 0 and 15 s; alone, "b" and then "c" are started on a server that is taken.
    assert shadow.rejected > 1
    assert starts(story) == (2, 1, 0)


@pytest.mark.parametrize("nonsense", [None, Decision([None]), Decision([Start(JobId(1), None)]), "start"])  # type: ignore[list-item,arg-type]
def test_a_value_that_is_no_decision_switches_the_shadow_off(nonsense: Any) -> None:
    class Invalid(WatchingPolicy):
        def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Any:
            return nonsense

    shadow = beside("fifo", Invalid(policy("fifo")))
    cluster("1x4", shadow).job("a", gpus=4).job("b", gpus=4).until(0).starts("a").to_the_end().finishes("a", "b")
    assert (shadow.status, shadow.failures) == (Status.DISABLED, 1)


class LateWorker(LocalWorker):
    """A worker that gives no answer in time: while ``late``, and to every ``every``-th request."""

    def __init__(self, every: int = 0) -> None:
        super().__init__()
        self.every = every
        self.works = 0
        self.late = False

    def submit(self, request: Request, timeout_s: float) -> Future[Any]:
        self.works += 1
        if self.late or (self.every and self.works % self.every == 0):
            future: Future[Any] = Future()
            future.set_exception(NoAnswer("it took longer than 1 s"))
            return future
        return super().submit(request, timeout_s)


def test_a_late_decision_is_skipped_and_the_shadow_is_rebuilt_after_a_pause() -> None:
    """The decision at 20 s. It pauses until 80 s, and then starts over."""
    counting, worker = Broken(policy("fifo_backfill"), lambda view: None), LateWorker()
    shadow = Shadow(policy("fifo"), counting, worker=worker)
    story = cluster("1x4", shadow)
    story.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    story.job("small", gpus=2, runs_s=20.0, at_s=20.0).job("late", gpus=1, runs_s=20.0, at_s=60.0)
    story.job("tiny", gpus=2, runs_s=20.0, at_s=85.0)
    story.until(10)
    assert shadow.status is Status.WATCHING
    worker.late = True
    story.until(20)
    worker.late = False
    assert (shadow.status, shadow.reason, shadow.overruns) == (Status.PAUSED, "it took longer than 1 s", 1)
    story.until(70)
    decisions = counting.decisions
    assert (counting.rebuilds, opinion_of(shadow, story.engine.world, JobId(1))) == (1, None)
    skipped, passes = totals(story).skipped, totals(story).passes
    assert skipped > 1
    story.until(20.0 + PAUSE_S).until(85)
    assert (shadow.status, shadow.reason, counting.rebuilds) == (Status.WATCHING, "", 2)
    assert counting.decisions > decisions
    assert totals(story).passes > passes
    assert totals(story).skipped == skipped
    # Rebuilt from the jobs, it has the wish that it had before.
    assert [wish.since_s for wish in agreement(story).wished_starts.values()] == [80.0]
    assert agreement(story).wished_starts.keys() == {story.ids["small"]}


def test_too_many_late_decisions_switch_the_shadow_off() -> None:
    shadow = Shadow(policy("asrpt"), policy("sjf"), worker=LateWorker(every=4))
    story = crowd(1, shadow).to_the_end()
    assert (shadow.status, shadow.overruns) == (Status.DISABLED, OVERRUNS_MAX)
    assert shadow.reason == "it gave no decision 5 times within an hour: it took longer than 1 s"
    assert history(story) == history(crowd(1, policy("asrpt")).to_the_end())
