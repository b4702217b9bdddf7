"""``Idempotency-Key``: a repeated POST takes effect once and gets its first answer again.

The answer is stored in the transaction of the effect, so a crash leaves both or neither, and no dead process leaves a key locked.
A second request with the key of one that runs gets 409 in this process; in another process it waits for the commit and finds the
answer. Answers without an effect (4xx, 5xx) are not stored, so a corrected request may use the same key. Keys of different users
are different keys.

Every change goes through here, so the audit log is written here, in the transaction of the change.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Depends, Header, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Connection, Double, bindparam, delete, select
from sqlmodel import Session

from service.api.access import origin_of
from service.api.audited import action_of, target_of
from service.api.problems import Problem, ProblemType
from service.db.audit import Entry, Origin, Outcome, record, record_all
from service.db.dialects import by_dialect, insert_rows, take_locks
from service.db.group_commit import GroupCommit
from service.db.session import Database
from service.db.tables import IDEMPOTENCY_KEYS, columns
from service.engine.crash_points import CrashPoint, reached
from service.wire.base import PRINTABLE_ASCII

KEY_LENGTH_MAX = 255
_HASHED_AT_ONCE = 2047
REPLAYED_HEADER = "Idempotent-Replayed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a successful change, kept with the key: JSON and a ``Location``, nothing else.

    ``kept`` replaces a body that holds a secret. ``target`` (if the path does not name it) and ``detail`` are for the audit log
    and must not hold secrets.
    """

    status: int
    body: Any
    location: str | None = None
    kept: Any = None
    target: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


# Statements of every group of requests are built once: to build one takes as long as to run it.
_OF_KEYS: Final = IDEMPOTENCY_KEYS.c.key.in_(bindparam("keys", expanding=True))
_NOW_S: Final = bindparam("now_s", type_=Double)
_KEPT: Final = by_dialect(
    IDEMPOTENCY_KEYS.c.key,
    "keys",
    select(*columns(IDEMPOTENCY_KEYS, "key route body_sha256 status response location expires_at_s")).where,
)
_FORGET_EXPIRED: Final = delete(IDEMPOTENCY_KEYS).where(_OF_KEYS, IDEMPOTENCY_KEYS.c.expires_at_s <= _NOW_S)

Effect = Callable[[Session], Answer]
"""What a request does inside the writing transaction."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class BatchedEffect(Generic[Item]):
    """An effect that is made together with others of its kind: ``insert`` takes the items of all of them.

    It returns for each item its answer, or the problem for which nothing of it was written.
    """

    item: Item
    insert: Callable[[Session, Sequence[Item]], Sequence[Answer | Problem]]

    def __call__(self, session: Session) -> Answer:
        """Make it alone. Raises Problem."""
        [found] = self.insert(session, [self.item])
        if isinstance(found, Problem):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The identity of a request: ``route`` is method, path, query and user, ``body_sha256`` the digest of its bytes, if it
    has a key.

    ``origin``, ``action`` and ``target`` are for the audit log.
    """

    key: str | None
    route: str
    body_sha256: str
    origin: Origin | None = None
    action: str = ""
    target: str = ""


async def keyed_request(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=KEY_LENGTH_MAX,
            pattern=PRINTABLE_ASCII,
            description="Repeating a request with the same key and body returns the first response again.",
        ),
    ] = None,
) -> KeyedRequest:
    """The identity of the request; ``idempotency_key`` is what its header says."""
    # Kept with the key alone. For larger parts the hash would give up the interpreter, and wait for it.
    digest = hashlib.sha256()
    body = b"" if idempotency_key is None else await request.body()
    for at in range(0, len(body), _HASHED_AT_ONCE):
        digest.update(body[at : at + _HASHED_AT_ONCE])
    # The query is part of the request; a different order of its parts makes a different request.
    query = request.scope["query_string"].decode("latin-1")
    route = f"{request.method} {request.scope['path']}" + (f"?{query}" if query else "")
    origin = origin_of(request)
    if origin is not None and origin.identity.user is not None:
        route += f" by {origin.identity.user}"
    return KeyedRequest(idempotency_key, route, digest.hexdigest(), origin, action_of(request), target_of(request))


def is_key(text: str) -> bool:
    """Whether the text may be an ``Idempotency-Key``."""
    return len(text) <= KEY_LENGTH_MAX and re.fullmatch(PRINTABLE_ASCII, text) is not None


Keyed = Annotated[KeyedRequest, Depends(keyed_request)]


