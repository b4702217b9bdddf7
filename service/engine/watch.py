"""Observers of a live engine: policies that watch the decisions of another policy, and readers between two cycles."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from policies.base import Policy, queue_of, shares_of
from policies.decision.queue_order import QueueSlice, QueueWanted
from policies.model.decision import Change, Decision
from policies.model.ids import JobId
from policies.model.reasons import Explanation
from policies.model.shares import Shares
from policies.model.view import ClusterView
from service.engine.engine import Engine
from service.engine.events import JobEvent
from service.engine.ports import CycleBatch, Sink
from service.engine.record import JobRecord

Answer = TypeVar("Answer")


class EngineReader(Protocol):
    """Read access to a live engine. The scheduling loop implements it."""

    @property
    def cycle_number(self) -> int: ...

    def read(self, look: Callable[[Engine[Any]], Answer]) -> Answer:
        """Call ``look`` with the engine between two cycles."""


class WatchingPolicy:
    """Implements :class:`policies.base.Policy` by calling ``inner``. Its states are those of the inner policy.

    A watching policy belongs to one engine. A forecast or a replay, in which the policy decides about another world, uses
    :func:`unwatched`, so that the observer sees only the live world.
    """

    def __init__(self, inner: Policy[Any]) -> None:
        self.name = inner.name
        self.inner = inner

    def initial_state(self, view: ClusterView) -> Any:
        """The inner policy's."""
        return self.inner.initial_state(view)

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        """The inner policy's."""
        return self.inner.rebuild(view, dump)

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """The inner policy's."""
        return self.inner.decide(view, changes, state)

    def explain(self, view: ClusterView, state: Any, job: JobId) -> Explanation:
        """The inner policy's."""
        return self.inner.explain(view, state, job)

    def queue(self, view: ClusterView, state: Any, wanted: QueueWanted) -> QueueSlice:
        """The inner policy's."""
        return queue_of(self.inner, view, state, wanted)

    def shares(self, view: ClusterView, state: Any) -> Shares:
        """The inner policy's."""
        return shares_of(self.inner, view, state)

    def committed(self, cycle: int) -> None:
        """The newest decision belongs to this cycle, and it is committed."""


class WatchingSink:
    """Reports committed decisions to watching policies, and passes everything on."""

    def __init__(self, inner: Sink, watching: Sequence[WatchingPolicy]) -> None:
        self._inner = inner
        self._watching = watching

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Pass on."""
        self._inner.transition(event, job)

    def cycle(self, batch: CycleBatch) -> None:
        """Report the committed decision, and pass on."""
        for policy in self._watching:
            policy.committed(batch.cycle)
        self._inner.cycle(batch)


def unwatched(policy: Policy[Any]) -> Policy[Any]:
    """The policy itself, without the policies that watch it."""
    while isinstance(policy, WatchingPolicy):
        policy = policy.inner
    return policy
