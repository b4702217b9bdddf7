"""Group commit: small writes of one process that come at the same time become one transaction.

A commit is durable, so it costs the disk a flush, and a transaction costs a dozen statements, most of them the same for
everybody. Here the first of those who come opens the transaction and makes the writes of all who came meanwhile. Nobody is
answered before the commit. Whoever comes alone gets a plain transaction.

*Joint* writes know how to be made with others of their kind, in as many statements as one of them: submissions of jobs. Other
writes share a transaction on SQLite alone, where there is one writer at a time, each behind a savepoint, so that one that
fails takes back its own part. On PostgreSQL, whose writers run side by side, a savepoint costs as much as it saves, and who
waits for a lock would hold up the others: there they get plain transactions (``python -m benchmarks.store``).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from service.db.session import Database

MEMBERS_MAX = 64
"""Writes of one transaction: past some dozens the flush is a small part of it, and a failure of the commit hits all."""

HELD_S_MAX = 0.05
"""A transaction takes in no further write after so long: a scheduling cycle may be waiting for the write lock. On PostgreSQL
none after the first ones: it would lock rows in an order that another service's transaction has turned round."""

Result = TypeVar("Result")

Write = Callable[[Session], Result]
"""One write, in the transaction that it is given."""

Together = Callable[[Session, Sequence[Any]], Sequence[Result | Exception]]
"""Makes several joint writes at once: for each what it returns, or what it raises after it has written nothing."""


class _Member(Generic[Result]):
    """One write and who waits for it."""

    def __init__(self, effect: Write[Result], together: Together[Result] | None) -> None:
        self.effect = effect
        self.together = together
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

    def run(self, effect: Write[Result], together: Together[Result] | None = None) -> Result:
        """What ``effect`` returns, once the transaction that it ran in is committed; what it raises, with nothing of it left.

        It may run in another thread, and not before earlier ones of its group. With ``together`` it is a joint write: those
        that wait with the same one are given to it instead of being called. Raises OperationalError as
        :meth:`~service.db.session.Database.writing` does: then nothing of the whole group was committed, or, after a
        failure of the commit itself, nobody knows.
        """
        if together is None and not self._database.one_writer:
            with self._database.writing() as session:
                return effect(session)
        member = _Member(effect, together)
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
        until_s = time.monotonic() + (HELD_S_MAX if self._database.one_writer else 0.0)
        while len(group) < MEMBERS_MAX and (not group or time.monotonic() < until_s):
            with self._mutex:
                if not self._waiting:
                    return
                members = self._next(MEMBERS_MAX - len(group))
                alone = not group and not self._waiting and len(members) == 1
            group += members
            if alone:
                [member] = members
                member.result = member.effect(session)
                return
            self._run(session, members)

    def _next(self, most: int) -> list[_Member[Any]]:
        """Who has waited for longest, and whoever of those behind it is written together with it."""
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
            raise  # the database fails, not this write: the transaction may be gone already
        except Exception as error:
            savepoint.rollback()
            if len(members) == 1:
                members[0].error = error
                return
            # Something that none of them could know before: one of them takes no other with it.
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
