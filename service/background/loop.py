"""When the engine runs: on a period, at the instant a decision asked for, when a report or a request comes in.

APScheduler keeps the timers; the lock here makes cycles follow each other. Nothing is decided in this module.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
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
"""Periodic cycles between two comparisons of what is desired with what the executor sees."""

READ_WAIT_S = 5.0
"""A reader waits so long for a cycle to end: cycles take milliseconds, loading a large world anew takes seconds."""

Answer = TypeVar("Answer")


class PassWatch(Protocol):
    """Who looks at the watch while a cycle runs."""

    def cycle(self) -> AbstractContextManager[None]:
        """Around each cycle."""

    def passed(self, outcome: str) -> None:
        """How it ended: ``committed``, ``idle``, ``failed`` (not committed) or ``broken`` (it raised)."""


class NobodyWatches:
    """Implements :class:`PassWatch`."""

    def cycle(self) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def passed(self, outcome: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Seconds between periodic cycles, and between looks at the attempts."""

    reschedule_period_s: float
    poll_period_s: float


class Turns(NamedTuple):
    """``may_run``: whether a cycle may be made now. ``is_waiting``: whether a request waits for one that nobody here was
    told of, because it came in through another service."""

    may_run: Callable[[], bool] = lambda: True
    is_waiting: Callable[[], bool] = lambda: False


class SchedulerLoop:
    """Drives one engine. Methods may be called from any thread."""

    def __init__(
        self,
        engine: Engine[Any],
        executor: PolledExecutor,
        clock: Clock,
        scheduler: BackgroundScheduler,
        settings: LoopSettings,
        watch: PassWatch | None = None,
        turns: Turns = Turns(),
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._clock = clock
        self._scheduler = scheduler
        self._settings = settings
        self._watch = watch or NobodyWatches()
        self._turns = turns
        self._wall_s = wall_s
        self._lock = threading.Lock()
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
        self.last_pass_at_s: float | None = None
        self.failures = 0

    def start(self) -> None:
        """Reconcile once, then run on timers until :meth:`close`."""
        with self._lock:
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
        """Wait for a cycle that is under way, and run no more.

        Before the scheduler is shut down: it would wait for the cycle, and the cycle for it, to set a timer.
        """
        with self._lock:
            self._closed = True

    def tick(self) -> None:
        """The periodic cycle: the safety net, and now and then the comparison with what the executor sees."""
        self._cycles += 1
        self._cycle(reconcile=self._cycles % RECONCILE_EVERY == 0)

    def nudge(self) -> None:
        """Ask for a cycle soon and return at once; until one begins, many nudges are one.

        It begins when as much time has gone by since the last one as that took: requests, which ask for most cycles, are
        answered by the same interpreter, and some of them have to wait for the end of a cycle.
        """
        if self._nudged or self._closed:
            return
        self._nudged = True
        self._once(self._cycle, max(self._clock.now_s(), self._rest_until_s))

    def read(self, look: Callable[[Engine[Any]], Answer]) -> Answer:
        """Look at the engine between two cycles. Raises Busy where none ends for :data:`READ_WAIT_S`."""
        if not self._lock.acquire(timeout=READ_WAIT_S):
            raise Busy(f"a scheduling cycle has been under way for more than {READ_WAIT_S:g} s")
        try:
            return look(self._engine)
        finally:
            self._lock.release()

    def wait_pass(self, seen: int, timeout_s: float) -> int:
        """How many cycles have ended: as soon as they are more than ``seen``, or after so many seconds."""
        with self._done:
            self._done.wait_for(lambda: self._cycles_done > seen, timeout_s)
            return self._cycles_done

    def _poll(self) -> None:
        # After a cycle that failed, what waits is left to the periodic one: nobody needs its error four times a second.
        try:
            due = self._executor.collect() or (not self._failed and self._turns.is_waiting())
        except StoreUnavailable:
            due = not self._failed  # the cycle finds out, says it in a line, and has failed
        if due:
            self._cycle()

    def _wake(self) -> None:
        self._wake_at_s = None
        self._cycle()

    def _cycle(self, *, reconcile: bool = False) -> None:
        try:
            self._pass_alone(reconcile)
        finally:
            with self._done:
                self._cycles_done += 1
                self._done.notify_all()

    def _pass_alone(self, reconcile: bool) -> None:
        with self._lock:
            # Whoever nudges from here on may have come too late for this cycle.
            self._nudged = False
            if self._closed or not self._turns.may_run():
                return
            self._failed = True
            began_at_s = self._clock.now_s()
            try:
                with self._watch.cycle():
                    outcome = self._engine.cycle()
                if reconcile:
                    self._reconcile()
            except Exception:
                # The next cycle starts from the store: whatever broke here was not committed.
                self.failures += 1
                self._watch.passed("broken")
                logger.exception("a scheduling cycle failed; the world is loaded anew")
                self._recover()
                return
            self._watch.passed("failed" if outcome.failed else "committed" if outcome.committed else "idle")
            self.cycle_number = outcome.number
            self.last_pass_at_s = now_s = self._clock.now_s()
            self._rest_until_s = now_s + min(now_s - began_at_s, self._settings.poll_period_s)
            self._failed = bool(outcome.failed)
            if outcome.failed:
                logger.error("%s", outcome.failed)
            self._arm(outcome.wake_at_s)

    def _reconcile(self) -> None:
        try:
            self._engine.reconcile()
        except ExecutorUnavailable as error:
            logger.error("not reconciled: %s", error)

    def _recover(self) -> None:
        try:
            self._engine.recover()
        except Exception:
            logger.exception("the world could not be loaded; the next cycle tries again")

    def _arm(self, wake_at_s: float | None) -> None:
        """Set the one-shot timer, unless the periodic cycle comes first anyway."""
        soon = self._clock.now_s() + self._settings.reschedule_period_s
        if wake_at_s is None:
            return
        wake_at_s = max(wake_at_s, self._rest_until_s)
        if wake_at_s < soon and wake_at_s != self._wake_at_s:
            self._wake_at_s = wake_at_s
            before, self._timer = self._timer, self._once(self._wake, wake_at_s)
            if before is not None:
                with suppress(JobLookupError):  # it has gone off
                    before.remove()

    def _once(self, work: Callable[[], None], at_s: float) -> Job:
        # Without a name: the scheduler drops a run of a name of which one is under way, and a cycle may set the next timer.
        return self._scheduler.add_job(work, "date", run_date=self._date(at_s), coalesce=True, misfire_grace_time=None)

    def _date(self, at_s: float) -> datetime:
        """When that is on the machine's clock, which the timers go by. Microseconds, rounded up: early finds nothing to do."""
        return datetime.fromtimestamp(self._wall_s() + (at_s - self._clock.now_s()) + 1e-6, UTC)
