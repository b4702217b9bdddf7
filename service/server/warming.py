"""Leading before the predictor has read its history: what is queued and what runs cannot wait for tens of thousands of jobs.

Until it is warm nothing new is taken in (a job that is admitted without its prediction would go without for good), and jobs
that end are kept for it. Everything else goes on: starts, stops, ends, cancellations, preemptions.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
from service.engine.events import Fact, FactKind
from service.engine.ports import CycleBatch, Predictor, Store
from service.engine.record import JobRecord, StoredWorld

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Pause before the history is read again, after the database did not answer."""


class WarmingPredictor:
    """Implements :class:`service.engine.ports.Predictor` around one that is being warmed. Safe to use from many threads."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._kept: list[EndedJob] = []
        self._warm = False
        self._closed = threading.Event()

    @property
    def warm(self) -> bool:
        """Whether it predicts."""
        return self._warm

    def begin(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do ``work``, which warms the predictor inside, in a thread of its own; ``then`` is called when it predicts.

        While the database does not answer it is tried again, until :meth:`close`.
        """

        def patiently() -> None:
            while not self._closed.is_set():
                try:
                    self.warm_with(work)
                except DBAPIError as error:
                    logger.warning("the predictor waits for its history: %s", " ".join(str(error).split()))
                    self._closed.wait(AGAIN_S)
                else:
                    return then()
            return None

        threading.Thread(target=patiently, name="warming", daemon=True).start()

    def close(self) -> None:
        """Try no more. What is under way ends by itself."""
        self._closed.set()

    def warm_with(self, work: Callable[[], None]) -> None:
        """Do ``work`` and predict. What fails is logged, and it starts from what it has learnt so far; but raises DBAPIError."""
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
        """Tell the inner one, now or once it is warm."""
        with self._lock:
            if not self._warm:
                self._kept.append(label)
                return
        self._inner.ended(label)

    def _more_kept(self) -> bool:
        """Tell what was kept so far; with nothing left it is warm."""
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


class PatientStore:
    """Implements :class:`service.engine.ports.Store` around another one: submissions stay pending until ``ready``."""

    def __init__(self, inner: Store, ready: Callable[[], bool]) -> None:
        self._inner = inner
        self._ready = ready

    def load(self) -> StoredWorld:
        """Pass on."""
        return self._inner.load()

    def jobs(self, ids: Sequence[JobId]) -> list[JobRecord]:
        """Pass on."""
        return self._inner.jobs(ids)

    def pending_facts(self, limit: int) -> Sequence[Fact]:
        """Those of the inner one that may be acted on now."""
        facts = self._inner.pending_facts(limit)
        return facts if self._ready() else [fact for fact in facts if fact.kind is not FactKind.SUBMITTED]

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        """Pass on."""
        return self._inner.commit(batch)
