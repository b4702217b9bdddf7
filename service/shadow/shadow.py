"""A second policy beside the first: it decides about every recorded cycle, and nothing that it decides is carried out.

What comes of it is an account (:mod:`service.shadow.agreement`) and, for any job, what the other policy would do now. Reality
is always the first policy's: in the next cycle the shadow learns it as changes, and of each of its own actions that reality
did not take it is told that it was refused. So it never lives in a world of its own; how much better a world that it had
ruled all along would be is a question for a simulation.

The first policy is out of its reach: the shadow decides about a copy of the world, in a process of its own
(:mod:`service.shadow.process`), and its answers are counted when they come.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from policies.base import Policy
from policies.lifecycle import JobState
from policies.model.decision import Change, Decision, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.engine.world import World
from service.history.replica import ReplicaSource
from service.shadow.agreement import Agreement, Remembered, Unwanted, Wish
from service.shadow.comparison import lost_decisions, without
from service.shadow.decider import (
    Begin,
    DecideCycle,
    Decided,
    DeciderFailed,
    DumpState,
    Explain,
    NoAnswer,
    Worker,
)

REBUILD_BUDGETS = 20.0
"""A rebuild from all jobs may take so many times what a decision may: it is rare, and O(jobs)."""

PAUSE_S = 60.0
"""After a decision that took too long the shadow is left out for so long, then rebuilt."""

OVERRUNS_MAX = 5
"""So many decisions without an answer within :data:`OVERRUN_WINDOW_S` switch it off."""

OVERRUN_WINDOW_S = 3600.0

BACKLOG_MAX = 1000
"""Cycles that may wait for their decision. With more the shadow pauses: it is too slow, and each holds memory."""


class Status(StrEnum):
    """Where the shadow stands."""

    WATCHING = "watching"
    PAUSED = "paused"
    """A decision took too long, or the process ended; it starts over after a while."""
    DISABLED = "disabled"
    """It raised, or gave no decision too often. A restart of the service tries again."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the shadow thinks of one job: ``wish`` is what it would do now, ``unwanted`` what it would not have done."""

    policy: str
    explanation: Explanation | None
    wish: Wish | None
    unwanted: Unwanted | None


@dataclass(frozen=True, slots=True)
class Standing:
    """The shadow as it stands: copies that nobody changes any more. ``reason`` says why it does not watch."""

    policy: str
    options: Mapping[str, str]
    first_policy: str
    status: Status
    reason: str
    overruns: int
    failures: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlives a restart: the account, and the policy's state where it could be dumped."""

    account: Remembered
    dump: dict[str, Any] | None


@dataclass(slots=True)
class _Cycle:
    """A cycle that was sent to be decided, until it is counted. ``over``: nothing of it can be taken back any more.

    ``lost``: jobs on which the first policy's decision was taken back; ``void``: all of it was.
    """

    answer: Future[Any]
    at_s: float
    changes: Sequence[Change] = ()
    first: Decision | None = None
    attempts: Mapping[JobId, int] | None = None
    number: int | None = None
    over: bool = False
    lost: frozenset[JobId] = frozenset()
    void: bool = False


