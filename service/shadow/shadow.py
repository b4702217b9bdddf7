"""A second policy beside the first: it sees the same world at every pass and decides, and nobody does what it decides.

What comes of it is an account (:mod:`service.shadow.agreement`) and, for any job, what the other policy would do now. Reality
is always the first policy's: in the next pass the shadow learns it as changes, and of each of its own actions that reality
did not take it is told that it was refused. So it never lives in a world of its own; how much better a world that it had
ruled all along would be is a question for a simulation.

The first policy is out of its reach: it decides first, on its own state; the shadow gets a window without any method that
changes something; whatever it raises, or a decision that takes too long, ends its part in the pass and nothing else.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from policies.base import Policy
from policies.invariants import check
from policies.lifecycle import JobState
from policies.model.cluster import Cluster
from policies.model.decision import Action, Change, ChangeKind, Decision, Start
from policies.model.ids import JobId, ServerIndex
from policies.model.reasons import Explanation, Reason
from policies.model.server_reservation import ServerReservation
from policies.model.view import ClusterView, JobView, PreemptionCosts
from service.engine.watch import WatchingPolicy
from service.shadow.agreement import Agreement, Remembered, Unwanted, Wish
from service.shadow.comparison import Comparison, carried_out, compare

REBUILD_BUDGETS = 20.0
"""A rebuild from all jobs may take so many times what a decision may: it is rare, and O(jobs)."""

PAUSE_S = 60.0
"""After a decision that took too long the shadow is left out for so long, then rebuilt."""

OVERRUNS_MAX = 5
"""So many decisions that took too long within :data:`OVERRUN_WINDOW_S` switch it off: it only costs the loop time."""

OVERRUN_WINDOW_S = 3600.0

EXPLAINED_PER_PASS_MAX = 2
"""Jobs of one pass that only the first policy starts and for which the shadow is asked why not: each answer is O(servers)."""

_Answer = tuple[Decision, Mapping[JobId, Explanation]]
"""What it would do, and why it would not start what the first policy starts."""

Result = TypeVar("Result")


class OutOfTime(Exception):
    """Work did not end within its budget. It may still be under way: nothing that it touches may be used again."""


class Runner(Protocol):
    """Does work within a number of seconds, or raises :class:`OutOfTime`. What the work raises goes through."""

    def __call__(self, work: Callable[[], Result], budget_s: float) -> Result:
        """The work's result."""


def at_once(work: Callable[[], Result], budget_s: float) -> Result:
    """A runner that takes as long as it takes: for simulations, where no clock may have a say."""
    return work()


class Status(StrEnum):
    """Where the shadow stands."""

    WATCHING = "watching"
    PAUSED = "paused"
    """A decision took too long; it starts over after a while."""
    DISABLED = "disabled"
    """It raised, or took too long too often. A restart of the service tries again."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the shadow thinks of one job: ``wish`` is what it would do now, ``unwanted`` what it would not have done."""

    policy: str
    explanation: Explanation | None
    wish: Wish | None
    unwanted: Unwanted | None

    @property
    def agrees(self) -> bool:
        """Whether it wants nothing else for the job than what is."""
        return self.wish is None and self.unwanted is None


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
    """What outlives a restart: the account, and the policy's residue where there is one."""

    account: Remembered
    dump: dict[str, Any] | None


class Window:
    """Implements :class:`policies.model.view.ClusterView` on the engine's world without a way to change it."""

    __slots__ = ("cluster", "costs", "free_gpus", "holding", "jobs", "now_s", "usable_gpus", "windows")

    now_s: float
    cluster: Cluster
    costs: PreemptionCosts
    jobs: Mapping[JobId, JobView]
    usable_gpus: Callable[[ServerIndex], int]
    free_gpus: Callable[[ServerIndex], int]
    holding: Callable[[], Iterable[JobId]]
    windows: Sequence[ServerReservation]

    def __init__(self, view: ClusterView) -> None:
        self.now_s = view.now_s
        self.cluster = view.cluster
        self.costs = view.costs
        self.jobs = MappingProxyType(view.jobs)
        self.usable_gpus = view.usable_gpus
        self.free_gpus = view.free_gpus
        self.holding = view.holding
        self.windows = view.windows


