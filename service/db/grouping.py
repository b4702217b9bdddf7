"""Group commit: small writes of one process that come at the same time become one transaction.

A commit is durable, so it costs the disk a flush, and on SQLite there is one writer at a time: sixteen clients that each wait
for a transaction of their own get as many jobs a second as the disk flushes. Here the first of them opens the transaction and
runs the writes of all who came meanwhile, each behind a savepoint, so that one that fails takes back its own part alone. Nobody
is answered before the commit. Whoever comes alone gets a plain transaction.

PostgreSQL's writers run side by side and it flushes for several of them at once by itself: there everybody gets a plain
transaction, which is twice as fast as sharing one (``python -m benchmarks.store``).
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from service.db.session import Database

MEMBERS_MAX = 64
"""Writes of one transaction: past some dozens the flush is a small part of it, and a failure of the commit hits all."""

HELD_S_MAX = 0.05
"""A transaction takes in no further write after so long: a scheduling cycle may be waiting for the write lock."""

Result = TypeVar("Result")


class _Member(Generic[Result]):
    """One write and who waits for it."""

    def __init__(self, effect: Callable[[Session], Result]) -> None:
        self.effect = effect
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.done = False
        self._wake = Lock()
        self._wake.acquire()

    def wait(self) -> None:
        """Until it is done, or it is this one's turn to lead."""
        self._wake.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._wake.release()


class GroupCommit:
    """Runs writes in transactions that they share where that pays. One instance a process; safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = Lock()
        self._waiting: deque[_Member[Any]] = deque()
        self._led = False

    def run(self, effect: Callable[[Session], Result]) -> Result:
        """What ``effect`` returns, once the transaction that it ran in is committed; what it raises, with nothing of it left.

        It may run in another thread, and not before earlier ones of its group. Raises OperationalError as
        :meth:`~service.db.session.Database.writing` does: then nothing of the whole group was committed, or, after a
        failure of the commit itself, nobody knows.
        """
        if not self._database.one_writer:
            with self._database.writing() as session:
                return effect(session)
        member = _Member(effect)
        with self._mutex:
            self._waiting.append(member)
            leads = not self._led
            self._led = True
        if not leads:
            member.wait()
        if not member.done:
            self._lead()
        if member.error is not None:
            raise member.error
        return cast(Result, member.result)

    def _lead(self) -> None:
        """Commit one group, whose first member is ours, and let the next one who waits lead the next."""
        group: list[_Member[Any]] = []
        try:
            with self._database.writing() as session:
                self._fill(session, group)
        except BaseException as error:
            # What had succeeded is undone with the rest. Who waits for a transaction that cannot even begin has waited
            # as long as we have.
            with self._mutex:
                if not group:
                    group.extend(self._waiting)
                    self._waiting.clear()
            for member in group:
                member.error = member.error if member.error is not None else error
        for member in group:
            member.done = True
        with self._mutex:
            following = self._waiting[0] if self._waiting else None
            self._led = following is not None
        for member in group[1:]:
            member.wake()
        if following is not None:
            following.wake()

    def _fill(self, session: Session, group: list[_Member[Any]]) -> None:
        until_s = time.monotonic() + HELD_S_MAX
        while len(group) < MEMBERS_MAX and (not group or time.monotonic() < until_s):
            with self._mutex:
                if not self._waiting:
                    return
                member = self._waiting.popleft()
                alone = not group and not self._waiting
            group.append(member)
            if alone:
                member.result = member.effect(session)
                return
            self._run(session, member)

    def _run(self, session: Session, member: _Member[Any]) -> None:
        savepoint = session.begin_nested()
        try:
            member.result = member.effect(session)
            savepoint.commit()
        except OperationalError:
            raise  # the database fails, not this write: the transaction may be gone already
        except Exception as error:
            member.error = error
            savepoint.rollback()
