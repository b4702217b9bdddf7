"""``sooner services`` and ``sooner events``: who serves this database, and what happens as it happens."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.job_tables import when
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    Style,
    Table,
    print_json,
    printable,
    show,
)
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.client import StreamEvent
    from service.wire.cluster import ServiceDocument


SERVICES: Table[ServiceDocument] = Table(
    columns=(
        Column("ROLE", lambda service: service["role"]),
        Column("NAME", lambda service: service["name"], long=True),
        Column("ADDRESS", lambda service: service["url"], long=True),
        Column("SEEN", lambda service: when(service["seen_at"])),
        Column("SILENT", lambda service: words_of(service["silent_s"]), right=True),
    ),
    key=lambda service: service["id"],
    hidden=(
        Column("ID", lambda service: service["id"]),
        Column("VERSION", lambda service: service["version"]),
        Column("STARTED", lambda service: when(service["started_at"])),
        Column("CONDEMNED", lambda service: "yes" if service["condemned"] else ""),
    ),
)


def services_command(how: Style) -> None:
    """List the services of this database: the leader, the standbys, and how long each has been silent."""
    with connect() as client:

        def answer() -> Answer[ServiceDocument]:
            found = client.services.list()
            leads = any(service["role"] == "leader" for service in found)
            return Answer(
                found,
                {"schema": "sooner.services/1", "services": found},
                "" if leads else "no service leads at the moment",
            )

        show(SERVICES, answer, how)


TOPICS = "'jobs', 'job:NUMBER', 'servers' or 'cycle'"
"""Those whose events can be printed: events of the API's topic ``changes`` have no ids."""


def events_command(
    topic: Annotated[str, typer.Option("--topic", help=f"{TOPICS} (operators only).")] = "jobs",
    since: Annotated[
        str | None, typer.Option("--since", metavar="ID", help="Start after this event; 0 = start at the first event.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print events until Ctrl-C. The stream continues if a service stops or another takes over.

    With --json, print one document per line (NDJSON). --since takes the id of a document.
    """
    if topic not in ("jobs", "servers", "cycle") and not re.fullmatch("job:[1-9][0-9]*", topic):
        fail(f"--topic: {topic!r} is not {TOPICS}")
    if since is not None and not re.fullmatch("[0-9][0-9+.]*", since):
        fail(f"--since: {since!r} is not the id of an event")
    with connect() as client, suppress(KeyboardInterrupt):
        for happening in client.follow(topic, since):
            if as_json:
                document = {"id": happening.id, "event": happening.kind, "data": happening.document}
                print_json({"schema": "sooner.event/1"} | document)
            else:
                typer.echo(printable(_line(happening)))


def _line(happening: StreamEvent) -> str:
    document = happening.document
    if happening.kind == "cycle":
        counts = ", ".join(f"{document[name]} {name}" for name in ("changes", "actions", "refusals"))
        return f"{when(document['at'])}  cycle {document['number']}: {counts}"
    if happening.kind == "server":
        return f"{when(document['at'])}  server {document['server']}: {document['kind']}  {document['detail']}".rstrip()
    job = f"job {document['job_id']} {document['name']} ({document['user']})"
    return f"{when(document['at'])}  {job}: {document['source'] or 'new'} -> {document['target']}, {document['reason']}"
