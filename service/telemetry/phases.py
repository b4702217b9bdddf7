"""Measure the phases of a scheduling cycle, with wrappers around the ports and the policy.

The engine reads no clock, so the live stack wraps the ports and the policy that the engine calls. Each phase is an observation
of a histogram and, with tracing, a span.
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
"""The whole cycle, and the calls to predictor, policy, store and executor. The rest is work in memory."""


class Phases:
    """Observes the times of the phases."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._durations = {phase: metrics.cycle_duration.labels(phase) for phase in PHASES}

    @contextmanager
    def measured(self, phase: str) -> Iterator[None]:
        """Measure one phase, also if it raises."""
        start_s = time.perf_counter()
        with tracing.span(f"cycle.{phase}"):
            try:
                yield
            finally:
                self._durations[phase].observe(time.perf_counter() - start_s)

    @contextmanager
    def cycle(self) -> Iterator[None]:
        """Measure a whole cycle."""
        with self.measured("total"):
            yield

    def passed(self, outcome: str) -> None:
        """Count a cycle by its outcome."""
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
        """Commit and measure."""
        with self._phases.measured("commit"):
            return self._inner.commit(batch)


class MeasuredPredictor:
    """Implements :class:`service.engine.ports.Predictor` around another one; measures predictions."""

    def __init__(self, inner: Predictor, phases: Phases) -> None:
        self.ended = inner.ended
        self.watch = inner.watch
        self._inner = inner
        self._phases = phases

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """Predict and measure."""
        with self._phases.measured("predict"):
            return self._inner.predict(now_s, requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Revise and measure."""
        with self._phases.measured("predict"):
            return self._inner.revise(now_s, reported)


class MeasuredExecutor:
    """Implements :class:`service.engine.ports.Executor` around another one; measures and counts commands."""

    def __init__(self, inner: Executor, phases: Phases) -> None:
        self.poll = inner.poll
        self.acknowledge = inner.acknowledge
        self.observed = inner.observed
        self.use_cluster = inner.use_cluster
        self._inner = inner
        self._phases = phases

    def send(self, commands: Sequence[Command]) -> None:
        """Send, measure, and count each command."""
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
    """Measures the decisions of the inner policy."""

    def __init__(self, inner: Any, phases: Phases) -> None:
        super().__init__(inner)
        self._phases = phases

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        """Decide and measure."""
        with self._phases.measured("decide"):
            return super().decide(view, changes, state)
