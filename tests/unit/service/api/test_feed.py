"""A log whose numbers become visible out of order is followed without a loss and without a repetition, also with breaks."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import OperationalError, PendingRollbackError

from policies.model.job import JobSpec
from service.api import feed as feeds
from service.api.feed import Feed, Log
from service.db import event_log
from service.db.event_log import Entry, Numbers
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import EVENTS
from service.runtime.stream_position import Position

NUMBERS = st.sets(st.integers(1, 60), max_size=30)


@given(NUMBERS, st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_a_position_is_what_has_been_seen(seen: set[int], floor: int) -> None:
    position = Position(floor)
    for number in sorted(seen, key=hash):
        position.add(number)
    known = seen | set(range(1, floor + 1))
    assert {number for number in range(1, 70) if position.has(number)} == known
    assert position.newest == max(known, default=0)
    assert position.gaps(1000) == [number for number in range(1, position.newest) if number not in known]
    assert position.gaps(3) == position.gaps(1000)[:3]
    again = Position.parse(str(position))
    assert again is not None
    assert (again.floor, again.beyond) == (position.floor, position.beyond)


@pytest.mark.parametrize("text", ["", "x", "-1", "1+", "+1", "1+2,", "1 ", "9" * 19, "1+2.", "1++2"])
def test_what_is_no_position_is_none(text: str) -> None:
    assert Position.parse(text) is None


class Commits:
    """A log in memory: entries become visible one by one, in an order of our choice."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = list(order)
        self.visible: set[int] = set()
        self.looks = 0
        self.failures: list[Exception] = []

    def commit(self) -> None:
        """The next entry is there."""
        if self._order:
            self.visible.add(self._order.pop(0))

    @property
    def done(self) -> bool:
        return not self._order

    def read(self, connection: Connection, numbers: Numbers, limit: int) -> list[Entry]:
        self.looks += 1
        if self.failures:
            raise self.failures.pop()
        wanted = (n for n in tuple(self.visible) if (n > numbers if isinstance(numbers, int) else n in numbers))
        return [(number, cast(Any, None)) for number in sorted(wanted)[:limit]]

    def newest(self, connection: Connection) -> int:
        return max(self.visible, default=0)


class NoDatabase:
    """Sessions of nothing."""

    @contextmanager
    def reading(self) -> Iterator[Any]:
        yield SimpleNamespace(connection=lambda: None)


def feed_of(commits: Commits, **options: Any) -> Feed:
    return Feed(cast(Database, NoDatabase()), Log(commits.read, commits.newest), look_s=0.0005, **options)


async def follow(commits: Commits, feed: Feed, draw: random.Random, wanted: set[int]) -> list[int]:
    """A client that is cut off again and again, and takes up where it was, until it has all that is wanted."""
    told: list[int] = []
    position = "0"
    for _ in range(100_000):
        left = draw.randrange(1, 6)
        async with aclosing(feed.follow(Position.parse(position), lambda: False, 0.001)) as stream:
            async for step in stream:
                if draw.random() < 0.5:
                    commits.commit()
                if step is not None:
                    told.append(step[0][0])
                    position = str(step[1])
                left -= 1
                if left == 0 or (commits.done and set(told) >= wanted):
                    break
        if commits.done and set(told) >= wanted:
            return told
    raise AssertionError(f"{wanted - set(told)} never came")


@given(st.permutations(range(1, 15)), st.sets(st.integers(1, 14), max_size=4), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_order_of_commits_is_told_once_and_whole(order: list[int], lost: set[int], seed: int) -> None:
    """``lost`` numbers are rolled back. Two clients follow one feed."""
    kept = [number for number in order if number not in lost]
    commits = Commits(kept)

    async def run() -> None:
        feed = feed_of(commits)
        clients = (follow(commits, feed, random.Random(seed + index), set(kept)) for index in range(2))
        for told in await asyncio.gather(*clients):
            assert sorted(told) == sorted(kept)
        assert feed.followers == 0

    asyncio.run(run())


def test_a_slow_client_reads_for_itself_what_it_has_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "QUEUED_MAX", 3)
    monkeypatch.setattr(feeds, "PAGE", 7)
    commits = Commits(range(1, 101))

    async def run() -> list[int]:
        told = []
        feed = feed_of(commits)
        async with aclosing(feed.follow(Position(), lambda: False, 0.001)) as stream:
            async for step in stream:
                for _ in range(9):
                    commits.commit()
                if step is None:
                    continue
                told.append(step[0][0])
                await asyncio.sleep(0.002)
                if len(told) == 100:
                    break
        return told

    assert asyncio.run(run()) == list(range(1, 101))


