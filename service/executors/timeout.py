"""An executor with a time limit, so that one that hangs blocks neither the loop nor the API.

A thread makes the calls one after the other. After a timeout the call continues in the thread, and no other call is made until
it returns. Until then there are no reports, and commands are dropped. Nothing is lost: an end is reported until it is
acknowledged, and the next reconciliation sends dropped commands again. A late command does no harm because it names its attempt.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId
from service.engine.commands import Command
from service.engine.events import Report
from service.engine.ports import AttemptStatus, Executor, ExecutorUnavailable

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class TimeLimitedExecutor:
    """Implements :class:`service.engine.ports.Executor` around another one. Its thread ends with the process."""

    def __init__(self, inner: Executor, timeout_s: float) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._hanging: Future[Any] | None = None
        self.timeouts = 0
        """Calls that exceeded the time limit."""
        # A daemon thread: a call that hangs must not keep the service from ending.
        threading.Thread(target=self._work, name="executor", daemon=True).start()

    def send(self, commands: Sequence[Command]) -> None:
        """Pass on, or drop them after a timeout: they are sent again."""
        self._unless_hanging(lambda: self._inner.send(commands), None)

    def poll(self) -> Sequence[Report]:
        """The reports; none while the executor hangs."""
        return self._unless_hanging(self._inner.poll, ())

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Pass on, or not after a timeout: then they are reported again."""
        self._unless_hanging(lambda: self._inner.acknowledge(reports), None)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Pass on. Raises :class:`ExecutorUnavailable` after a timeout: attempts may run unseen."""
        return self._call(self._inner.observed)

    def use_cluster(self, cluster: Cluster) -> None:
        """Pass on, or not after a timeout: reconciliation repeats it."""
        self._unless_hanging(lambda: self._inner.use_cluster(cluster), None)

    def _unless_hanging(self, work: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return self._call(work)
        except ExecutorUnavailable:
            return otherwise

    def _call(self, work: Callable[[], Answer]) -> Answer:
        if not self._turn.acquire(timeout=self._timeout_s):
            raise ExecutorUnavailable("the executor is busy")
        try:
            if self._hanging is not None:
                if not self._hanging.done():
                    raise ExecutorUnavailable("the executor still hangs")
                logger.warning("the executor answers again")
                self._hanging = None
            future: Future[Answer] = Future()
            self._calls.put((future, work))
            if not _ended(future, self._timeout_s):
                self._hanging = future
                self.timeouts += 1
                logger.error("the executor has not answered for %g s (executor_timeout_s)", self._timeout_s)
                raise ExecutorUnavailable(f"the executor has not answered for {self._timeout_s:g} s")
            return future.result()
        finally:
            self._turn.release()

    def _work(self) -> None:
        while True:
            future, work = self._calls.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


def _ended(future: Future[Any], timeout_s: float) -> bool:
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    return ended.wait(timeout_s)
