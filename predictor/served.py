"""What serves: a model with its own rolling calibration, and per head the choice of champions and the trust in them."""

from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from policies.model.estimate import Unit
from predictor.asked import Asked
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.drift import DriftMonitor
from predictor.evidence import Evidence
from predictor.intervals import Array, ConformalCalibrator
from predictor.mix import SIMPLEST, Mix
from predictor.recurrence import BUCKETS
from predictor.tracking import IntervalTracker
from predictor.training import TrainedHead, TrainedModel
from predictor.trust import Switch, Trust, TrustRung


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One history bucket of a head: who is champion, on how many jobs' evidence, and whether it is trusted.

    ``coverage`` (of 80% intervals) and ``concordance`` are the champions' own over the newest jobs; None while too few are
    scored. ``reason`` is "" on the first rung.
    """

    bucket: str
    distribution: str
    point: str
    jobs: int
    rung: TrustRung
    reason: str
    coverage: float | None
    concordance: float | None


class ServedModel:
    """A model in service: its own copy of the calibrators, which roll on."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model
        self.calibrators: dict[Unit, dict[str, ConformalCalibrator]] = {
            unit: {name: deepcopy(c) for name, c in head.calibrators.items()} for unit, head in model.heads.items()
        }

    def version(self, kind: str) -> str:
        """The name of one of its kinds in predictions."""
        return f"{self.model.version}/{kind}"

    def observe(self, unit: Unit, bucket: int, label: float, raw: Mapping[tuple[str, str], Array]) -> None:
        """A job ended of which its kinds had said these raw points."""
        for kind, calibrator in self.calibrators.get(unit, {}).items():
            points = raw.get((self.model.version, kind))
            if points is not None:
                calibrator.observe(bucket, label, points)


def _evidence(head: TrainedHead | None) -> Evidence:
    """Of every baseline, and of all models of a head of which one passed the gate. Distributions, by which jobs are ranked, are
    that one's alone: between models that pass, more than scores may have decided.
    """
    if head is None or head.champion is None:
        return Evidence(BASELINE_NAMES)
    return Evidence((*BASELINE_NAMES, *head.kinds), head.metrics, (head.champion,))


@dataclass(slots=True)
class HeadState:
    """The rolling state of one unit. ``insisted`` is the kind that a person promoted, which then serves every bucket."""

    evidence: Evidence = field(default_factory=lambda: _evidence(None))
    trust: Trust = field(default_factory=Trust)
    tracker: IntervalTracker = field(default_factory=IntervalTracker)
    drift: DriftMonitor = field(default_factory=DriftMonitor)
    insisted: str | None = None
    has_model: bool = False
    alarms: int = 0
    """How often drift was seen, whichever model served."""

    def use(self, head: TrainedHead | None, insisted: str | None) -> list[Switch]:
        """Another model serves: what the one before said counts no more. The trust in the group distribution stays, and the
        tracked ends: they follow the jobs that are served, whoever answers.
        """
        self.evidence = _evidence(head)
        self.drift = DriftMonitor()
        self.insisted = insisted
        self.has_model = insisted is not None or (head is not None and head.champion is not None)
        return self.trust.new_model()

    def mix(self) -> Mix:
        """The champions of each bucket now."""
        if self.insisted is not None:
            return Mix((self.insisted,) * len(BUCKETS), (self.insisted,) * len(BUCKETS))
        return self.evidence.mix()

    def score(self, bucket: int, label: float, asked: Asked, at_s: float, whose: Hashable) -> list[Switch]:
        """A job ended that was asked in this unit: what was said of it is evidence. What has switched."""
        if asked.current:
            if asked.served_log is not None:
                stood = self.drift.alarm
                self.drift.observe(label - asked.served_log, at_s, whose)
                self.alarms += self.drift.alarm and not stood
            self.evidence.observe(bucket, label, asked.candidates())
        if asked.tracked is not None:
            self.tracker.observe(bucket, label, asked.tracked)
        # Baselines learn from each job: there is no training that they could be waiting for.
        since_s = self.drift.since_s if self.has_model else None
        return self.trust.observe(
            bucket,
            label,
            model=asked.mixed if asked.current else None,
            group=asked.candidates().get(SIMPLEST),
            alarm_age_s=None if since_s is None else at_s - since_s,
        )

    def status(self) -> tuple[BucketStatus, ...]:
        """Every bucket, in order."""
        mix = self.mix()
        found = []
        for bucket, name in enumerate(BUCKETS):
            standing, watch = self.trust.standing(bucket), self.trust.models[bucket]
            found.append(
                BucketStatus(
                    bucket=name,
                    distribution=mix.distribution[bucket],
                    point=mix.point[bucket],
                    jobs=self.evidence.jobs(bucket),
                    rung=standing.rung,
                    reason=standing.reason,
                    coverage=watch.coverage,
                    concordance=watch.concordance,
                )
            )
        return tuple(found)
