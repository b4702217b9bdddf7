"""Group commit: small writes of one process that come at the same time become one transaction.

A durable commit costs a disk flush, and a transaction costs a dozen statements, most of them the same for every write. One
thread opens the transaction and runs the writes of all that arrived meanwhile. No write returns before the commit. A write that
arrives alone gets a plain transaction. Coroutines wait without a thread of their own: handing a write from thread to thread and
back would cost more than the write.

*Joint* writes can be combined with others of their kind into as many statements as one of them takes: submissions of jobs.
Other writes share a transaction on SQLite alone, which has one writer at a time; each runs behind a savepoint, so that a
failing write undoes only its own part. On PostgreSQL writers run side by side, a savepoint costs as much as it saves, and a
write that waits for a lock would delay the others: there they get plain transactions (``python -m benchmarks.store``). For the
same reason a group of joint writes has no savepoint there: if it fails, each of them is made again in a transaction of its own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from service.db.session import Database

MEMBERS_MAX = 64
"""Writes in one transaction. With some dozens the flush is a small part of the cost, and a failing commit fails all of them."""

HELD_S_MAX = 0.05
"""Time after which a transaction accepts no further write: a scheduling cycle may be waiting for the write lock. On PostgreSQL
it accepts none after the first batch, because another service may lock the same rows in the opposite order."""

Result = TypeVar("Result")

Write = Callable[[Session], Result]
"""One write in the given transaction."""

Together = Callable[[Session, Sequence[Any]], Sequence[Result | Exception]]
"""Runs several joint writes at once; returns the result of each, or its exception if it has written nothing."""


class _Member(Generic[Result]):
    """One write and who waits for it: a coroutine (``future``) or a thread."""

    def __init__(
        self, effect: Write[Result], together: Together[Result] | None, future: "asyncio.Future[None] | None" = None
    ) -> None:
        self.effect = effect
        self.together = together
        self.future = future
        self.result: Result | None = None
        self.error: BaseException | None = None
        self._wake = Lock()
        self._wake.acquire()

    def wait(self) -> None:
        """Wait in this thread until the write is done."""
        self._wake.acquire()

    def wake(self) -> None:
        """End the wait of a thread."""
        self._wake.release()

    def outcome(self) -> Result:
        """The result. Raises the exception of the write, or of its transaction."""
        if self.error is not None:
            raise self.error
        return cast(Result, self.result)


class _Refused(Exception):
    """Writes failed together before their commit."""


class GroupCommit:
    """Runs writes in shared transactions where that is faster. One instance per process; thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = Lock()
        self._waiting: deque[_Member[Any]] = deque()
        self._committing = False
        self._thread = ThreadPoolExecutor(1, "commit")

    def run(self, effect: Write[Result], together: Together[Result] | None = None) -> Result:
        """Run ``effect`` and return its result after its transaction is committed; re-raise its exception after undoing it.

        It may run in another thread, after the earlier writes of its group. With ``together`` it is a joint write: all
        waiting writes with the same ``together`` are passed to it instead of being called. Raises OperationalError as
        :meth:`~service.db.session.Database.writing` does: then nothing of the group was committed or, if the commit itself
        failed, the outcome is unknown.
        """
        if together is None and not self._database.one_writer:
            with self._database.writing() as session:
                return effect(session)
        member = _Member(effect, together)
        self._add(member)
        member.wait()
        return member.outcome()

    async def run_joint(self, effect: Write[Result], together: Together[Result]) -> Result:
        """As :meth:`run` for a joint write. The write goes on if the coroutine is cancelled."""
        future = asyncio.get_running_loop().create_future()
        member = _Member(effect, together, future)
        self._add(member)
        await future
        return member.outcome()

    def _add(self, member: _Member[Any]) -> None:
        with self._mutex:
            self._waiting.append(member)
            begins = not self._committing
            self._committing = True
        if begins:
            self._thread.submit(self._commit_all)

    def _commit_all(self) -> None:
        """Commit one group after the other until no write waits."""
        while True:
            self._commit_group()
            with self._mutex:
                if not self._waiting:
                    self._committing = False
                    return

    def _commit_group(self) -> None:
        group: list[_Member[Any]] = []
        try:
            with self._database.writing() as session:
                self._fill(session, group)
        except _Refused:
            for member in group:
                self._commit_alone(member)
        except BaseException as error:
            self._fail(group, error)
        futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for member in group:
            if member.future is None:
                member.wake()
            else:
                futures.setdefault(member.future.get_loop(), []).append(member.future)
        for loop, theirs in futures.items():
            with suppress(RuntimeError):  # it has been closed, so nobody waits
                loop.call_soon_threadsafe(_settle, theirs)

    def _commit_alone(self, member: _Member[Any]) -> None:
        """In a transaction of its own, so that the failing write of a group does not fail the others."""
        try:
            with self._database.writing() as session:
                member.result = member.effect(session)
        except BaseException as error:
            member.error = error

    def _fail(self, group: list[_Member[Any]], error: BaseException) -> None:
        # Writes that succeeded are undone with the rest. If the transaction could not begin, all waiting writes fail:
        # they have waited as long as this one.
        with self._mutex:
            if not group:
                group.extend(self._waiting)
                self._waiting.clear()
        for member in group:
            member.error = member.error if member.error is not None else error

    def _fill(self, session: Session, group: list[_Member[Any]]) -> None:
        until_s = time.monotonic() + (HELD_S_MAX if self._database.one_writer else 0.0)
        while len(group) < MEMBERS_MAX and (not group or time.monotonic() < until_s):
            with self._mutex:
                if not self._waiting:
                    return
                members = self._next(MEMBERS_MAX - len(group))
                alone = not group and not self._waiting and len(members) == 1
            group += members
            if alone:
                _write(session, members)
                return
            if self._database.one_writer:
                self._run(session, members)
            else:
                _write_all(session, members)

    def _next(self, most: int) -> list[_Member[Any]]:
        """The write that has waited longest, and those directly behind it that can be combined with it."""
        members = [self._waiting.popleft()]
        together = members[0].together
        while together is not None and len(members) < most and self._waiting and self._waiting[0].together == together:
            members.append(self._waiting.popleft())
        return members

    def _run(self, session: Session, members: Sequence[_Member[Any]]) -> None:
        savepoint = session.begin_nested()
        try:
            _write(session, members)
            savepoint.commit()
        except OperationalError:
            raise  # the database failed, not this write: the transaction may be lost already
        except Exception as error:
            savepoint.rollback()
            if len(members) == 1:
                members[0].error = error
                return
            # Run each write alone, so that the failing one does not fail the others.
            for member in members:
                self._run(session, [member])


def _write(session: Session, members: Sequence[_Member[Any]]) -> None:
    together = members[0].together
    if together is None or len(members) == 1:
        members[0].result = members[0].effect(session)
        return
    found = together(session, [member.effect for member in members])
    for member, outcome in zip(members, found, strict=True):
        if isinstance(outcome, Exception):
            member.error = outcome
        else:
            member.result = outcome


def _write_all(session: Session, members: Sequence[_Member[Any]]) -> None:
    """Write the only group of a transaction. Raises _Refused where the database has not failed, but one of the writes."""
    try:
        _write(session, members)
    except OperationalError:
        raise
    except Exception as error:
        raise _Refused from error


def _settle(futures: "Sequence[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