class Shadow(WatchingPolicy):
    """Decides as ``inner`` does, and lets ``other`` decide beside it. Belongs to one engine's thread, as its state does.

    ``options`` are told in reports. ``budget_s`` is what one decision of the other policy may take under ``run``.
    ``trouble`` is told why the shadow was paused or disabled, and the exception, if any.
    """

    def __init__(
        self,
        inner: Policy[Any],
        other: Policy[Any],
        options: Mapping[str, str] | None = None,
        *,
        budget_s: float = 1.0,
        run: Runner = at_once,
        trouble: Callable[[str, BaseException | None], None] = lambda said, error: None,
    ) -> None:
        super().__init__(inner)
        self.status = Status.WATCHING
        self.reason = ""
        self.overruns = self.failures = self.rejected = 0
        self._other = other
        self._options = dict(options or {})
        self._budget_s = budget_s
        self._run = run
        self._trouble = trouble
        self._agreement: Agreement | None = None
        self._residue: dict[str, Any] | None = None
        self._state: Any = None
        self._refused: list[Change] = []
        self._pending: Comparison | None = None
        self._overran_at_s: deque[float] = deque(maxlen=OVERRUNS_MAX)
        self._resume_at_s = 0.0

    # The first policy.

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        """The inner policy's. What was decided last was not carried out, or not as decided: the shadow starts over too."""
        state = self.inner.rebuild(view, dump)
        account = self._account(view)
        if (seen := self._pending) is not None:
            self._pending = carried_out(view, seen)
            self._settle()
        account.reconcile(view)
        if self.status is Status.WATCHING:
            self._start_over(view)
        return state

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """The inner policy's decision; then the shadow's, on the same view and changes, which nobody carries out."""
        decision = self.inner.decide(view, changes, state)
        if self.status is not Status.DISABLED:
            try:
                self._settle()
                self._look(view, changes, decision)
            except Exception as error:
                # A decision that is none, for instance: whatever it is, it is the shadow's affair.
                self._fail(error)
        return decision

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle."""
        if self._pending is not None:
            self._pending.cycle = cycle

    # The shadow.

    def _look(self, view: ClusterView, changes: Sequence[Change], first: Decision) -> None:
        agreement = self._account(view)
        told: Sequence[Change] = [*self._refused, *changes]
        if self.status is Status.PAUSED and view.now_s >= self._resume_at_s:
            self.status, self.reason = Status.WATCHING, ""
            # Rebuilt from a view that has all changes in it.
            told = ()
            self._start_over(view)
        answer = self._decide_too(view, told, first) if self.status is Status.WATCHING else None
        if answer is None:
            agreement.note(changes)
            agreement.skip(view.now_s)
            return
        wished, why_waits = answer
        self._pending = compare(view, changes, first, wished, why_waits)
        self._refused = _refusals(first, wished)

    def _decide_too(self, view: ClusterView, told: Sequence[Change], first: Decision) -> _Answer | None:
        window, state = Window(view), self._state

        def work() -> _Answer:
            wished = self._other.decide(window, told, state)
            return wished, {job: self._other.explain(window, state, job) for job in _unexplained(first, wished)}

        answer = self._attempt(view, work, self._budget_s)
        if answer is not None and check(view, answer[0]):
            # As the engine would do: nothing of it counts, and the policy starts over.
            self.rejected += 1
            self._start_over(view)
            return Decision(), {}
        return answer

    def _start_over(self, view: ClusterView) -> None:
        self._refused = []
        window, state, residue = Window(view), self._state, self._residue
        self._residue = None

        def work() -> Any:
            if residue is None:
                return self._other.rebuild(window, None if state is None else state.dump())
            try:
                return self._other.rebuild(window, residue)
            except Exception:
                # Another version may have written it.
                return self._other.rebuild(window, None)

        self._state = self._attempt(view, work, REBUILD_BUDGETS * self._budget_s)

    def _attempt(self, view: ClusterView, work: Callable[[], Result], budget_s: float) -> Result | None:
        """The work's result; None if there is none, and the shadow does not watch any more."""
        try:
            return self._run(work, budget_s)
        except OutOfTime as error:
            self._overrun(view.now_s, str(error))
        except Exception as error:
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self._disable(f"it failed: {type(error).__name__}: {error}", error)

    def _overrun(self, now_s: float, said: str) -> None:
        self.overruns += 1
        self._overran_at_s.append(now_s)
        # Whatever still runs may still write to the state.
        self._state = None
        if len(self._overran_at_s) == OVERRUNS_MAX and now_s - self._overran_at_s[0] <= OVERRUN_WINDOW_S:
            self._disable(f"it took too long {OVERRUNS_MAX} times within an hour: {said}", None)
            return
        self.status, self.reason = Status.PAUSED, said
        self._resume_at_s = now_s + PAUSE_S
        self._trouble(f"the shadow policy {self._other.name} pauses: {said}", None)

    def _disable(self, said: str, error: BaseException | None) -> None:
        self.status, self.reason = Status.DISABLED, said
        self._state, self._pending = None, None
        self._trouble(f"the shadow policy {self._other.name} is switched off: {said}", error)

    def _settle(self) -> None:
        """The pass that the newest decision was made in is over, and nothing was taken back."""
        seen, self._pending = self._pending, None
        if seen is not None and self._agreement is not None:
            self._agreement.count(seen)

    def _account(self, view: ClusterView) -> Agreement:
        if self._agreement is None:
            self._agreement = Agreement(view.now_s)
        return self._agreement

    # Across restarts.

    def resume(self, past: Memory) -> None:
        """Go on where an earlier process ended; before the engine is made."""
        self._agreement = Agreement.recall(past.account)
        self._residue = past.dump

    def memory(self, view: ClusterView) -> Memory:
        """What a later process can resume from. Between two passes."""
        state, dump = self._state, None
        if self.status is Status.WATCHING:
            dump = self._attempt(view, lambda: state.dump(), REBUILD_BUDGETS * self._budget_s)
        return Memory(self.agreement(view).remember(), dump)

    # What it says, between two passes.

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
        """The account up to now; only for reading, and only until the next pass."""
        self._settle()
        account = self._account(view)
        if self.status is not Status.DISABLED:
            account.advance(view.now_s)
        return account

    def opinion(self, view: ClusterView, job: JobId) -> Opinion | None:
        """What it thinks of an unfinished job; None while it does not watch."""
        if self.status is not Status.WATCHING:
            return None
        account, record = self.agreement(view), view.jobs[job]
        wish = account.wished_starts.get(job) or account.wished_stops.get(job)
        decidable = record.waiting or record.state is not JobState.QUEUED
        explanation = None
        if decidable:
            window, state = Window(view), self._state
            explanation = self._attempt(view, lambda: self._other.explain(window, state, job), self._budget_s)
        return Opinion(self._other.name, explanation, wish, account.unwanted.get(job))


def _unexplained(first: Decision, wished: Decision) -> list[JobId]:
    """What the first policy alone starts, if the shadow starts nothing of its own: else that says why, and costs nothing."""
    starts = [action.job for action in first.actions if isinstance(action, Start)]
    others = {action.job for action in wished.actions if isinstance(action, Start)}
    return [job for job in starts if job not in others][:EXPLAINED_PER_PASS_MAX] if others.issubset(starts) else []


def _refusals(first: Decision, wished: Decision) -> list[Change]:
    """What the shadow is told of its actions that reality did not take; of the others it learns as everybody does."""
    taken = {_kind(action) for action in first.actions}
    jobs = dict.fromkeys(action.job for action in wished.actions if _kind(action) not in taken)
    return [Change(ChangeKind.REFUSED, job, reason=Reason.REFUSED) for job in jobs]


def _kind(action: Action) -> tuple[type[Action], JobId]:
    return type(action), action.job
