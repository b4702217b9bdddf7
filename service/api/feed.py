"""One reader of a log for all clients that follow it: it polls the log and keeps the newest entries for them.

No client holds a thread while it waits. A client that is slower than the log, or that continues far back, reads pages of the log
by itself until it has caught up.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool

from service.db.event_log import Entry
from service.db.session import Database

logger = logging.getLogger(__name__)

LOOK_S = 0.3
"""Pause between two reads of a log that has followers."""

PAGE = 1000
RECENT_MAX = 1000
"""Newest entries in memory. A client that has not received the entry before them reads the log itself."""


class Log(NamedTuple):
    """How to read at most so many entries after a number, in ascending order; and how to find the largest number."""

    read: Callable[[Connection, int, int], Sequence[Entry]]
    newest: Callable[[Connection], int]


class Feed:
    """The followers of one log. Only the reads run outside the thread of the event loop."""

    def __init__(self, database: Database, log: Log, *, look_s: float = LOOK_S) -> None:
        self._database = database
        self._log = log
        self._look_s = look_s
        self.followers = 0
        """Number of open streams."""
        self._reader: asyncio.Task[None] | None = None
        self._begins_after = 0
        """``_recent`` holds every entry after this number that the reader has seen."""
        self._recent: list[Entry] = []
        self._news = asyncio.Event()
        """Set when the reader sees new entries, and then replaced by a new one."""

    async def follow(
        self, since: int | None, stopping: Callable[[], bool], pulse_s: float
    ) -> AsyncGenerator[Entry | int, None]:
        """New entries; and the position reached, as soon as no entry can be missed, and after ``pulse_s`` without an entry.

        Starts after ``since``. Starts now where it is None or beyond the end of this log, which another database wrote then.
        Ends when ``stopping`` is true. Raises DBAPIError.
        """
        async with self.watched() as newest:
            position = newest if since is None else min(since, newest)
            yield position
            quiet_s = 0.0
            while not stopping():
                entries = await self._after(position)
                for entry in entries:
                    position = entry[0]
                    yield entry
                quiet_s = 0.0 if entries else quiet_s + self._look_s
                if quiet_s >= pulse_s:
                    quiet_s = 0.0
                    yield position

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[int, None]:
        """Have the log read for as long as the block runs. Gives the number of its newest entry. Raises DBAPIError."""
        newest = await run_in_threadpool(self._newest)
        self.followers += 1
        if self._reader is None or self._reader.done():
            self._begins_after, self._recent, self._news = newest, [], asyncio.Event()
            self._reader = asyncio.create_task(self._look())
        try:
            yield newest
        finally:
            self.followers -= 1

    @property
    def newest(self) -> int:
        """The number of the newest entry that the reader has seen."""
        return self._recent[-1][0] if self._recent else self._begins_after

    async def _after(self, position: int) -> Sequence[Entry]:
        """The next entries after a position; none if none comes for a while."""
        if position >= self.newest:
            try:
                await asyncio.wait_for(self._news.wait(), self._look_s)
            except TimeoutError:
                return ()
        if position < self._begins_after:
            return await run_in_threadpool(self._read, position)
        return self._recent[bisect_right(self._recent, position, key=lambda entry: entry[0]) :]

    async def _look(self) -> None:
        seen = self._begins_after
        while self.followers:
            new: Sequence[Entry] = ()
            try:
                new = await run_in_threadpool(self._read, seen)
            except DBAPIError:
                pass  # the database does not answer: the followers wait
            except Exception:
                # Without a retry the followers would receive nothing more, and no error.
                logger.exception("reading the log failed; trying again")
            if new:
                seen = new[-1][0]
                self._keep(new)
            if len(new) < PAGE:
                await asyncio.sleep(self._look_s)

    def _keep(self, new: Sequence[Entry]) -> None:
        recent = [*self._recent, *new]
        if len(recent) > RECENT_MAX:
            self._begins_after = recent[-RECENT_MAX - 1][0]
        self._recent = recent[-RECENT_MAX:]
        self._news.set()
        self._news = asyncio.Event()

    # In another thread.

    def _newest(self) -> int:
        with self._database.reading() as session:
            return self._log.newest(session.connection())

    def _read(self, after: int) -> Sequence[Entry]:
        with self._database.reading() as session:
            return self._log.read(session.connection(), after, PAGE)
