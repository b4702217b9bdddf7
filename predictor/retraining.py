"""A predictor that retrains itself in place as jobs end: the ``trained`` predictor of a simulation.

It learns as the live service does, except that training is a call instead of a scheduled process. It promotes only a model that
passes the gate, and keeps the old champion otherwise. Among models that pass, the one with the least loss wins: the service
replays its newest jobs through a simulator to decide, which would be too slow within a simulation. Equal events and seed give
equal answers.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from policies.model.estimate import Attained, EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
from predictor.errors import TrainingError
from predictor.prequential import ROWS_MAX
from predictor.rows import EndedRow, ended_row, newest_by_submission
from predictor.serving import LivePredictor
from predictor.training import train

FIRST_ROWS: Final = 200
"""Ended jobs before the first training."""
GROWTH: Final = 1.5
"""Each further training waits for this many times the jobs of the last one: about a dozen trainings for 20,000 jobs."""

_log = logging.getLogger(__name__)


class RetrainingPredictor:
    """Implements the engine's ``Predictor`` port by shape, like the :class:`LivePredictor` inside it."""

    def __init__(self, seed: int, *, first_rows: int = FIRST_ROWS, growth: float = GROWTH) -> None:
        # The simulator does not end jobs at their walltime; the source of the workload may have, which its run times show.
        self.live = LivePredictor(walltimes_enforced=None)
        self.trainings = 0
        self._seed = seed
        self._growth = growth
        self._next = first_rows
        self._rows: list[EndedRow] = []
        self._ended = 0

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> list[Prediction | None]:
        """See :meth:`LivePredictor.predict`."""
        return self.live.predict(now_s, requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> list[Prediction | None]:
        """See :meth:`LivePredictor.revise`."""
        return self.live.revise(now_s, reported)

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """See :meth:`LivePredictor.watch`."""
        self.live.watch(attained)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Learn from the job, and train again when enough have ended."""
        outdated = self.live.ended(label)
        if label.service_s <= 0.0:
            return outdated
        self._rows.append(ended_row(label))
        self._ended += 1
        if self._ended >= self._next:
            self._next = int(self._ended * self._growth) + 1
            self._retrain()
        return outdated

    def _retrain(self) -> None:
        self._rows = newest_by_submission(self._rows, ROWS_MAX)
        try:
            model = train(self._rows, seed=self._seed)
        except TrainingError as error:
            _log.info("no training: %s", error)
            return
        self.trainings += 1
        if model.promotable:
            self.live.use(model)