class Keys:
    """Runs effects once per key. One instance per application; thread-safe."""

    def __init__(self, database: Database, now_s: Callable[[], float], kept_s: float) -> None:
        self._database = database
        self._commits = GroupCommit(database)
        self._now_s = now_s
        self._kept_s = kept_s
        self._running: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def run(self, request: KeyedRequest, prepare: Callable[[], Effect], *, outside: bool = False) -> Response:
        """The stored answer, or that of the effect that ``prepare`` returns, run in one writing transaction.

        ``prepare`` does what needs no transaction. If it changes something itself (``outside``), it is not called for a repeated
        request, and the audit log has a line before it is called, too.
        """
        with self._alone(request):
            if outside:
                stored = self._kept(request)
                if stored is not None:
                    return _response(stored, replayed=True)
                with self._database.writing() as session:
                    self._log(session.connection(), request, Outcome.ASKED, Answer(0, None))
            try:
                effect = prepare()
            except Problem:
                # The first request may have been accepted.
                stored = self._kept(request)
                if stored is None:
                    raise
                return _response(stored, replayed=True)
            answer, replayed = self._once(request, effect)
        return _response(answer, replayed=replayed)

    async def run_joint(self, request: KeyedRequest, effect: "BatchedEffect[Any]") -> Response:
        """As :meth:`run` for an effect that is prepared, without a thread that waits for the commit."""
        with self._alone(request):
            answer, replayed = await self._commits.run_joint(_Write(self, request, effect), self.transact)
            reached(CrashPoint.REQUEST_COMMITTED)
        return _response(answer, replayed=replayed)

    def _kept(self, request: KeyedRequest) -> Answer | None:
        if request.key is None:
            return None
        with self._database.reading() as session:
            [known] = self._known(session.connection(), [request])
        if isinstance(known, Problem):
            raise known
        return known

    def _once(self, request: KeyedRequest, effect: Effect) -> tuple[Answer, bool]:
        batched = self.transact if isinstance(effect, BatchedEffect) else None
        found = self._commits.run(_Write(self, request, effect), batched)
        reached(CrashPoint.REQUEST_COMMITTED)
        return found

    def transact(self, session: Session, writes: Sequence["_Write"]) -> list[tuple[Answer, bool] | Problem]:
        """The transaction of some requests: for each its answer and whether that was kept from before, or its problem.

        More than one must have batched effects of one kind.
        """
        connection = session.connection()
        # 1. Find the requests that were answered before, and lock the keys of the others.
        known = self._known(connection, [write.request for write in writes], lock=True)
        # 2. Make the effects of the others.
        new = [write for write, found in zip(writes, known, strict=True) if found is None]
        made = _make(session, [write.effect for write in new])
        done = [(write.request, each) for write, each in zip(new, made, strict=True) if isinstance(each, Answer)]
        # 3. Record them in the audit log.
        entries = [
            (request.origin, _entry(request, Outcome.DONE, answer)) for request, answer in done if request.origin
        ]
        record_all(connection, entries, self._now_s())
        # 4. Keep the answers for repetitions.
        self._keep(connection, done)
        reached(CrashPoint.REQUEST_WRITTEN)
        left = iter(made)
        outcomes = ((next(left), False) if found is None else (found, True) for found in known)
        return [(answer, kept) if isinstance(answer, Answer) else answer for answer, kept in outcomes]

    def _log(self, connection: Connection, request: KeyedRequest, outcome: Outcome, answer: Answer) -> None:
        if request.origin is None:
            return
        record(connection, request.origin, _entry(request, outcome, answer), self._now_s())

    @contextmanager
    def _alone(self, request: KeyedRequest) -> Iterator[None]:
        if request.key is None:
            yield
            return
        mark = (request.key, request.route)
        with self._lock:
            if mark in self._running:
                raise Problem(ProblemType.REQUEST_IN_PROGRESS, headers={"Retry-After": "1"})
            self._running.add(mark)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(mark)

    def _known(
        self, connection: Connection, requests: Sequence[KeyedRequest], *, lock: bool = False
    ) -> list[Answer | Problem | None]:
        """The kept answer of each, or why its key cannot be used; None for a new request.

        With ``lock`` the keys are locked until the transaction ends: a second service with the same request waits here and then
        finds the answer.
        """
        asked = {(request.key, request.route) for request in requests if request.key is not None}
        if not asked:
            return [None] * len(requests)
        if lock:
            take_locks(connection, *(f"key {route} {key}" for key, route in asked))
        keys, now_s = [key for key, _ in asked], self._now_s()
        found = connection.execute(_KEPT[connection.dialect.name], {"keys": keys}).all()
        kept = {(row.key, row.route): row for row in found if row.expires_at_s > now_s}
        if lock and len(kept) < len(found):
            # Expired answers that are not pruned yet would be in the way of new ones.
            connection.execute(_FORGET_EXPIRED, {"keys": keys, "now_s": now_s})
        return [_kept_answer(kept.get((request.key, request.route)), request) for request in requests]

    def _keep(self, connection: Connection, done: Sequence[tuple[KeyedRequest, Answer]]) -> None:
        now_s = self._now_s()
        rows = [
            {
                "key": request.key,
                "route": request.route,
                "body_sha256": request.body_sha256,
                "state": "done",
                "status": answer.status,
                "response": answer.body if answer.kept is None else answer.kept,
                "location": answer.location,
                "created_at_s": now_s,
                "expires_at_s": now_s + self._kept_s,
            }
            for request, answer in done
            if request.key is not None
        ]
        insert_rows(connection, IDEMPOTENCY_KEYS, rows)


@dataclass(frozen=True, slots=True)
class _Write:
    """A member of the group commit: one request and its effect."""

    keys: Keys
    request: KeyedRequest
    effect: Effect

    def __call__(self, session: Session) -> tuple[Answer, bool]:
        """The answer, and whether it was kept from before. Raises Problem."""
        [found] = self.keys.transact(session, [self])
        if isinstance(found, Problem):
            raise found
        return found


def _make(session: Session, effects: Sequence[Effect]) -> Sequence[Answer | Problem]:
    batched = [effect for effect in effects if isinstance(effect, BatchedEffect)]
    if batched:
        return batched[0].insert(session, [effect.item for effect in batched])
    return [effect(session) for effect in effects]


def _kept_answer(row: Any, request: KeyedRequest) -> Answer | Problem | None:
    if row is None:
        return None
    if row.body_sha256 != request.body_sha256:
        return Problem(ProblemType.IDEMPOTENCY_KEY_REUSED, "The Idempotency-Key was used with another body.")
    return Answer(row.status, row.response, row.location)


def _entry(request: KeyedRequest, outcome: Outcome, answer: Answer) -> Entry:
    return Entry(request.action, answer.target or request.target, outcome, answer.status, answer.detail)


def _response(answer: Answer, *, replayed: bool) -> Response:
    headers = {} if answer.location is None else {"Location": answer.location}
    if replayed:
        headers[REPLAYED_HEADER] = "true"
    return JSONResponse(answer.body, answer.status, headers)
