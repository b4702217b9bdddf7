"""A log is followed without a loss and without a repetition, also by clients that break off and by clients that are slow."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, PendingRollbackError

from service.api import feed as feeds
from service.api.feed import Feed, Log
from service.db.event_log import Entry
from service.db.session import Database


class Commits:
    """A log in memory: entries become visible one by one, in ascending order."""

    def __init__(self, *numbers: int) -> None:
        self.waiting = list(numbers)
        self.visible: list[int] = []
        self.looks = 0
        self.failures: list[Exception] = []

    def commit(self) -> None:
        """The next entry is there."""
        if self.waiting:
            self.visible.append(self.waiting.pop(0))

    def read(self, connection: Connection, after: int, limit: int) -> list[Entry]:
        self.looks += 1
        if self.failures:
            raise self.failures.pop()
        return [(number, cast(Any, None)) for number in self.visible if number > after][:limit]

    def newest(self, connection: Connection) -> int:
        return max(self.visible, default=0)


class NoDatabase:
    """Sessions of nothing."""

    @contextmanager
    def reading(self) -> Iterator[Any]:
        yield SimpleNamespace(connection=lambda: None)


def feed_of(commits: Commits) -> Feed:
    return Feed(cast(Database, NoDatabase()), Log(commits.read, commits.newest), look_s=0.0005)


async def follow(commits: Commits, feed: Feed, draw: random.Random, last: int) -> list[int]:
    """A client that is cut off again and again, and continues where it was, until it has the last entry."""
    received = [0]
    async with asyncio.timeout(120.0):
        while received[-1] != last:
            left = draw.randrange(1, 6)
            async with aclosing(feed.follow(received[-1], lambda: False, 0.001)) as stream:
                async for entry in stream:
                    if draw.random() < 0.5:
                        commits.commit()
                    if not isinstance(entry, int):
                        received.append(entry[0])
                    left -= 1
                    if left == 0 or received[-1] == last:
                        break
    return received[1:]


@given(
    st.sets(st.integers(1, 60), min_size=1, max_size=20),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_every_entry_is_received_once_and_in_order(numbers: set[int], page: int, recent: int, seed: int) -> None:
    """Two clients follow one feed, whatever the lengths of a page and of the part in memory."""
    order = sorted(numbers)
    commits = Commits(*order)

    async def run() -> None:
        feed = feed_of(commits)
        clients = (follow(commits, feed, random.Random(seed + index), order[-1]) for index in range(2))
        for received in await asyncio.gather(*clients):
            assert received == order
        assert feed.followers == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "PAGE", page)
        patch.setattr(feeds, "RECENT_MAX", recent)
        asyncio.run(run())


def test_a_slow_client_reads_for_itself_what_it_has_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RECENT_MAX", 3)
    monkeypatch.setattr(feeds, "PAGE", 7)
    commits = Commits(*range(1, 101))

    async def run() -> list[int]:
        received = []
        async with aclosing(feed_of(commits).follow(0, lambda: False, 0.001)) as stream:
            async for entry in stream:
                for _ in range(9):
                    commits.commit()
                if isinstance(entry, int):
                    continue
                received.append(entry[0])
                await asyncio.sleep(0.002)
                if len(received) == 100:
                    break
        return received

    assert asyncio.run(run()) == list(range(1, 101))


@pytest.mark.parametrize(
    "error",
    [OperationalError("BEGIN", None, Exception("away")), PendingRollbackError("it broke")],
    ids=["away", "broken"],
)
def test_a_read_that_fails_ends_no_stream(error: Exception) -> None:
    commits = Commits(1, 2)

    async def run() -> list[int]:
        async with aclosing(feed_of(commits).follow(None, lambda: False, 0.001)) as stream:
            commits.failures.append(error)
            while commits.failures:
                assert await anext(stream) == 0
            commits.commit()
            commits.commit()
            return await limited(stream, 2)

    assert asyncio.run(run()) == [1, 2]


async def limited(stream: Any, count: int) -> list[int]:
    """The numbers of the next entries."""
    received: list[int] = []
    async with asyncio.timeout(60.0):
        async for entry in stream:
            if not isinstance(entry, int):
                received.append(entry[0])
            if len(received) == count:
                break
    return received


@pytest.mark.parametrize("since", [None, 10**15, 2])
def test_a_client_without_a_position_or_beyond_the_end_begins_now(since: int | None) -> None:
    """Also where the position is beyond the end by one, as after the restore of a backup that lacks the last entry."""
    commits = Commits(1, 2, 3)
    commits.commit()

    async def run() -> list[int]:
        async with aclosing(feed_of(commits).follow(since, lambda: False, 0.001)) as stream:
            assert await anext(stream) == 1
            commits.commit()
            commits.commit()
            return await limited(stream, 2)

    assert asyncio.run(run()) == [2, 3]


def test_the_reader_stops_with_the_last_client_and_starts_with_the_next() -> None:
    commits = Commits(1, 2)

    async def run() -> list[int]:
        feed = feed_of(commits)
        received: list[int] = []
        for before in range(2):
            async with aclosing(feed.follow(None, lambda: False, 0.001)) as stream:
                assert await anext(stream) == before
                commits.commit()
                received += await limited(stream, 1)
            async with asyncio.timeout(60.0):
                await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
            looks = commits.looks
            await asyncio.sleep(0.01)
            assert commits.looks == looks
        return received

    assert asyncio.run(run()) == [1, 2]
