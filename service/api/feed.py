"""One reader of a log for all clients that follow it: it polls the log and passes on new entries.

No client holds a thread while it waits. For a client that is slower than the log nothing is kept in memory: it reads the missed
entries from the log, like a client that reconnects. Why numbers may become visible out of order:
docs/explanation/decisions/0013-submission-events.md.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool

from service.db.event_log import Entry, Numbers
from service.db.session import Database
from service.runtime.stream_position import Position

logger = logging.getLogger(__name__)

LOOK_S = 0.3
"""Pause between two reads of a log that has followers."""

GAP_S = 30.0
"""A number that is missing for longer was rolled back. No transaction that writes events takes so long."""

WINDOW = 10_000
"""Newest numbers that are checked for gaps when the reader starts: more than are written within :data:`GAP_S`."""

PAGE = 1000
QUEUED_MAX = 1000
"""Entries queued for one client; with more, it reads the log itself."""


class Log(NamedTuple):
    """How to read entries, in the order of their numbers and with a limit; and how to find the largest number."""

    read: Callable[[Connection, Numbers, int], Sequence[Entry]]
    newest: Callable[[Connection], int]


class Subscriber:
    """One client, which has seen the entries of ``position``."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.queue: asyncio.Queue[Entry] = asyncio.Queue(QUEUED_MAX)
        self.behind = True

    def offer(self, entry: Entry) -> None:
        """Queue an entry, unless the client is behind."""
        if not self.behind:
            try:
                self.queue.put_nowait(entry)
            except asyncio.QueueFull:
                self.behind = True


class Feed:
    """The followers of one log. Only the reads run outside the thread of the event loop."""

    def __init__(
        self,
        database: Database,
        log: Log,
        *,
        look_s: float = LOOK_S,
        gap_s: float = GAP_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._log = log
        self._look_s = look_s
        self._gap_s = gap_s
        self._monotonic_s = monotonic_s
        self._subscribers: set[Subscriber] = set()
        self._position: Position | None = None
        self._gaps: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def followers(self) -> int:
        """Number of open streams."""
        return len(self._subscribers)

    async def prepare(self) -> None:
        """Find the end of the log. Raises DBAPIError."""
        if self._position is None:
            found = await run_in_threadpool(self._begin)
            if self._position is None:
                self._position = found

    async def follow(
        self, since: Position | None, stopping: Callable[[], bool], pulse_s: float
    ) -> AsyncGenerator[tuple[Entry, Position] | None, None]:
        """New entries, each with the position after it. None as soon as none can be missed, and after ``pulse_s`` without one.

        Starts after ``since`` (None, or a position far beyond the end of this log: now). Ends when ``stopping`` is true.
        """
        await self.prepare()
        assert self._position is not None
        foreign = since is None or since.newest > self._position.newest + WINDOW
        subscriber = Subscriber((self._position if since is None or foreign else since).copy())
        self._subscribers.add(subscriber)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield None
            quiet_s = 0.0
            while not stopping():
                entries = await (self._catch_up(subscriber) if subscriber.behind else self._wait(subscriber))
                for entry, settled in entries:
                    if not subscriber.position.has(entry[0]):
                        subscriber.position.add(entry[0])
                        subscriber.position.give_up(settled)
                        yield entry, subscriber.position
                quiet_s = 0.0 if entries else quiet_s + self._look_s
                if quiet_s >= pulse_s:
                    quiet_s = 0.0
                    yield None
        finally:
            self._subscribers.discard(subscriber)

    # For one client: entries, each with the number up to which no entry is missing after it.

    async def _wait(self, subscriber: Subscriber) -> list[tuple[Entry, int]]:
        try:
            return [(await asyncio.wait_for(subscriber.queue.get(), self._look_s), 0)]
        except TimeoutError:
            # The queue is empty: everything that the reader has seen was passed on.
            if self._position is not None and subscriber.queue.empty() and not subscriber.behind:
                subscriber.position.give_up(self._position.floor)
            return []

    async def _catch_up(self, subscriber: Subscriber) -> list[tuple[Entry, int]]:
        """Entries beyond the client's position. With fewer than a page of them it has caught up."""
        while not subscriber.queue.empty():
            subscriber.queue.get_nowait()
        assert self._position is not None
        settled = self._position.floor
        # Entries are queued again from here on. Those that come twice are dropped later.
        subscriber.behind = False
        entries = await run_in_threadpool(self._read, subscriber.position.floor)
        if len(entries) == PAGE:
            subscriber.behind = True
            settled = min(settled, entries[-1][0])
        missed = [entry for entry in entries if not subscriber.position.has(entry[0])]
        after = [min(settled, number - 1) for number, _ in missed[1:]]
        subscriber.position.give_up(min(settled, missed[0][0] - 1) if missed else settled)
        return list(zip(missed, [*after, settled], strict=bool(missed)))

    # For all.

    async def _look(self) -> None:
        try:
            while self._subscribers:
                try:
                    full = await self._look_once()
                except DBAPIError:
                    full = False  # the database does not answer: the followers wait
                except Exception:
                    # Without a retry the followers would receive nothing more, and no error.
                    logger.exception("reading the log failed; trying again")
                    full = False
                if not full:
                    await asyncio.sleep(self._look_s)
        finally:
            self._position = None
            self._gaps = {}

    async def _look_once(self) -> bool:
        assert self._position is not None
        position = self._position
        gaps = position.gaps(PAGE)
        late, new = await run_in_threadpool(self._read_new, gaps, position.newest)
        for entry in (*late, *new):
            position.add(entry[0])
            for subscriber in self._subscribers:
                subscriber.offer(entry)
        now_s = self._monotonic_s()
        self._gaps = {number: self._gaps.get(number, now_s) for number in position.gaps(PAGE)}
        for number, since_s in self._gaps.items():
            if now_s - since_s >= self._gap_s:
                position.add(number)
        return len(new) == PAGE

    # In another thread.

    def _begin(self) -> Position:
        with self._database.reading() as session:
            connection = session.connection()
            floor = max(0, self._log.newest(connection) - WINDOW)
            return Position(floor, (number for number, _ in self._log.read(connection, floor, WINDOW)))

    def _read_new(self, gaps: Sequence[int], newest: int) -> tuple[Sequence[Entry], Sequence[Entry]]:
        with self._database.reading() as session:
            connection = session.connection()
            late = self._log.read(connection, gaps, PAGE) if gaps else ()
            return late, self._log.read(connection, newest, PAGE)

    def _read(self, floor: int) -> Sequence[Entry]:
        with self._database.reading() as session:
            return self._log.read(session.connection(), floor, PAGE)
