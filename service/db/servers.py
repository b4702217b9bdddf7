"""The stored servers and the cluster file. Positions of servers are permanent; the file lists the current servers."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock

from sqlalchemy import Connection, bindparam, insert, select, update

from policies.model.cluster import Cluster, Server
from policies.model.placement import Placement
from service.db.codec import decode, encode
from service.db.dialects import SERVERS_LOCK, take_locks
from service.db.rows import OPEN_ATTEMPTS, ServerOrigin, Values, server_values
from service.db.session import Database
from service.db.tables import ATTEMPTS, SERVERS
from service.domain.counts import count_of
from service.engine.ports import FoundServer, other_gpus
from service.engine.record import ServerRecord

CACHED_S = 1.0

NOT_LISTED = "the cluster no longer lists it"

_UP: Values = {"down": False, "engine_drained": False, "detail": ""}


class ServerInUse(ValueError):
    """The cluster file changes the GPUs of a server while an attempt holds some of them; the message is one line."""


def enroll(
    database: Database, cluster: Cluster, found: Iterable[FoundServer] | None = None, *, detected: bool = False
) -> Cluster:
    """Store the servers of the cluster file and return the cluster of all stored servers, each at its permanent position.

    New servers are appended, changed descriptions are updated. A server that the file no longer lists is marked down, and up
    again when it returns. Servers added by request are unchanged. ``found``: the states of those servers of ``cluster`` that an
    executor has found, None if it does not look for servers; one with another number of GPUs than is stored here is drained.
    While an attempt holds GPUs of such a server, its description stays. The same holds if ``cluster`` was ``detected``, from what
    this machine has, and not written by anyone: a GPU that fails must not end the service. Drains by operators of this service
    stay. Must be called before the engine loads.
    Raises :class:`ServerInUse` for a server in use that ``cluster`` changes and that is neither found nor detected.
    """
    seen = map(FoundServer, cluster.servers) if detected else found or ()
    states = {each.server.name: each for each in seen}
    with database.writing() as session:
        connection = session.connection()
        take_locks(connection, SERVERS_LOCK)
        stored = {row["name"]: row for row in connection.execute(select(SERVERS)).mappings()}
        wanted = {server.name: server for server in cluster.servers}
        changed: list[Values] = []
        for name, row in stored.items():
            new = wanted.get(name)
            if new is not None:
                old = decode(Server, row["spec"])
                if old.gpus != new.gpus and (attempt := _attempt_on(connection, row["position"])) is not None:
                    if name not in states:
                        raise ServerInUse(
                            f"server {name!r} now has {count_of(new.gpus, 'GPU')} in the cluster file, but attempt {attempt} "
                            "runs on it; drain the server under its old description first"
                        )
                    new = old
                known = {"at_name": name, "spec": encode(new), "origin": ServerOrigin.FILE.value}
                changed.append(known | _state(new, states))
            elif row["origin"] == ServerOrigin.FILE.value:
                gone = {"at_name": name, "spec": row["spec"], "origin": row["origin"]}
                changed.append(gone | {"down": True, "engine_drained": False, "detail": NOT_LISTED})
            elif row["down"] and found is None:
                # Nothing but an executor that looked for servers, or knew that this one is of another machine, can have set it.
                changed.append({"at_name": name, "spec": row["spec"], "origin": row["origin"]} | _UP)
        if changed:
            connection.execute(update(SERVERS).where(SERVERS.c.name == bindparam("at_name")), changed)
        added = [server for name, server in wanted.items() if name not in stored]
        rows = [
            server_values(position, server, ServerRecord(), ServerOrigin.FILE) | _state(server, states)
            for position, server in enumerate(added, start=len(stored))
        ]
        if rows:
            connection.execute(insert(SERVERS), rows)
        everything = _all(connection)
    return replace(cluster, servers=tuple(everything))


def stored_cluster(database: Database, like: Cluster) -> Cluster:
    """The cluster of all stored servers, otherwise equal to ``like``; ``like`` itself if none is stored."""
    with database.reading() as session:
        servers = tuple(_all(session.connection()))
    return replace(like, servers=servers or like.servers)


class CachedCluster:
    """:func:`stored_cluster`, cached for :data:`CACHED_S`. Reading ten thousand servers takes a tenth of a second, and a standby
    service needs them for every submission. Thread-safe.
    """

    def __init__(self, database: Database, like: Cluster, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._like = like
        self._monotonic_s = monotonic_s
        self._lock = Lock()
        self._read_at_s = -math.inf
        self._cluster = like

    def __call__(self) -> Cluster:
        """The cluster as it was at most :data:`CACHED_S` ago."""
        with self._lock:
            now_s = self._monotonic_s()
            if now_s - self._read_at_s >= CACHED_S:
                self._cluster = stored_cluster(self._database, self._like)
                self._read_at_s = now_s
            return self._cluster


def _all(connection: Connection) -> Sequence[Server]:
    specs = connection.execute(select(SERVERS.c.spec).order_by(SERVERS.c.position)).scalars()
    return [decode(Server, spec) for spec in specs]


def _state(server: Server, found: Mapping[str, FoundServer]) -> Values:
    """Of the stored ``server``, as the executor has found it."""
    state = found.get(server.name)
    if state is None:
        return _UP
    if not state.down and (other := other_gpus(state.server, server)):
        return {"down": False, "engine_drained": True, "detail": other}
    return {"down": state.down, "engine_drained": state.drained, "detail": state.detail}


def _attempt_on(connection: Connection, position: int) -> str | None:
    """An attempt that holds GPUs of the server."""
    held = select(ATTEMPTS.c.id, ATTEMPTS.c.placement).where(ATTEMPTS.c.state.in_(OPEN_ATTEMPTS))
    return next(
        (
            attempt
            for attempt, placement in connection.execute(held)
            if position in decode(Placement, placement).servers
        ),
        None,
    )
