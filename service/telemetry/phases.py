"""How long the phases of a scheduling cycle take: ports and a policy that measure each call.

The engine reads no clock, so whoever composes the service wraps what the engine calls. Each phase is a histogram's value and,
where spans are collected, a span.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from policies.model.decision import Change, Decision
from policies.model.estimate import Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
from policies.model.view import ClusterView
from service.engine.commands import Command, Launch
from service.engine.ports import CycleBatch, Executor, Predictor, Store
from service.engine.watch import WatchingPolicy
from service.telemetry import tracing
from service.telemetry.metrics import Metrics

PHASES = ("total", "predict", "decide", "commit", "command")
"""The whole cycle, and the parts of it that call somebody else; the rest is bookkeeping in memory."""


class Phases:
    """Where the phases' times go."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._durations = {phase: metrics.cycle_duration.labels(phase) for phase in PHASES}

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """One passage of a phase, also one that raises."""
        start_s = time.perf_counter()
        with tracing.span(f"cycle.{phase}"):
            try:
                yield
            finally:
                self._durations[phase].observe(time.perf_counter() - start_s)

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """A whole cycle."""
        with self.measured("total"):
            yield

    def passed(self, outcome: str) -> None:
        """How a cycle ended."""
        self.metrics.cycles.labels(outcome).inc()


class MeasuredStore:
    """Implements :class:`service.engine.ports.Store` around another one; measures commits."""

    def __init__(self, inner: Store, phases: Phases) -> None:
        self.load = inner.load
        self.jobs = inner.jobs
        self.pending_requests = inner.pending_requests
        self._inner = inner
        self._phases = phases

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Pass on, measured."""
        with self._phases.measured("commit"):
            return self._inner.commit(batch)


class MeasuredPredictor:
    """Implements :class:`service.engine.ports.Predictor` around another one; measures predictions."""

    def __init__(self, inner: Predictor, phases: Phases) -> None:
        self.ended = inner.ended
        self._inner = inner
        self._phases = phases

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """Pass on, measured."""
        with self._phases.measured("predict"):
            return self._inner.predict(now_s, requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Pass on, measured."""
        with self._phases.measured("predict"):
            return self._inner.revise(now_s, reported)


class MeasuredExecutor:
    """Implements :class:`service.engine.ports.Executor` around another one; measures and counts commands."""

    def __init__(self, inner: Executor, phases: Phases) -> None:
        self.poll = inner.poll
        self.acknowledge = inner.acknowledge
        self.observed = inner.observed
        self._inner = inner
        self._phases = phases

    def send(self, commands: Sequence[Command]) -> None:
        """Pass on, measured and counted."""
        outcome = "refused"
        try:
            with self._phases.measured("command"):
                self._inner.send(commands)
            outcome = "sent"
        finally:
            for command in commands:
                kind = "launch" if isinstance(command, Launch) else "stop"
                self._phases.metrics.commands.labels(kind, outcome).inc()


class MeasuredPolicy(WatchingPolicy):
    """Times the decisions of the policy inside."""

    def __init__(self, inner: Any, phases: Phases) -> None:
        super().__init__(inner)
        self._phases = phases

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """The inner policy's, measured."""
        with self._phases.measured("decide"):
            return super().decide(view, changes, state)
