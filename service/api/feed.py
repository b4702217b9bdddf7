"""One reader of a log for all the clients that follow it: it looks now and then, and hands on what has become visible.

Nobody holds a thread while he waits. A client that is slower than the log is not kept in memory: it reads for itself what it
has missed, as one does that comes back.
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
"""Pause between two looks at the log while somebody follows it."""

GAP_S = 30.0
"""A number that is missing for so long was rolled back. No transaction that writes events takes so long."""

WINDOW = 10_000
"""Newest numbers in which gaps are looked for when the reader starts: more than are written within :data:`GAP_S`."""

PAGE = 1000
QUEUED_MAX = 1000
"""Entries that wait for one client; with more, it reads the log by itself."""


class Log(NamedTuple):
    """Where entries come from, in the order of their numbers and at most so many; and the largest number there is."""

    read: Callable[[Connection, Numbers, int], Sequence[Entry]]
    newest: Callable[[Connection], int]


class Subscriber:
    """One client. ``position`` is what it has seen."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.queue: asyncio.Queue[Entry] = asyncio.Queue(QUEUED_MAX)
        self.behind = True

    def offer(self, entry: Entry) -> None:
        """Hand on an entry, unless it cannot keep up."""
        if not self.behind:
            try:
                self.queue.put_nowait(entry)
            except asyncio.QueueFull:
                self.behind = True


class Feed:
    """Followers of one log. Everything but the reading happens in the event loop's one thread."""

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
        """How many streams are open."""
        return len(self._subscribers)

    async def prepare(self) -> None:
        """Find out where the log ends. Raises what the database raises."""
        if self._position is None:
            found = await run_in_threadpool(self._begin)
            if self._position is None:
                self._position = found

    async def follow(
        self, since: Position | None, stopping: Callable[[], bool], pulse_s: float
    ) -> AsyncGenerator[tuple[Entry, Position] | None, None]:
        """Entries as they become visible, each with the position after it; None at once, when nothing will be missed any more,
        and whenever nothing came for ``pulse_s``.

        From ``since`` on (None, or a place that is far from this log's end: from now). Ends when ``stopping`` says so.
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

    # For one client: entries, and up to where nothing is waited for once they are told.

    async def _wait(self, subscriber: Subscriber) -> list[tuple[Entry, int]]:
        try:
            return [(await asyncio.wait_for(subscriber.queue.get(), self._look_s), 0)]
        except TimeoutError:
            # With nothing left in the queue, all that the reader has seen has been handed on.
            if self._position is not None and subscriber.queue.empty() and not subscriber.behind:
                subscriber.position.give_up(self._position.floor)
            return []

    async def _catch_up(self, subscriber: Subscriber) -> list[tuple[Entry, int]]:
        """What the log holds beyond the client's position; if that is all, it is behind no more."""
        while not subscriber.queue.empty():
            subscriber.queue.get_nowait()
        assert self._position is not None
        settled = self._position.floor
        # From here on entries are queued too; whatever comes twice is told once.
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
                    full = False  # the database is away: its followers wait with us
                except Exception:
                    # Who follows would hear nothing more, and not know it, if this ended here.
                    logger.exception("a look at the log failed; it is looked again")
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
