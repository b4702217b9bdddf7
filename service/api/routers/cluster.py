"""The cluster: its servers, their free GPUs, and an operator's requests."""

from typing import Annotated, Any, Literal

from fastapi import Path, Response
from sqlalchemy import Row
from sqlmodel import Session

from policies.model.cluster import Server
from policies.model.ids import ServerIndex
from policies.model.resources import MIB_PER_GIB, Amounts
from policies.training.gpu_speed import speed_warnings, with_assumed_speed
from service.api.changes import Change, ChangeRequest
from service.api.deps import ApiDependencies, ClusterNow, Deps, ToLeader
from service.api.documents import document
from service.api.idempotency import Answer
from service.api.paging import SERIAL, Page, Paging
from service.api.permissions import OPERATE, READ
from service.api.problems import Problem, ProblemType
from service.api.routers.common import NoBody, Routes, large
from service.config.cluster_file import NOT_THIS_MACHINE
from service.db import reads
from service.db.reservations import open_reservations
from service.db.store import DuplicateServer
from service.engine.events import EngineRequest, RequestKind
from service.wire.base import TEXT_MAX
from service.wire.bodies import ServerBody
from service.wire.cluster import ClusterDocument, ServerDocument, ServerEventDocument
from service.wire.jobs import AcceptedDocument, AcceptedServerDocument

routes = Routes("cluster")

BYTES_PER_GIGABIT = 1e9 / 8

ServerPath = Annotated[str, Path(min_length=1, max_length=TEXT_MAX)]


@routes.read("/cluster", READ, "Show the cluster", response_model=ClusterDocument)
def show_cluster(dependencies: Deps, leader: ToLeader) -> Response:
    """The current state of the scheduling loop."""
    now = leader.cluster()
    with dependencies.reading() as connection:
        now_s = dependencies.now_s()
        rows = {row.name: row for row in reads.servers(connection)}
        reserved = {
            int(server): each.window.id
            for each in open_reservations(connection, now_s)
            if each.window.active(now_s)
            for server in each.window.servers
        }
    servers = [
        _document(now, index, rows.get(server.name), reserved.get(index))
        for index, server in enumerate(now.cluster.servers)
    ]
    found = ClusterDocument(
        name=now.cluster.name,
        gpus=now.cluster.gpus,
        usable_gpus=sum(server["usable_gpus"] for server in servers),
        free_gpus=sum(server["free_gpus"] for server in servers),
        servers=servers,
        warnings=speed_warnings(now.cluster.servers),
    )
    return large(found)


@routes.read("/cluster/events", READ, "List changes of servers, newest first")
def list_server_events(dependencies: Deps, paging: Paging) -> Page[ServerEventDocument]:
    """What operators and the executor reported of servers, with reasons. Kept as long as cycles."""
    before = paging.position("server_events", SERIAL)
    with dependencies.reading() as connection:
        rows = reads.server_events(connection, before, paging.limit + 1)
    return paging.page("server_events", rows, lambda row: (row.id,), server_event)


def server_event(row: Row[Any]) -> ServerEventDocument:
    """A row of ``server_events`` with the name of its server."""
    return document(ServerEventDocument, row, server=row.name)


def _document(now: ClusterNow, index: int, row: Row[Any] | None, reservation: int | None) -> ServerDocument:
    """``row`` is None for a server whose cycle is not committed yet."""
    server = now.cluster.servers[index]
    free = now.spare.get(ServerIndex(index)) or Amounts(None, None)
    drained_by = [] if row is None else _drained_by(row)
    # Not by ``document``, which looks for each key: there may be ten thousand servers.
    return ServerDocument(
        name=server.name,
        state="down" if row is not None and row.down else "drained" if drained_by else "up",
        gpus=server.gpus,
        usable_gpus=now.usable_gpus[index],
        free_gpus=now.free_gpus[index],
        gpu_type=server.gpu_type,
        rack=server.rack,
        nic_gbps=server.nic_bytes_s / BYTES_PER_GIGABIT,
        intra_gbps=server.intra_bytes_s / BYTES_PER_GIGABIT,
        gpu_speed=server.gpu_speed,
        gpu_memory_gib=server.gpu_memory_gib,
        cpus=server.cpus,
        free_cpus=free.cpus,
        memory_gib=server.memory_gib,
        free_memory_gib=None if free.memory_mib is None else round(free.memory_mib / MIB_PER_GIB, 3),
        reservation=reservation,
        drained_by=drained_by,
        detail="" if row is None else "; ".join(filter(None, (row.detail, row.health_reason))),
    )


def _drained_by(row: Row[Any]) -> list[Literal["operator", "health", "engine"]]:
    found: list[Literal["operator", "health", "engine"]] = []
    if row.drained:
        found.append("health" if row.health_reason else "operator")
    if row.engine_drained:
        found.append("engine")
    return found


@routes.change("POST", "/cluster/servers", OPERATE, "Add a server", AcceptedServerDocument)
def add_server(dependencies: Deps, change: Change, body: ServerBody) -> Response:
    """Jobs may use it from the next cycle on. With executor=local only servers of a virtual cluster can be added."""
    if dependencies.machine is not None and body.name not in dependencies.machine:
        advice = "set executor=slurm or executor=ray, or add 'virtual: true' to the cluster file to have this machine pretend"
        raise Problem(ProblemType.CONFLICT, f"Server {body.name!r} is {NOT_THIS_MACHINE}; {advice}.")
    server = Server(
        name=body.name,
        gpus=body.gpus,
        gpu_type=body.gpu_type,
        rack=body.rack,
        nic_bytes_s=body.nic_gbps * BYTES_PER_GIGABIT,
        intra_bytes_s=body.intra_gbps * BYTES_PER_GIGABIT,
        gpu_speed=body.gpu_speed,
        gpu_memory_gib=body.gpu_memory_gib,
        cpus=body.cpus,
        memory_gib=body.memory_gib,
    )
    if "gpu_speed" not in body.model_fields_set:
        server = with_assumed_speed(server)

    def effect(session: Session) -> Answer:
        try:
            request = EngineRequest(0, RequestKind.SERVER_ADDED, dependencies.now_s(), server_spec=server)
            return change.accept(session, request, server.name, warnings=speed_warnings([server]))
        except DuplicateServer:
            raise Problem(ProblemType.CONFLICT, f"A server named {server.name!r} already exists.") from None

    return change.ask(effect)


@routes.change("POST", "/cluster/servers/{name:name}/drain", OPERATE, "Drain a server", AcceptedDocument, 404)
def drain(dependencies: Deps, change: Change, name: ServerPath, body: NoBody = None) -> Response:
    """No new jobs start on the server. Running jobs continue."""
    return _change(dependencies, change, name, RequestKind.SERVER_DRAINED)


@routes.change("POST", "/cluster/servers/{name:name}/resume", OPERATE, "Resume a drained server", AcceptedDocument, 404)
def resume(dependencies: Deps, change: Change, name: ServerPath, body: NoBody = None) -> Response:
    """Jobs can start on the server again."""
    return _change(dependencies, change, name, RequestKind.SERVER_RESUMED)


def _change(dependencies: ApiDependencies, change: ChangeRequest, name: str, kind: RequestKind) -> Response:
    def effect(session: Session) -> Answer:
        position = reads.server_position(session.connection(), name)
        if position is None:
            raise Problem(ProblemType.NOT_FOUND, f"There is no server {name!r}.")
        request = EngineRequest(0, kind, dependencies.now_s(), server=ServerIndex(position))
        return change.accept(session, request, name)

    return change.ask(effect)
