"""Group commit: writes that come together share a transaction, and none of them notices but by its speed."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlmodel import Session

from service.db import group_commit
from service.db.group_commit import MEMBERS_MAX, GroupCommit
from service.db.session import Database, open_database
from service.db.tables import PROPERTIES


def _put(name: str) -> Callable[[Session], str]:
    def effect(session: Session) -> str:
        session.connection().execute(insert(PROPERTIES), {"name": name, "value": "x"})
        return name

    return effect


def _names(database: Database) -> set[str]:
    with database.reading() as session:
        return set(session.connection().execute(select(PROPERTIES.c.name)).scalars())


class _Crowd:
    """Threads whose writes all wait while one is in its transaction, in the order in which they were added."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.group = GroupCommit(database)
        self.commits = 0
        self.outcomes: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []
        self._open, self._entered = threading.Event(), threading.Event()
        event.listen(database.engine, "commit", self._committed)

    def _committed(self, connection: object) -> None:
        self.commits += 1

    def add(self, effect: Callable[[Session], Any]) -> None:
        """The first one stays in its transaction until :meth:`finish`."""
        number = len(self._threads)

        def held(session: Session) -> Any:
            self._entered.set()
            assert self._open.wait(60.0)
            return effect(session)

        def run() -> None:
            try:
                self.outcomes[number] = self.group.run(effect if number else held)
            except Exception as error:
                self.outcomes[number] = error

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()
        if number == 0:
            assert self._entered.wait(60.0)
        else:
            while len(self.group._waiting) < number:
                assert thread.is_alive()
                thread.join(0.001)

    def finish(self) -> list[Any]:
        """Let them go on, and return what each got: a result, or an exception."""
        self._open.set()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()
        event.remove(self.database.engine, "commit", self._committed)
        return [self.outcomes[number] for number in range(len(self._threads))]


def test_who_comes_alone_gets_a_plain_transaction(any_database: Database) -> None:
    statements: list[str] = []
    event.listen(any_database.engine, "savepoint", lambda *arguments: statements.append("savepoint"))
    group = GroupCommit(any_database)
    assert group.run(_put("a")) == "a"
    with pytest.raises(IntegrityError):
        group.run(_put("a"))
    assert group.run(_put("b")) == "b"
    assert (_names(any_database), statements) == ({"a", "b"}, [])


def test_those_who_wait_share_one_commit(database: Database) -> None:
    crowd = _Crowd(database)
    for number in range(12):
        crowd.add(_put(f"n{number}"))
    assert crowd.finish() == [f"n{number}" for number in range(12)]
    assert len(_names(database)) == 12
    assert crowd.commits == 2


def test_a_crowd_is_cut_into_transactions_of_bounded_size(database: Database) -> None:
    crowd = _Crowd(database)
    for number in range(MEMBERS_MAX + 2):
        crowd.add(_put(f"n{number}"))
    assert len(set(crowd.finish())) == MEMBERS_MAX + 2
    assert crowd.commits == 3


def test_a_transaction_that_lasts_takes_in_nobody_more(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "HELD_S_MAX", -1.0)
    crowd = _Crowd(database)
    for number in range(5):
        crowd.add(_put(f"n{number}"))
    crowd.finish()
    assert crowd.commits == 5


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many share a transaction must not depend on how busy the machine is."""
    monkeypatch.setattr(group_commit, "HELD_S_MAX", 600.0)


class _Refused(Exception):
    pass


def _refuse(name: str) -> Callable[[Session], str]:
    def effect(session: Session) -> str:
        _put(name)(session)
        raise _Refused(name)

    return effect


@settings(max_examples=25, deadline=None)
@given(kinds=st.lists(st.sampled_from(["put", "refuse", "twice"]), min_size=2, max_size=8))
def test_whoever_fails_takes_back_its_own_part_alone(
    migrated_file: bytes, tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    path = tmp_path_factory.mktemp("group") / "sooner.db"
    path.write_bytes(migrated_file)
    _one_fails(f"sqlite:///{path}", kinds)


def test_writers_to_postgresql_run_side_by_side(postgres_database: Database) -> None:
    """Each inside the other's transaction: neither waits for a commit of the other."""
    group = GroupCommit(postgres_database)

    def outer(session: Session) -> tuple[str, str]:
        return _put("a")(session), group.run(_put("b"))

    assert group.run(outer) == ("a", "b")
    with pytest.raises(IntegrityError):
        group.run(_put("a"))
    assert _names(postgres_database) == {"a", "b"}


def _run_behind_the_first(
    group: GroupCommit,
    run: Callable[[int, Callable[[Session], str]], None],
    effects: Sequence[Callable[[Session], str]],
) -> None:
    """Run the effects in threads, all others waiting while the first one is in its transaction."""
    entered, leave = threading.Event(), threading.Event()

    def held(session: Session) -> str:
        entered.set()
        assert leave.wait(60.0)
        return effects[0](session)

    threads = [
        threading.Thread(target=run, args=(number, effect if number else held)) for number, effect in enumerate(effects)
    ]
    for number, thread in enumerate(threads):
        thread.start()
        while len(group._waiting) < number:
            thread.join(0.001)
        assert entered.wait(60.0)
    leave.set()
    for thread in threads:
        thread.join(60.0)


def test_a_joint_write_that_the_database_refuses_fails_alone(any_database: Database) -> None:
    """What the others have written in the same statements is made again without it."""
    group = GroupCommit(any_database)
    outcomes: dict[int, str] = {}

    def together(session: Session, effects: Sequence[Callable[[Session], str]]) -> list[str]:
        return [effect(session) for effect in effects]

    def run(number: int, effect: Callable[[Session], str]) -> None:
        try:
            outcomes[number] = group.run(effect, together)
        except IntegrityError:
            outcomes[number] = "is there already"

    _run_behind_the_first(group, run, [_put(name) for name in ("first", "a", "first", "b")])
    assert outcomes == {0: "first", 1: "a", 2: "is there already", 3: "b"}
    assert _names(any_database) == {"first", "a", "b"}