class Shadow(WatchingPolicy):
    """Decides as ``inner`` does, and lets ``other`` decide about a copy. Belongs to one engine's thread, as its state does.

    ``options`` appear in reports. ``budget_s`` is what one decision of the other policy may take in ``worker``. ``trouble`` is
    called with the reason for a pause or the end, and the exception, if any.
    """

    def __init__(
        self,
        inner: Policy[Any],
        other: Policy[Any],
        options: Mapping[str, str] | None = None,
        *,
        worker: Worker,
        budget_s: float = 1.0,
        trouble: Callable[[str, BaseException | None], None] = lambda message, error: None,
    ) -> None:
        super().__init__(inner)
        self.status = Status.WATCHING
        self.reason = ""
        self.overruns = self.failures = self.rejected = 0
        self.budget_s = budget_s
        self._other = other
        self._options = dict(options or {})
        self._worker = worker
        self._trouble = trouble
        self._source = ReplicaSource()
        self._agreement: Agreement | None = None
        self._dump: dict[str, Any] | None = None
        self._cycles: deque[_Cycle] = deque()
        self._overran_at_s: deque[float] = deque(maxlen=OVERRUNS_MAX)
        self._resume_at_s = 0.0

    # The first policy.

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        """The inner policy's. The newest decision was not carried out, or not as decided: the shadow starts over too."""
        state = self.inner.rebuild(view, dump)
        account = self._account(view)
        newest = self._cycles[-1] if self._cycles else None
        if newest is not None and not newest.over and newest.first is not None:
            assert newest.attempts is not None
            newest.lost, newest.void = lost_decisions(view, newest.first, newest.attempts)
        wait(self.unanswered(), self.budget_s)
        self._settle(view.now_s)
        # What has no answer yet cannot be counted on the world as it is now.
        self._skip_all()
        account.reconcile(view)
        if self.status is Status.WATCHING:
            self._begin(view)
        return state

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """The inner policy's decision. The same cycle is sent to the shadow."""
        decision = self.inner.decide(view, changes, state)
        if self.status is not Status.DISABLED:
            try:
                self._settle(view.now_s)
                self._send(view, changes, decision)
            except Exception as error:
                # Whatever it is, it concerns the shadow alone.
                self._fail(error)
        return decision

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle."""
        if self._cycles and not self._cycles[-1].over:
            self._cycles[-1].number = cycle

    # The shadow.

    def _send(self, view: ClusterView, changes: Sequence[Change], first: Decision) -> None:
        account = self._account(view)
        assert isinstance(view, World)
        if self.status is Status.PAUSED and view.now_s >= self._resume_at_s:
            self.status, self.reason = Status.WATCHING, ""
            self._begin(view)
            # The snapshot holds all changes already.
            self._decide_cycle(view, (), changes, first)
        elif self.status is Status.WATCHING and len(self._cycles) < BACKLOG_MAX:
            self._decide_cycle(view, changes, changes, first)
        else:
            if self.status is Status.WATCHING:
                self._overrun(view.now_s, f"it is {BACKLOG_MAX} cycles behind")
            account.note(changes)
            account.skip(view.now_s)

    def _decide_cycle(self, view: World, changes: Sequence[Change], noted: Sequence[Change], first: Decision) -> None:
        request = DecideCycle(self._source.update(view, changes), tuple(changes), first)
        attempts = {action.job: view.jobs[action.job].attempts for action in first.actions if isinstance(action, Start)}
        answer = self._worker.submit(request, self.budget_s)
        self._cycles.append(_Cycle(answer, view.now_s, tuple(noted), first, attempts))
        self._count(view.now_s)

    def _begin(self, view: ClusterView) -> None:
        assert isinstance(view, World)
        dump, self._dump = self._dump, None
        request = Begin(self._other, self._source.snapshot(view), dump)
        answer = self._worker.submit(request, REBUILD_BUDGETS * self.budget_s)
        self._cycles.append(_Cycle(answer, view.now_s, over=True))
        self._count(view.now_s)

    def unanswered(self) -> Sequence[Future[Any]]:
        """The decisions that are still to come."""
        return [cycle.answer for cycle in self._cycles if not cycle.answer.done()]

    def _settle(self, now_s: float) -> None:
        """The newest cycle is over. Count what has been answered."""
        if self._cycles:
            self._cycles[-1].over = True
        self._count(now_s)

    def _count(self, now_s: float) -> None:
        """Count the cycles that are over and answered, in their order."""
        while self._cycles and self._cycles[0].answer.done():
            cycle = self._cycles[0]
            found = self._result(cycle.answer, now_s)
            if self.status is not Status.WATCHING or not cycle.over:
                return
            self._cycles.popleft()
            if isinstance(found, Decided) and self._agreement is not None:
                self.rejected += found.rejected
                if not cycle.void:
                    seen = without(found.comparison, cycle.lost)
                    self._agreement.count(replace(seen, cycle=cycle.number, changes=cycle.changes))

    def _result(self, answer: Future[Any], now_s: float) -> Any:
        """The answer; None if there is none in time. A failure ends the watching, for a while or for good."""
        try:
            return answer.result(0.0 if answer.done() else self.budget_s)
        except NoAnswer as error:
            self._overrun(now_s, str(error))
        except TimeoutError:
            pass  # other requests come first
        except Exception as error:
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        text = str(error) if isinstance(error, DeciderFailed) else f"{type(error).__name__}: {error}"
        self._disable(f"it failed: {text}", error)

    def _overrun(self, now_s: float, reason: str) -> None:
        self.overruns += 1
        self._overran_at_s.append(now_s)
        if len(self._overran_at_s) == OVERRUNS_MAX and now_s - self._overran_at_s[0] <= OVERRUN_WINDOW_S:
            self._disable(f"it gave no decision {OVERRUNS_MAX} times within an hour: {reason}", None)
            return
        self.status, self.reason = Status.PAUSED, reason
        self._resume_at_s = now_s + PAUSE_S
        self._skip_all()
        self._trouble(f"the shadow policy {self._other.name} pauses: {reason}", None)

    def _disable(self, reason: str, error: BaseException | None) -> None:
        self.status, self.reason = Status.DISABLED, reason
        self._skip_all()
        self._worker.close()
        self._trouble(f"the shadow policy {self._other.name} is switched off: {reason}", error)

    def _skip_all(self) -> None:
        """Give up what was sent and not counted."""
        for cycle in self._cycles:
            cycle.answer.cancel()
            if cycle.first is not None and self._agreement is not None:
                self._agreement.note(cycle.changes)
                self._agreement.skip(cycle.at_s)
        self._cycles.clear()

    def _account(self, view: ClusterView) -> Agreement:
        if self._agreement is None:
            self._agreement = Agreement(view.now_s)
        return self._agreement

    def close(self) -> None:
        """End the process in which the other policy decides."""
        self._worker.close()

    # Across restarts.

    def resume(self, past: Memory) -> None:
        """Go on where an earlier process ended; before the engine is made."""
        self._agreement = Agreement.recall(past.account)
        self._dump = past.dump

    def request_dump(self) -> Future[Any] | None:
        """Ask for the other policy's state; None while it does not watch."""
        if self.status is not Status.WATCHING:
            return None
        return self._worker.submit(DumpState(), REBUILD_BUDGETS * self.budget_s)

    def memory(self, view: ClusterView, dump: Future[Any] | None = None) -> Memory:
        """What a later process can resume from, between two cycles. ``dump``: see :meth:`request_dump`."""
        dump = dump or self.request_dump()
        state = None if dump is None else self._result(dump, view.now_s)
        return Memory(self.agreement(view).remember(), state)

    # Reports, between two cycles.

    def standing(self) -> Standing:
        """Where it stands."""
        return Standing(
            self._other.name,
            self._options,
            self.name,
            self.status,
            self.reason,
            self.overruns,
            self.failures,
            self.rejected,
        )

    def agreement(self, view: ClusterView) -> Agreement:
        """The account up to now, or to the oldest cycle without an answer; for reading, until the next cycle."""
        self._settle(view.now_s)
        account = self._account(view)
        if self.status is not Status.DISABLED and not self._cycles:
            account.advance(view.now_s)
        return account

    def request_explanation(self, view: ClusterView, job: JobId) -> Future[Any] | None:
        """Ask what the other policy says of an unfinished job; None where it has nothing to say."""
        record = view.jobs[job]
        if self.status is not Status.WATCHING or not (record.waiting or record.state is not JobState.QUEUED):
            return None
        assert isinstance(view, World)
        return self._worker.submit(Explain(self._source.present(view), job), self.budget_s)

    def opinion(self, view: ClusterView, job: JobId, explanation: Future[Any] | None = None) -> Opinion | None:
        """What it thinks of an unfinished job; None while it does not watch. ``explanation``: :meth:`request_explanation`."""
        if self.status is not Status.WATCHING:
            return None
        account = self.agreement(view)
        wish = account.wished_starts.get(job) or account.wished_stops.get(job)
        explanation = explanation or self.request_explanation(view, job)
        found = None if explanation is None else self._result(explanation, view.now_s)
        return Opinion(self._other.name, found, wish, account.unwanted.get(job))
