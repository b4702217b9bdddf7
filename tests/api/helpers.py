"""The one assertion about errors, and bodies to start from."""

import copy
from collections.abc import Callable
from typing import Any

from httpx import Response
from sqlalchemy import Connection, event

from policies.model.cluster import Cluster
from policies.registry import make_policy
from service.api.problems import ProblemType
from service.db.session import Database
from service.engine.engine import Engine, Ports
from service.executors.fake import FakeExecutor
from service.sim.predictors import NoPredictor
from service.wire import examples
from tests.api.conftest import World
from tests.null_sink import NullSink

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}

_KINDS = {kind.value.slug: kind for kind in ProblemType}


def assert_problem(response: Response, slug: str, pointers: list[str] | None = None) -> dict[str, Any]:
    """The answer is this problem, whole and well formed; with ``pointers``, exactly these places of the body are named."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert set(document) == {"type", "title", "status", "detail", "instance", "errors"}, document
    assert document["type"] == f"/docs/problems/{slug}", document
    kind = _KINDS[slug]
    assert response.status_code == document["status"] == kind.value.status
    assert document["title"] == kind.value.title
    assert document["detail"]
    assert document["instance"] == response.request.url.path
    for fault in document["errors"]:
        assert set(fault) in ({"pointer", "detail"}, {"parameter", "detail"}), fault
        assert fault["detail"]
    assert "Traceback" not in response.text
    for name, value in SECURITY_HEADERS.items():
        assert response.headers[name] == value, name
    if pointers is not None:
        assert sorted(fault["pointer"] for fault in document["errors"]) == sorted(pointers), document["errors"]
    return document


class _WorldClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_s(self) -> float:
        return self._world.now_s


def admit(world: World) -> None:
    """One cycle of an engine whose servers are drained: it admits what was submitted and starts nothing."""
    world.say_of_servers({server.name: (True, False) for server in world.servers})
    clock = _WorldClock(world)
    ports = Ports(world.store, FakeExecutor(clock), clock, NoPredictor(), NullSink())
    outcome = Engine(make_policy("fifo"), Cluster("test", tuple(world.servers)), ports).cycle()
    assert not outcome.failed


def plain_job(**changes: Any) -> dict[str, Any]:
    """A job without a graph."""
    return {**copy.deepcopy(examples.PLAIN_JOB), **changes}


def graph_job(**changes: Any) -> dict[str, Any]:
    """The job of the documentation: two layers, two stages."""
    return {**copy.deepcopy(examples.JOB), **changes}


def plans_of(database: Database, read: Callable[[Connection], Any]) -> list[str]:
    """How SQLite would run each statement of a read."""
    plans: list[str] = []

    def explain(conn: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        rows = conn.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        plans.append("; ".join(str(row[3]) for row in rows))

    with database.reading() as session:
        connection = session.connection()
        event.listen(database.engine, "before_cursor_execute", explain)
        try:
            read(connection)
        finally:
            event.remove(database.engine, "before_cursor_execute", explain)
    return plans