def test_joint_writes_are_made_by_one_call_on_every_database(any_database: Database) -> None:
    group = GroupCommit(any_database)
    calls: list[int] = []
    commits: list[object] = []
    outcomes: dict[int, str] = {}

    def together(session: Session, effects: Sequence[Callable[[Session], str]]) -> list[str | Exception]:
        calls.append(len(effects))
        return [_Refused("no") if number == 2 else effect(session) for number, effect in enumerate(effects)]

    def run(number: int, effect: Callable[[Session], str]) -> None:
        try:
            outcomes[number] = group.run(effect, together)
        except _Refused as error:
            outcomes[number] = str(error)

    event.listen(any_database.engine, "commit", commits.append)
    _run_behind_the_first(group, run, [_put("held"), *(_put(f"n{number}") for number in range(1, 6))])
    # The third of the five that waited is refused; nobody else hears of it.
    assert outcomes == {0: "held", 1: "n1", 2: "n2", 3: "no", 4: "n4", 5: "n5"}
    assert (calls, len(commits)) == ([5], 2)
    assert _names(any_database) == {"held", "n1", "n2", "n4", "n5"}


def test_coroutines_share_the_commit_of_threads_and_one_that_is_cancelled_writes_nevertheless(
    any_database: Database,
) -> None:
    group = GroupCommit(any_database)
    commits: list[object] = []
    entered, leave = threading.Event(), threading.Event()

    def together(session: Session, effects: Sequence[Callable[[Session], str]]) -> list[str | Exception]:
        return [_Refused("no") if number == 1 else effect(session) for number, effect in enumerate(effects)]

    def held(session: Session) -> str:
        entered.set()
        assert leave.wait(60.0)
        return _put("held")(session)

    problems: list[object] = []

    async def crowd() -> list[str | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        first = asyncio.create_task(asyncio.to_thread(group.run, held, together))
        assert await asyncio.to_thread(entered.wait, 60.0)
        others = [asyncio.create_task(group.run_joint(_put(f"n{number}"), together)) for number in range(4)]
        while len(group._waiting) < 4:
            await asyncio.sleep(0)
        others[3].cancel()
        leave.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    event.listen(any_database.engine, "commit", commits.append)
    first, *found, last = asyncio.run(crowd())
    assert (first, found[0], found[2]) == ("held", "n0", "n2")
    assert isinstance(found[1], _Refused)
    assert isinstance(last, asyncio.CancelledError)
    assert not problems
    assert len(commits) == 2
    assert _names(any_database) == {"held", "n0", "n2", "n3"}


def _one_fails(url: str, kinds: list[str]) -> None:
    database = open_database(url)
    with database.writing() as session:
        _put("there")(session)
    crowd = _Crowd(database)
    effects = {"put": _put, "refuse": _refuse, "twice": lambda _: _put("there")}
    for number, kind in enumerate(kinds):
        crowd.add(effects[kind](f"n{number}"))
    for number, (kind, outcome) in enumerate(zip(kinds, crowd.finish(), strict=True)):
        assert outcome == f"n{number}" if kind == "put" else isinstance(outcome, _Refused | IntegrityError)
        assert (kind == "refuse") == isinstance(outcome, _Refused)
    assert _names(database) == {"there"} | {f"n{number}" for number, kind in enumerate(kinds) if kind == "put"}
    database.close()


def test_a_commit_that_fails_fails_for_all_and_the_next_ones_go_on(database: Database) -> None:
    crowd = _Crowd(database)

    def gone(session: Session) -> str:
        raise OperationalError("COMMIT", None, Exception("the disk is full"))

    for effect in (_put("first"), _put("a"), gone, _put("b")):
        crowd.add(effect)
    first, *others = crowd.finish()
    assert first == "first"
    assert [isinstance(outcome, OperationalError) for outcome in others[:2]] == [True, True]
    assert "a" not in _names(database)
    assert crowd.group.run(_put("c")) == "c"
    assert _names(database) >= {"first", "c"}


def test_who_waits_for_a_transaction_that_cannot_begin_is_told_with_the_first(database: Database) -> None:
    """Otherwise each of a hundred clients would wait out the patience of all before it."""
    group, tried, entered, fail = GroupCommit(database), [], threading.Event(), threading.Event()

    @contextmanager
    def locked() -> Any:
        tried.append(1)
        entered.set()
        assert fail.wait(60.0)
        raise OperationalError("BEGIN", None, Exception("locked"))
        yield

    database.writing = locked  # type: ignore[method-assign, assignment]
    outcomes: list[object] = []

    def run() -> None:
        try:
            group.run(_put("x"))
        except OperationalError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(5)]
    threads[0].start()
    assert entered.wait(60.0)
    for thread in threads[1:]:
        thread.start()
    while len(group._waiting) < 5:
        threads[-1].join(0.001)
    fail.set()
    for thread in threads:
        thread.join(60.0)
    assert (len(outcomes), len(tried)) == (5, 1)
    del database.writing
    assert group.run(_put("y")) == "y"


def test_many_threads_lose_nothing(any_database: Database) -> None:
    group, failures = GroupCommit(any_database), []

    def run(number: int) -> None:
        for at in range(8):
            try:
                assert group.run(_put(f"{number}-{at}")) == f"{number}-{at}"
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failures == []
    assert len(_names(any_database)) == 96
