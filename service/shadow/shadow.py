"""A second policy that decides about every cycle beside the first one. Its decisions have no effect.

The results are counts of agreement (:mod:`service.shadow.agreement`) and, for any job, what the second policy would do now. The
world is always that of the first policy. In the next cycle the shadow receives what happened as changes, and a refusal for each
of its own actions that the first policy did not take. So the counts compare single decisions. A simulation compares the results
of two policies over time.

The shadow cannot affect the first policy: it decides about a copy of the world, in a separate process
(:mod:`service.shadow.process`). Its answers are counted when they arrive.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from policies.base import Policy
from policies.lifecycle import JobState
from policies.model.decision import Change, Decision, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.view import ClusterView
from service.engine.watch import WatchingPolicy
from service.engine.world import World
from service.history.replica import ReplicaSource
from service.shadow.agreement import Agreement, SavedAgreement, Unwanted, Wish
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
"""Time limit of a rebuild, in time limits of a decision. A rebuild is rare and costs O(jobs)."""

PAUSE_S = 60.0
"""Length of the pause after a decision that took too long. A rebuild follows."""

OVERRUNS_MAX = 5
"""Number of decisions without an answer within :data:`OVERRUN_WINDOW_S` that switch the shadow off."""

OVERRUN_WINDOW_S = 3600.0

BACKLOG_MAX = 1000
"""Largest number of cycles without an answer. With more the shadow pauses, because each of them holds memory."""


class Status(StrEnum):
    """Whether the shadow decides."""

    WATCHING = "watching"
    PAUSED = "paused"
    """A decision took too long, or the process ended. The shadow starts again after :data:`PAUSE_S`."""
    DISABLED = "disabled"
    """The policy raised an exception, or too many decisions had no answer. A restart of the service enables it again."""


@dataclass(frozen=True, slots=True)
class ShadowState:
    """The shadow's state as an immutable copy. ``reason`` is the cause of a status other than WATCHING."""

    policy: str
    options: Mapping[str, str]
    first_policy: str
    status: Status
    reason: str
    overruns: int
    failures: int
    rejected: int


class SavedShadow(NamedTuple):
    """What a restarted service continues from. ``dump`` is the policy's state; None if it could not be dumped."""

    agreement: SavedAgreement
    dump: dict[str, Any] | None


