"""``sooner cluster ...`` and ``sooner info``: the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli import completion
from service.cli.connect import connect
from service.cli.job_tables import when
from service.cli.one_by_one import change_one_by_one
from service.cli.options import above_zero, given
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    print_accepted,
    printable,
    show,
)
from service.client import Client

if TYPE_CHECKING:
    from service.wire.cluster import ServerDocument, ServerEventDocument
    from service.wire.jobs import AcceptedDocument


def _state(server: ServerDocument) -> str:
    reserved = server["state"] == "up" and server["reservation"] is not None
    return f"reserved {server['reservation']}" if reserved else server["state"]


ServersArgument = Annotated[
    list[str], typer.Argument(metavar="SERVERS", help="Names of servers.", autocompletion=completion.servers)
]

SERVERS: Table[ServerDocument] = Table(
    columns=(
        Column("SERVER", lambda server: server["name"]),
        Column("STATE", lambda server: _state(server)),
        Column("GPUS", lambda server: str(server["gpus"]), right=True),
        Column("FREE", lambda server: str(server["free_gpus"]), right=True),
        Column("TYPE", lambda server: server["gpu_type"]),
        Column("RACK", lambda server: server["rack"]),
        Column("NIC_GBPS", lambda server: f"{server['nic_gbps']:g}", right=True),
        Column("REASON", lambda server: server["detail"], long=True),
    ),
    key=lambda server: server["name"],
    hidden=(
        Column("DRAINED_BY", lambda server: ",".join(server["drained_by"])),
        Column("USABLE", lambda server: str(server["usable_gpus"]), right=True),
        Column("INTRA_GBPS", lambda server: f"{server['intra_gbps']:g}", right=True),
        Column("SPEED", lambda server: f"{server['gpu_speed']:g}", right=True),
        Column("GPU_MEMORY_GIB", lambda server: f"{server['gpu_memory_gib'] or ''}", right=True),
        Column("CPUS", lambda server: f"{server['cpus'] or ''}", right=True),
        Column("FREE_CPUS", lambda server: _known(server["free_cpus"]), right=True),
        Column("MEMORY_GIB", lambda server: f"{server['memory_gib'] or ''}", right=True),
        Column("FREE_MEMORY_GIB", lambda server: _known(server["free_memory_gib"]), right=True),
    ),
)


def _known(amount: float | None) -> str:
    return "" if amount is None else f"{amount:g}"


def _answer(client: Client) -> Answer[ServerDocument]:
    cluster = client.cluster.show()
    note = f"{cluster['name']}: {cluster['free_gpus']} of {cluster['usable_gpus']} usable GPUs are free"
    if cluster["gpus"] != cluster["usable_gpus"]:
        note += f" ({cluster['gpus']} in all)"
    lines = [note, *(f"warning: {warning}" for warning in cluster.get("warnings", ()))]
    document = {"schema": "sooner.cluster.status/1", "cluster": cluster}
    return Answer(cluster["servers"], document, "\n".join(map(printable, lines)))


def info_command(how: Style) -> None:
    """List the servers with their state, GPUs and free GPUs."""
    with connect() as client:
        show(SERVERS, lambda: _answer(client), how)


show_command = info_command

SERVER_EVENTS: Table[ServerEventDocument] = Table(
    columns=(
        Column("AT", lambda event: when(event["at"])),
        Column("SERVER", lambda event: event["server"]),
        Column("CHANGE", lambda event: event["kind"]),
        Column("REASON", lambda event: event["detail"], long=True),
    ),
    key=lambda event: str(event["id"]),
)


def events_command(
    how: Style,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Newest changes to show.")] = 100,
) -> None:
    """List the newest changes of servers: added, down, up, drained, resumed, each with its reason."""

    def answer() -> Answer[ServerEventDocument]:
        events = client.cluster.events(limit)
        return Answer(events, {"schema": "sooner.server_events/1", "events": events})

    with connect() as client:
        show(SERVER_EVENTS, answer, how)


@dataclass(frozen=True)
class ServerOptions:
    """The properties of a new server; None: the service's default."""

    gpus: Annotated[int, typer.Option("--gpus", min=1, help="Number of GPUs.")]
    gpu_type: Annotated[str | None, typer.Option("--gpu-type", help="GPU type.")] = None
    rack: Annotated[str | None, typer.Option("--rack", help="Rack.")] = None
    nic_gbps: Annotated[
        float | None, typer.Option("--nic-gbps", callback=above_zero, help="Whole server, one direction.")
    ] = None
    intra_gbps: Annotated[
        float | None, typer.Option("--intra-gbps", callback=above_zero, help="Inside the server, one direction.")
    ] = None
    gpu_speed: Annotated[
        float | None, typer.Option("--gpu-speed", callback=above_zero, help="1.0 = the reference GPU.")
    ] = None
    gpu_memory_gib: Annotated[
        float | None, typer.Option("--gpu-memory-gib", callback=above_zero, help="Memory of a GPU.")
    ] = None
    cpus: Annotated[int | None, typer.Option("--cpus", min=1, help="CPUs for jobs. Default: not limited.")] = None
    memory_gib: Annotated[
        float | None, typer.Option("--memory-gib", callback=above_zero, help="Memory for jobs. Default: not limited.")
    ] = None


def add_command(
    name: Annotated[str, typer.Argument(help="Name of the new server.")],
    server: ServerOptions,
    as_json: JsonFlag = False,
) -> None:
    """Add a server. Jobs may use it from the next cycle."""
    with connect() as client:
        accepted = client.cluster.add_server(given(name=name, **asdict(server)))
        print_accepted({f"server {name}": accepted}, as_json)


def drain_command(servers: ServersArgument, as_json: JsonFlag = False) -> None:
    """Drain servers: start no new jobs on them. Running jobs continue."""
    _change(servers, lambda client, name: client.cluster.drain(name), as_json)


def resume_command(servers: ServersArgument, as_json: JsonFlag = False) -> None:
    """Resume drained servers."""
    _change(servers, lambda client, name: client.cluster.resume(name), as_json)


def _change(servers: Sequence[str], change: Callable[[Client, str], AcceptedDocument], as_json: bool) -> None:
    change_one_by_one(
        "server",
        servers,
        change,
        lambda name, accepted: print_accepted({f"server {name}": accepted}, as_json=False),
        lambda accepted: {"schema": "sooner.accepted/1", "accepted": accepted},
        as_json,
    )