def test_a_number_that_was_rolled_back_is_waited_for_so_long_and_no_longer() -> None:
    """Then positions are short again, and a row that came later than anybody could have been is not told."""
    commits = Commits([1, 2, 5, 6, 3])
    now = [0.0]

    async def run() -> None:
        feed = feed_of(commits, gap_s=30.0, monotonic_s=lambda: now[0])
        async with aclosing(feed.follow(Position(), lambda: False, 0.001)) as stream:
            for _ in range(4):
                commits.commit()
            seen = [step async for step in limited(stream, 4)]
            assert [step[0][0] for step in seen] == [1, 2, 5, 6]
            assert str(seen[-1][1]) == "2+3.4"
            await looks(stream, commits, 3)
            now[0] = 29.0
            await looks(stream, commits, 3)
            assert str(seen[-1][1]) == "2+3.4"
            now[0] = 31.0
            await looks(stream, commits, 3)
            assert str(seen[-1][1]) == "6"
            commits.commit()
            await looks(stream, commits, 3)

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [OperationalError("BEGIN", None, Exception("away")), PendingRollbackError("it broke")],
    ids=["away", "broken"],
)
def test_a_look_that_fails_ends_nobodys_stream(error: Exception) -> None:
    commits = Commits([1, 2])

    async def run() -> list[int]:
        feed = feed_of(commits)
        async with aclosing(feed.follow(None, lambda: False, 0.001)) as stream:
            await looks(stream, commits, 3)
            commits.failures.append(error)
            while commits.failures:
                assert await anext(stream) is None
            commits.commit()
            commits.commit()
            async with asyncio.timeout(20.0):
                return [step[0][0] async for step in limited(stream, 2)]

    assert asyncio.run(run()) == [1, 2]


async def limited(stream: Any, count: int) -> Any:
    async for step in stream:
        if step is not None:
            yield step
            count -= 1
            if count == 0:
                return


async def looks(stream: Any, commits: Commits, count: int) -> None:
    """Let the reader look so often, and its client see the result; nothing must come."""
    until = commits.looks + count
    while commits.looks < until:
        assert await anext(stream) is None
    assert await anext(stream) is None


def test_who_does_not_say_where_he_was_begins_now_and_so_does_who_was_never_there() -> None:
    commits = Commits([1, 2, 3])
    commits.commit()
    commits.commit()

    async def run(since: Position | None) -> list[int]:
        feed = feed_of(commits)
        async with aclosing(feed.follow(since, lambda: False, 0.001)) as stream:
            assert await anext(stream) is None
            commits.commit()
            return [step[0][0] async for step in limited(stream, 1)]

    assert asyncio.run(run(None)) == [3]
    commits.visible.discard(3)
    commits._order = [3]
    assert asyncio.run(run(Position(10**15))) == [3]


def test_the_second_of_two_is_committed_first(postgres_database: Database) -> None:
    """On a real server: number 1 is taken, 2 is taken and committed, and then 1."""
    store = SqlStore(postgres_database)
    with postgres_database.writing() as session:
        (job,) = store.submit(session, [JobSpec(name="a", user="ada", gpus=1)], 0.0)
    event = {"job_id": job, "at_s": 1.0, "target": "queued", "cause": "submitted", "reason": "new", "cycle": 1}

    async def run() -> list[str]:
        feed = Feed(postgres_database, Log(event_log.job_events, event_log.newest_job_event), look_s=0.01)
        details: list[str] = []
        async with aclosing(feed.follow(None, lambda: False, 0.03)) as stream:
            assert await anext(stream) is None
            engine = postgres_database.engine
            with engine.connect() as early, engine.connect() as late:
                early.execute(insert(EVENTS), event | {"detail": "first"})
                late.execute(insert(EVENTS), event | {"detail": "second"})
                late.commit()
                details += [step[0][1].detail async for step in limited(stream, 1)]
                early.commit()
            details += [step[0][1].detail async for step in limited(stream, 1)]
        # The reader stops at its next look.
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        return details

    assert asyncio.run(run()) == ["second", "first"]
    with postgres_database.reading() as session:
        order = session.connection().execute(text("SELECT detail FROM job_events WHERE detail <> '' ORDER BY id"))
        assert list(order.scalars()) == ["first", "second"]