@dataclass(slots=True)
class _Cycle:
    """A cycle between its request and its count. ``over``: the first policy's decision can no longer be rolled back.

    ``lost``: jobs on which the first policy's decision was rolled back. ``void``: all of it was rolled back.
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
    """Decides as ``inner`` does, and sends each cycle to ``other``. Belongs to one engine's thread, as its state does.

    ``options`` appear in reports. ``budget_s`` is the time limit of one decision of ``other`` in ``worker``. ``warn`` is
    called with the reason for a pause or for switching off, and with the exception, if any.
    """

    def __init__(
        self,
        inner: Policy[Any],
        other: Policy[Any],
        options: Mapping[str, str] | None = None,
        *,
        worker: Worker,
        budget_s: float = 1.0,
        warn: Callable[[str, BaseException | None], None] = lambda message, error: None,
    ) -> None:
        super().__init__(inner)
        self.status = Status.WATCHING
        self.reason = ""
        self.overruns = self.failures = self.rejected = 0
        self.budget_s = budget_s
        self._other = other
        self._options = dict(options or {})
        self._worker = worker
        self._warn = warn
        self._source = ReplicaSource()
        self._agreement: Agreement | None = None
        self._dump: dict[str, Any] | None = None
        self._cycles: deque[_Cycle] = deque()
        self._overran_at_s: deque[float] = deque(maxlen=OVERRUNS_MAX)
        self._resume_at_s = 0.0

    # The first policy.

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        """Rebuild the inner policy and the shadow: the newest decision was rolled back, in whole or in part."""
        state = self.inner.rebuild(view, dump)
        agreement = self._started(view)
        newest = self._cycles[-1] if self._cycles else None
        if newest is not None and not newest.over and newest.first is not None:
            assert newest.attempts is not None
            newest.lost, newest.void = lost_decisions(view, newest.first, newest.attempts)
        wait(self.unanswered(), self.budget_s)
        self._settle(view.now_s)
        # A cycle that is still unanswered cannot be counted on the world as it is now.
        self._skip_all()
        agreement.reconcile(view)
        if self.status is Status.WATCHING:
            self._begin(view)
        return state

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """Return the inner policy's decision, and send the same cycle to the shadow."""
        decision = self.inner.decide(view, changes, state)
        if self.status is not Status.DISABLED:
            try:
                self._settle(view.now_s)
                self._send(view, changes, decision)
            except Exception as error:
                # No failure of the shadow may reach the live loop.
                self._fail(error)
        return decision

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle."""
        if self._cycles and not self._cycles[-1].over:
            self._cycles[-1].number = cycle

    # The shadow.

    def _send(self, view: ClusterView, changes: Sequence[Change], first: Decision) -> None:
        agreement = self._started(view)
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
            agreement.note(changes)
            agreement.skip(view.now_s)

    def _decide_cycle(
        self, view: ClusterView, changes: Sequence[Change], noted: Sequence[Change], first: Decision
    ) -> None:
        assert isinstance(view, World)
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
        """The answers that have not arrived yet."""
        return [cycle.answer for cycle in self._cycles if not cycle.answer.done()]

    def _settle(self, now_s: float) -> None:
        """Mark the newest cycle as over, and count the cycles that are answered."""
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

    def _result(self, answer: Future[Any] | None, now_s: float) -> Any:
        """The answer; None without one in time. A failure pauses the shadow or switches it off."""
        if answer is None:
            return None
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
        self._warn(f"the shadow policy {self._other.name} pauses: {reason}", None)

    def _disable(self, reason: str, error: BaseException | None) -> None:
        self.status, self.reason = Status.DISABLED, reason
        self._skip_all()
        self._worker.close()
        self._warn(f"the shadow policy {self._other.name} is switched off: {reason}", error)

    def _skip_all(self) -> None:
        """Skip the cycles that were sent and are not counted."""
        for cycle in self._cycles:
            cycle.answer.cancel()
            if cycle.first is not None and self._agreement is not None:
                self._agreement.note(cycle.changes)
                self._agreement.skip(cycle.at_s)
        self._cycles.clear()

    def _started(self, view: ClusterView) -> Agreement:
        """The counts, which begin with the first call."""
        if self._agreement is None:
            self._agreement = Agreement(SavedAgreement(view.now_s, view.now_s))
        return self._agreement

    def close(self) -> None:
        """End the process in which the other policy decides."""
        self._worker.close()

    # Across restarts.

    def resume(self, saved: SavedShadow) -> None:
        """Continue from what an earlier process saved. Call it before the engine is created."""
        self._agreement = Agreement(saved.agreement)
        self._dump = saved.dump

    def request_dump(self) -> Future[Any] | None:
        """Request the other policy's state; None while the shadow does not watch."""
        if self.status is not Status.WATCHING:
            return None
        return self._worker.submit(DumpState(), REBUILD_BUDGETS * self.budget_s)

    def saved(self, view: ClusterView, dump: Future[Any] | None) -> SavedShadow:
        """What a later process can resume from. Call it between two cycles. ``dump``: see :meth:`request_dump`."""
        state = self._result(dump, view.now_s)
        return SavedShadow(self.agreement(view).saved(), state)

    # Reports, between two cycles.

    def state(self) -> ShadowState:
        """A copy of the state."""
        return ShadowState(
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
        """The counts up to now, or up to the oldest cycle without an answer. Read them before the next cycle."""
        self._settle(view.now_s)
        agreement = self._started(view)
        if self.status is not Status.DISABLED and not self._cycles:
            agreement.advance(view.now_s)
        return agreement

    def request_explanation(self, view: ClusterView, job: JobId) -> Future[Any] | None:
        """Request the other policy's explanation of an unfinished job; None if the job does not compete or run."""
        record = view.jobs[job]
        if self.status is not Status.WATCHING or not (record.waiting or record.state is not JobState.QUEUED):
            return None
        assert isinstance(view, World)
        return self._worker.submit(Explain(self._source.present(view), job), self.budget_s)

    def opinion(
        self, view: ClusterView, job: JobId, explanation: Future[Any] | None
    ) -> Wish | Unwanted | Explanation | None:
        """Where the shadow disagrees about an unfinished job, or else its explanation; None while it does not watch.

        ``explanation``: see :meth:`request_explanation`.
        """
        if self.status is not Status.WATCHING:
            return None
        disagreement = self.agreement(view).disagreements().get(job)
        explained: Explanation | None = self._result(explanation, view.now_s)
        return disagreement or explained
