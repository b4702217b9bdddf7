"""Leading before the predictor has read its history: running and queued jobs cannot wait for tens of thousands of ended ones.

Until the predictor is warm no new job is admitted (a job that is admitted without a prediction never gets one), and jobs that
end are kept for it. Everything else goes on: starts, stops, ends, cancellations, preemptions.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy.exc import DBAPIError

from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Reported
from predictor.serving import LivePredictor
from service.db.history import HISTORY_ROWS_MAX, ended_jobs, last_label
from service.db.prediction_log import first_predictions
from service.db.session import Database
from service.engine.ports import Predictor
from service.runtime.garbage import made_to_stay

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Pause before the history is read again, after the database did not answer."""

WARM_ROWS_AT_ONCE = 2_000
"""Jobs, ended or not, that are read before the first cycle: a third of a second. More are read beside the loop."""

SAID_ROWS_MAX = 10_000
"""Newest predictions that are scored again at start: more than the windows behind calibration, champions and trust hold."""


def warm_up(
    database: Database, predictor: LivePredictor, warming: "WarmingPredictor", unfinished: Sequence[PredictionRequest]
) -> Callable[[], None] | None:
    """Read a short history at once and return None; of a long one, return the work that is left to do.

    The history ends with the newest label that there is now: the loop reports later ends, and none may be learnt twice.
    """
    last = last_label(database)
    work = partial(_read_history, database, predictor, unfinished, last)
    if last + len(unfinished) > WARM_ROWS_AT_ONCE:
        return partial(_keep_out_of_collection, work)
    warming.warm_with(work)
    return None


def _read_history(
    database: Database, predictor: LivePredictor, unfinished: Sequence[PredictionRequest], last: int
) -> None:
    said = list(first_predictions(database, SAID_ROWS_MAX, [request.job for request in unfinished]))
    predictor.warm(list(ended_jobs(database, newest=HISTORY_ROWS_MAX, last=last)), unfinished, said)


def _keep_out_of_collection(work: Callable[[], None]) -> None:
    with made_to_stay():
        work()


class WarmingPredictor:
    """Implements :class:`service.engine.ports.Predictor` around one that is being warmed. Thread-safe."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._kept: list[EndedJob] = []
        self._warm = False
        self._closed = threading.Event()

    @property
    def warm(self) -> bool:
        """Whether it predicts yet."""
        return self._warm

    def begin(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do ``work``, which warms the inner predictor, in a thread, and then call ``then``.

        If the database does not answer, it is tried again until :meth:`close`.
        """

        def retry() -> None:
            while not self._closed.is_set():
                try:
                    self.warm_with(work)
                except DBAPIError as error:
                    logger.warning("the predictor waits for its history: %s", " ".join(str(error).split()))
                    self._closed.wait(AGAIN_S)
                else:
                    then()
                    return

        threading.Thread(target=retry, name="warming", daemon=True).start()

    def close(self) -> None:
        """Stop retrying. Work under way ends by itself."""
        self._closed.set()

    def warm_with(self, work: Callable[[], None]) -> None:
        """Do ``work`` and predict from then on. Other errors than DBAPIError are logged: it predicts with what it has learnt."""
        try:
            work()
        except DBAPIError:
            raise
        except Exception:
            logger.exception("the predictor was not warmed with all of its history")
        while self._more_kept():
            pass

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """The inner one's answers; none before it is warm."""
        return self._inner.predict(now_s, requests) if self._warm else [None] * len(requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """The inner one's answers; none before it is warm."""
        return self._inner.revise(now_s, reported) if self._warm else [None] * len(reported)

    def ended(self, label: EndedJob) -> None:
        """Pass on, now or once it is warm."""
        with self._lock:
            if not self._warm:
                self._kept.append(label)
                return
        self._inner.ended(label)

    def _more_kept(self) -> bool:
        """Pass on what was kept so far. With nothing left it is warm."""
        with self._lock:
            kept, self._kept = self._kept, []
            if not kept:
                self._warm = True
                return False
        for label in kept:
            try:
                self._inner.ended(label)
            except Exception:
                logger.exception("the predictor did not learn from job %s", label.job)
        return True
