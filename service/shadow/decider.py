"""Decides for the shadow policy about a copy of the live world. Runs in the process of :mod:`service.shadow.process`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from policies.base import Policy
from policies.invariants import check
from policies.model.decision import Action, Change, ChangeKind, Decision, Start
from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from policies.model.view import ClusterView, ViewAt
from service.history.replica import Replica, WorldUpdate
from service.history.snapshot import WorldSnapshot
from service.shadow.comparison import Comparison, compare

EXPLAINED_PER_CYCLE_MAX = 2
"""Largest number of explained jobs of one cycle that only the first policy starts. An explanation costs O(servers)."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Rebuild ``policy`` from the world and from ``dump``; without one, from the previous state, if any."""

    policy: Policy[Any]
    world: WorldSnapshot
    dump: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class DecideCycle:
    """Decide a recorded cycle, and compare with the first policy's decision. Answer: :class:`Decided`."""

    update: WorldUpdate
    changes: Sequence[Change]
    first: Decision


@dataclass(frozen=True, slots=True)
class Explain:
    """Explain a job. Answer: an :class:`~policies.model.reasons.Explanation`."""

    update: WorldUpdate
    job: JobId


@dataclass(frozen=True, slots=True)
class DumpState:
    """Answer: the policy's state, as :meth:`policies.base.PolicyState.dump` gives it."""


Request = Begin | DecideCycle | Explain | DumpState


@dataclass(frozen=True, slots=True)
class Decided:
    """``rejected``: the decision broke an invariant and was replaced by an empty one."""

    comparison: Comparison
    rejected: bool


class NoAnswer(Exception):
    """The time limit expired, or the process ended. The state is lost; a :class:`Begin` restores it."""


class DeciderFailed(Exception):
    """The policy raised an exception; the message names its type."""


class Worker(Protocol):
    """Answers requests, one after the other."""

    def submit(self, request: Request, timeout_s: float) -> Future[Any]:
        """Return the future answer. It raises :class:`NoAnswer` or :class:`DeciderFailed`."""

    def close(self) -> None:
        """Cancel requests in progress."""


class View(ViewAt):
    """A world as it is now, without the methods that change it, and with jobs that cannot be replaced."""

    def __init__(self, view: ClusterView) -> None:
        super().__init__(view, view.now_s)
        self.jobs = MappingProxyType(view.jobs)


class Decider:
    """One policy's state and its copy of the world."""

    def __init__(self) -> None:
        self._policy: Policy[Any]
        self._replica: Replica
        self._state: Any = None
        self._refused: list[Change] = []

    def answer(self, request: Request) -> Any:
        """The answer to a request. Raises :class:`DeciderFailed`."""
        try:
            match request:
                case Begin():
                    return self._begin(request)
                case DecideCycle():
                    return self._decide(request)
                case Explain():
                    self._replica.apply(request.update)
                    return self._policy.explain(self._view(), self._state, request.job)
                case DumpState():
                    return self._state.dump()
        except Exception as error:
            raise DeciderFailed(f"{type(error).__name__}: {error}") from error

    def _view(self) -> View:
        return View(self._replica.world)

    def _begin(self, request: Begin) -> None:
        self._policy, self._replica = request.policy, Replica(request.world)
        if request.dump is not None:
            try:
                self._state = self._policy.rebuild(self._view(), request.dump)
                self._refused = []
                return
            except Exception:
                # Another version of the policy may have written the dump.
                self._state = None
        self._rebuild()

    def _rebuild(self) -> None:
        self._refused = []
        dump = None if self._state is None else self._state.dump()
        self._state = self._policy.rebuild(self._view(), dump)

    def _decide(self, request: DecideCycle) -> Decided:
        self._replica.apply(request.update)
        view, first = self._view(), request.first
        wished = self._policy.decide(view, [*self._refused, *request.changes], self._state)
        explained: Mapping[JobId, Explanation] = {
            job: self._policy.explain(view, self._state, job) for job in _unexplained(first, wished)
        }
        rejected = bool(check(view, wished))
        if rejected:
            # As in the engine: the decision is dropped, and the policy is rebuilt.
            self._rebuild()
            wished, explained = Decision(), {}
        comparison = compare(view, first, wished, explained)
        self._refused = _refusals(first, wished)
        return Decided(comparison, rejected)


def _unexplained(first: Decision, wished: Decision) -> list[JobId]:
    """The jobs that only the first policy starts; none if the shadow starts others, which explains the difference."""
    starts = [action.job for action in first.actions if isinstance(action, Start)]
    others = {action.job for action in wished.actions if isinstance(action, Start)}
    return [job for job in starts if job not in others][:EXPLAINED_PER_CYCLE_MAX] if others.issubset(starts) else []


def _refusals(first: Decision, wished: Decision) -> list[Change]:
    """Refusals of the shadow's actions that the first policy did not take. The changes report the other actions."""
    taken = {_kind(action) for action in first.actions}
    jobs = dict.fromkeys(action.job for action in wished.actions if _kind(action) not in taken)
    return [Change(ChangeKind.REFUSED, job, reason=Reason.REFUSED) for job in jobs]


def _kind(action: Action) -> tuple[type[Action], JobId]:
    return type(action), action.job
