"""The state behind served predictions: models with rolling calibration, and per unit the champions and the trust in them."""

from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from policies.model.estimate import Unit
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.candidate_scores import CandidateScores
from predictor.drift import DriftMonitor
from predictor.intervals import Array, ConformalCalibrator
from predictor.mix import SIMPLEST, Mix
from predictor.pending import PendingPrediction
from predictor.recurrence import BUCKETS
from predictor.tracking import IntervalTracker
from predictor.training import TrainedHead, TrainedModel
from predictor.trust import Switch, Trust, TrustRung


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One history bucket of a head: the champions, the number of jobs that they were chosen by, and the trust in them.

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
    """A model in service, with its own copy of the calibrators, which keep learning."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model
        self.calibrators: dict[Unit, dict[str, ConformalCalibrator]] = {
            unit: {name: deepcopy(c) for name, c in head.calibrators.items()} for unit, head in model.heads.items()
        }

    def observe(self, unit: Unit, bucket: int, label: float, raw: Mapping[tuple[str, str], Array]) -> None:
        """A job ended; ``raw`` are the models' points of it before calibration, by version and kind."""
        for kind, calibrator in self.calibrators.get(unit, {}).items():
            points = raw.get((self.model.version, kind))
            if points is not None:
                calibrator.observe(bucket, label, points)


def _candidate_scores(head: TrainedHead | None) -> CandidateScores:
    """Those of every baseline, and of all models of a head with a champion. Of the models only the champion may serve
    distributions, by which jobs are ranked: it may have been chosen by more than scores.
    """
    if head is None or head.champion is None:
        return CandidateScores(BASELINE_NAMES)
    return CandidateScores((*BASELINE_NAMES, *head.kinds), head.metrics, (head.champion,))


@dataclass(slots=True)
class HeadState:
    """The rolling state of one unit. ``pinned`` is the kind that an operator promoted, which then serves every bucket, and
    ``alarms`` how often drift was detected, whichever model served.
    """

    scores: CandidateScores = field(default_factory=lambda: _candidate_scores(None))
    trust: Trust = field(default_factory=Trust)
    tracker: IntervalTracker = field(default_factory=IntervalTracker)
    drift: DriftMonitor = field(default_factory=DriftMonitor)
    pinned: str | None = None
    has_model: bool = False
    alarms: int = 0

    def use(self, head: TrainedHead | None, pinned: str | None) -> list[Switch]:
        """Another model serves: the record of the previous one is dropped. The trust in the group distribution and the tracked
        ends stay: they do not depend on the model.
        """
        self.scores = _candidate_scores(head)
        self.drift = DriftMonitor()
        self.pinned = pinned
        self.has_model = pinned is not None or (head is not None and head.champion is not None)
        return self.trust.new_model()

    def mix(self) -> Mix:
        """The champions of each bucket now."""
        if self.pinned is not None:
            return Mix((self.pinned,) * len(BUCKETS), (self.pinned,) * len(BUCKETS))
        return self.scores.mix()

    def score(
        self, bucket: int, label: float, pending: PendingPrediction, at_s: float, group: Hashable
    ) -> list[Switch]:
        """Score the prediction of a job that ended at ``at_s``; returns the changes of trust. ``group``: see ``DriftMonitor``."""
        if pending.current:
            if pending.served_log is not None:
                stood = self.drift.alarm
                self.drift.observe(label - pending.served_log, at_s, group)
                self.alarms += self.drift.alarm and not stood
            self.scores.observe(bucket, label, pending.candidates())
        if pending.tracked is not None:
            self.tracker.observe(bucket, label, pending.tracked)
        # Baselines learn from every job, so that no training can clear their alarm.
        since_s = self.drift.since_s if self.has_model else None
        return self.trust.observe(
            bucket,
            label,
            model=pending.mixed if pending.current else None,
            group=pending.candidates().get(SIMPLEST),
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
                    jobs=self.scores.jobs(bucket),
                    rung=standing.rung,
                    reason=standing.reason,
                    coverage=watch.coverage,
                    concordance=watch.concordance,
                )
            )
        return tuple(found)
