"""The scheduling loop: run the engine periodically, at the wake time of a decision, and when a report or a request arrives.

APScheduler keeps the timers. A lock makes the cycles run one after another; a second one keeps readers out while a cycle changes
the engine. This module makes no scheduling decisions.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from apscheduler.job import Job
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from service.engine.engine import Engine
from service.engine.ports import Busy, Clock, ExecutorUnavailable, StoreUnavailable
from service.executors.polled import PolledExecutor

logger = logging.getLogger(__name__)

RECONCILE_EVERY = 3
"""Periodic cycles per reconciliation of the desired state with the executor's."""

READ_WAIT_S = 5.0
"""Longest wait of a reader for a cycle that changes the engine. That takes milliseconds; loading a large state takes seconds."""

REST = 3.0
"""A cycle that a request causes begins this many times the last cycle's duration after it, or later. Under a flood of requests
cycles so take a quarter of the interpreter, and each of them takes in more requests."""

Answer = TypeVar("Answer")


class CycleWatch(Protocol):
    """Observes the time and the outcome of each cycle."""

    def cycle(self) -> AbstractContextManager[None]:
        """A context around each cycle."""

    def passed(self, outcome: str) -> None:
        """Report the outcome: ``committed``, ``idle``, ``failed`` (not committed) or ``broken`` (an exception)."""


class NoWatch:
    """Implements :class:`CycleWatch` without effect."""

    def cycle(self) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()

    def passed(self, outcome: str) -> None:
        """Ignore the outcome."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Seconds between periodic cycles, and between polls of the executor."""

    reschedule_period_s: float
    poll_period_s: float


class CycleConditions(NamedTuple):
    """``may_run``: whether a cycle may run now. ``is_waiting``: whether requests wait for a cycle that arrived through another
    service, which cannot call :meth:`SchedulerLoop.nudge` here."""

    may_run: Callable[[], bool] = lambda: True
    is_waiting: Callable[[], bool] = lambda: False


