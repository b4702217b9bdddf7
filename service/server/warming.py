"""Warm the predictor while the leader runs. Running and queued jobs must not wait until tens of thousands of jobs are read.

Until the predictor is warm no new job is admitted, because a job that is admitted without a prediction never gets one. Jobs that
end are kept for the predictor. All other work continues: starts, stops, ends, cancellations, preemptions.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sqlalchemy.exc import DBAPIError

from policies.model.estimate import Attained, EndedJob, Estimate, Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
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
"""Most jobs, ended or not, that are read before the first cycle (0.3 s). A longer history is read in a thread."""

PREDICTION_ROWS_MAX = 10_000
"""Most predictions that are scored again at the start, newest first: more than the windows of calibration and champions hold."""


def warm_up(
    database: Database,
    predictor: LivePredictor,
    warming: "WarmingPredictor",
    unfinished: Sequence[PredictionRequest],
    predicted: Callable[[JobId, Estimate], None],
) -> Callable[[], None] | None:
    """Read a short history at once and return None. For a long one return the function that reads it.

    The history ends with the newest label of now. The loop reports later ends, and no job may be learnt twice. ``predicted`` is
    called with the first prediction of each unfinished job.
    """
    last = last_label(database)
    work = partial(_read_history, database, predictor, unfinished, predicted, last)
    if last + len(unfinished) > WARM_ROWS_AT_ONCE:
        return partial(_keep_out_of_collection, work)
    warming.warm_with(work)
    return None


def _read_history(
    database: Database,
    predictor: LivePredictor,
    unfinished: Sequence[PredictionRequest],
    predicted: Callable[[JobId, Estimate], None],
    last: int,
) -> None:
    jobs = {request.job for request in unfinished}

    def predictions() -> Iterator[tuple[JobId, Prediction]]:
        for job, prediction in first_predictions(database, PREDICTION_ROWS_MAX, sorted(jobs)):
            if job in jobs:
                predicted(job, prediction.estimate)
            yield job, prediction

    predictor.warm(ended_jobs(database, newest=HISTORY_ROWS_MAX, last=last), unfinished, predictions())


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
        """Whether the predictor answers requests."""
        return self._warm

    def begin(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Call ``work``, which warms the inner predictor, in a thread, then call ``then``.

        If the database does not answer, ``work`` is called again until :meth:`close`.
        """

        def retry() -> None:
            while not self._closed.is_set():
                try:
                    self.warm_with(work)
                except DBAPIError as error:
                    logger.warning(
                        "the history for the predictor could not be read yet: %s", " ".join(str(error).split())
                    )
                    self._closed.wait(AGAIN_S)
                else:
                    then()
                    return

        threading.Thread(target=retry, name="warming", daemon=True).start()

    def close(self) -> None:
        """Stop retrying. A read in progress runs to its end."""
        self._closed.set()

    def warm_with(self, work: Callable[[], None]) -> None:
        """Call ``work``, then predict. DBAPIError is raised. Other errors are logged, and the partial history is used."""
        try:
            work()
        except DBAPIError:
            raise
        except Exception:
            logger.exception("the predictor has read only a part of its history")
        while self._more_kept():
            pass

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """The inner one's answers; none before it is warm."""
        return self._inner.predict(now_s, requests) if self._warm else [None] * len(requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """The inner one's answers; none before it is warm."""
        return self._inner.revise(now_s, reported) if self._warm else [None] * len(reported)

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """Passed on."""
        self._inner.watch(attained)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Pass the label on, or keep it until the predictor is warm."""
        with self._lock:
            if not self._warm:
                self._kept.append(label)
                return ()
        return self._inner.ended(label)

    def _more_kept(self) -> bool:
        """Pass on the kept labels. If there are none, the predictor is warm. Returns whether there were some."""
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
