"""The simulation loop: it advances an engine and a simulated clock from event to event."""

from typing import Any

from service.engine.engine import Engine
from service.sim.clock import SimClock

CYCLES_PER_INSTANT_MAX = 10_000
"""Cycles at one instant of simulated time; a policy that always asks for another cycle at once is defective."""


class SimulationStuck(Exception):
    """The policy keeps asking for another cycle at the same instant."""


class Drive:
    """Runs one engine on one simulated clock. All events of an instant come before its cycle.

    ``wake_slack``: a wake requested by the policy (not an event) may be late by this share of the time since the start;
    0 = on time. A forecast uses it, because it needs no refresh of every rank.
    """

    def __init__(self, engine: Engine[Any], clock: SimClock, wake_slack: float = 0.0) -> None:
        self._engine = engine
        self._clock = clock
        self._start_s = clock.now_s()
        self._wake_slack = wake_slack
        self._wake_at_s: float | None = None
        self._cycles_now = 0

    def wake(self, at_s: float) -> None:
        """Ask for a cycle at ``at_s``, whether or not there is an event."""
        self._wake_at_s = at_s

    def step(self) -> bool:
        """Process all events of the next instant, then run one cycle. False if no event is left."""
        at_s = self._next_instant_s()
        if at_s is None:
            return False
        self._cycles_now = self._cycles_now + 1 if at_s == self._clock.now_s() else 0
        if self._cycles_now > CYCLES_PER_INSTANT_MAX:
            raise SimulationStuck(f"{self._engine.policy.name} keeps requesting another cycle at {at_s} s")
        self._clock.advance(at_s)
        self._wake_at_s = self._late(self._engine.cycle().wake_at_s)
        return True

    def _late(self, wake_at_s: float | None) -> float | None:
        now_s = self._clock.now_s()
        if wake_at_s is None or wake_at_s <= now_s:
            return wake_at_s  # due at once: it continues a decision and must not be delayed
        return max(wake_at_s, now_s + self._wake_slack * (now_s - self._start_s))

    def _next_instant_s(self) -> float | None:
        """The earlier of the next event and the wake that the policy asked for.

        A wake alone counts only while jobs are unfinished: a policy may ask for one although nothing is left to do.
        """
        event_at_s, wake_at_s = self._clock.next_at_s, self._wake_at_s
        if wake_at_s is None or not self._engine.world.jobs:
            return event_at_s
        wake_at_s = max(wake_at_s, self._clock.now_s())
        return wake_at_s if event_at_s is None else min(event_at_s, wake_at_s)