class SchedulerLoop:
    """Runs one engine. Any thread may call the methods."""

    def __init__(
        self,
        engine: Engine[Any],
        executor: PolledExecutor,
        clock: Clock,
        scheduler: BackgroundScheduler,
        settings: LoopSettings,
        watch: CycleWatch | None = None,
        conditions: CycleConditions = CycleConditions(),
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._clock = clock
        self._scheduler = scheduler
        self._settings = settings
        self._watch = watch or NoWatch()
        self._conditions = conditions
        self._wall_s = wall_s
        self._turn = threading.Lock()
        """Held by whoever runs a cycle, to its end. Taken before ``_lock``."""
        self._lock = threading.Lock()
        """Held by whoever reads the engine, or changes it."""
        self._done = threading.Condition()
        self._cycles_done = 0
        self._cycles = 0
        self._nudged = False
        self._failed = False
        self._closed = False
        self._rest_until_s = 0.0
        self._wake_at_s: float | None = None
        self._timer: Job | None = None
        self.cycle_number = 0
        self.last_cycle_at_s: float | None = None
        self.last_cycle_s: float | None = None
        self.failures = 0

    def start(self) -> None:
        """Reconcile once, then run cycles on timers until :meth:`close`."""
        with self._turn:
            self._reconcile()
        period = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
        self._scheduler.add_job(
            self.tick,
            "interval",
            seconds=self._settings.reschedule_period_s,
            id="reschedule",
            next_run_time=self._date(self._clock.now_s()),
            **period,
        )
        self._scheduler.add_job(self._poll, "interval", seconds=self._settings.poll_period_s, id="poll", **period)

    def close(self) -> None:
        """Wait for the cycle in progress and run no further cycle; store the policy's state.

        Call this before the scheduler's shutdown. The shutdown waits for the cycle while it holds a lock that the cycle needs to
        set a timer.
        """
        with self._turn, self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._engine.store_policy_state()
            except StoreUnavailable as error:
                logger.warning("the policy's newest state is not stored: %s", error)

    def tick(self) -> None:
        """Run the periodic cycle. Each :data:`RECONCILE_EVERY`-th one also reconciles with the executor."""
        self._cycles += 1
        self._cycle(reconcile=self._cycles % RECONCILE_EVERY == 0)

    def nudge(self) -> None:
        """Request a cycle soon and return at once. Calls before the next cycle begins are combined.

        The pause before the cycle is :data:`REST` times the last cycle, at most the poll period. Requests cause most cycles,
        share the interpreter with them, and some of them wait for the end of a cycle.
        """
        if self._nudged or self._closed:
            return
        self._nudged = True
        self._once(self._answer, max(self._clock.now_s(), self._rest_until_s))

    def read(self, look: Callable[[Engine[Any]], Answer]) -> Answer:
        """Call ``look`` with the engine while no cycle changes it: between two cycles, or while one sends its commands.

        Raises Busy after :data:`READ_WAIT_S`.
        """
        if not self._lock.acquire(timeout=READ_WAIT_S):
            raise Busy(f"a scheduling cycle has been running for more than {READ_WAIT_S:g} s")
        try:
            return look(self._engine)
        finally:
            self._lock.release()

    def wait_cycle(self, seen: int, timeout_s: float) -> int:
        """Wait until more than ``seen`` cycles have ended, at most ``timeout_s``. Returns the number of ended cycles."""
        with self._done:
            self._done.wait_for(lambda: self._cycles_done > seen, timeout_s)
            return self._cycles_done

    def _poll(self) -> None:
        # After a failed cycle waiting requests are left to the periodic cycle, so that the error is not logged at each poll.
        try:
            due = self._executor.collect() or (not self._failed and self._conditions.is_waiting())
        except StoreUnavailable:
            due = not self._failed  # the cycle meets the same error, logs it once and fails
        if due:
            self._cycle()

    def _answer(self) -> None:
        """Run the cycle that a nudge requested, unless one has begun since."""
        with self._turn:
            # A cycle that was under way at the nudge has ended now, and its pause has begun. After close() no timer may be set.
            if not self._nudged:
                return
            early = not self._closed and self._clock.now_s() < self._rest_until_s
            if early:
                self._once(self._answer, self._rest_until_s)
        if not early:
            self._cycle()

    def _wake(self) -> None:
        self._wake_at_s = None
        self._cycle()

    def _cycle(self, *, reconcile: bool = False) -> None:
        try:
            self._run_alone(reconcile)
        finally:
            with self._done:
                self._cycles_done += 1
                self._done.notify_all()

    def _run_alone(self, reconcile: bool) -> None:
        with self._turn:
            # A nudge from here on may be too late for this cycle and requests another one.
            self._nudged = False
            if self._closed or not self._conditions.may_run():
                return
            self._failed = True
            began_at_s = self._clock.now_s()
            try:
                with self._watch.cycle(), self._lock:
                    outcome = self._engine.cycle(self._sending())
                if reconcile:
                    self._reconcile()
            except Exception:
                # Whatever was committed of this cycle, the next one starts from the store.
                self.failures += 1
                self._watch.passed("broken")
                logger.exception("a scheduling cycle failed; the state is loaded again")
                with self._lock:
                    self._recover()
                return
            self._watch.passed("failed" if outcome.failed else "committed" if outcome.committed else "idle")
            self.cycle_number = outcome.number
            self.last_cycle_at_s = now_s = self._clock.now_s()
            self.last_cycle_s = now_s - began_at_s
            self._rest_until_s = now_s + min(REST * self.last_cycle_s, self._settings.poll_period_s)
            self._failed = bool(outcome.failed)
            if outcome.failed:
                logger.error("%s", outcome.failed)
            self._arm(outcome.wake_at_s)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        """Let others read the engine: it has changed, and is as it was committed."""
        self.cycle_number = self._engine.number
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _reconcile(self) -> None:
        try:
            self._engine.reconcile()
        except ExecutorUnavailable as error:
            logger.error("reconciliation failed: %s", error)

    def _recover(self) -> None:
        try:
            self._engine.recover()
        except Exception:
            logger.exception("the state could not be loaded; the next cycle tries again")

    def _arm(self, wake_at_s: float | None) -> None:
        """Set the one-shot timer, unless the periodic cycle is earlier."""
        soon = self._clock.now_s() + self._settings.reschedule_period_s
        if wake_at_s is None:
            return
        wake_at_s = max(wake_at_s, self._rest_until_s)
        if wake_at_s < soon and wake_at_s != self._wake_at_s:
            self._wake_at_s = wake_at_s
            before, self._timer = self._timer, self._once(self._wake, wake_at_s)
            if before is not None:
                with suppress(JobLookupError):  # the timer has fired
                    before.remove()

    def _once(self, work: Callable[[], None], at_s: float) -> Job:
        # No id: the scheduler drops a run of an id that is still running, and a running cycle may set the next timer.
        return self._scheduler.add_job(work, "date", run_date=self._date(at_s), coalesce=True, misfire_grace_time=None)

    def _date(self, at_s: float) -> datetime:
        """The time by the machine's clock, for timers. Rounded up to microseconds, since an early cycle has no effect."""
        return datetime.fromtimestamp(self._wall_s() + (at_s - self._clock.now_s()) + 1e-6, UTC)
