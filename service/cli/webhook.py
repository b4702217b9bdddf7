"""``sooner webhook ...``: HTTP notifications about changes of jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED, fail
from service.cli.job_tables import when
from service.cli.options import ProjectOption, UserOption
from service.cli.output import (
    Column,
    IdsStyle,
    JsonFlag,
    OnceStyle,
    Table,
    pause,
    print_json,
    printable,
    show_service,
)
from service.client import Client

if TYPE_CHECKING:
    from service.wire.access import DeliveryDocument, WebhookDocument


TEST_POLL_S = 0.5
TEST_WAIT_S = 30.0
LIST_LIMIT = 50

WebhookArgument = Annotated[int, typer.Argument(metavar="WEBHOOK", min=1, help="The webhook's number.")]

WEBHOOKS: Table[WebhookDocument] = Table(
    columns=(
        Column("WEBHOOK", lambda hook: str(hook["id"]), right=True),
        Column("URL", lambda hook: hook["url"], long=True),
        Column("EVENTS", lambda hook: ",".join(hook["events"]), long=True),
        Column("USER", lambda hook: hook["user"] or "all", long=True),
        Column("PROJECT", lambda hook: hook["project"] or "all", long=True),
        Column("OWNER", lambda hook: hook["owner"] or "", long=True),
    ),
    key=lambda hook: str(hook["id"]),
    hidden=(Column("CREATED", lambda hook: when(hook["created_at"])),),
    name="webhooks",
)

DELIVERIES: Table[DeliveryDocument] = Table(
    columns=(
        Column("DELIVERY", lambda each: str(each["id"]), right=True),
        Column("EVENT", lambda each: each["event"]),
        Column("JOB", lambda each: "" if each["job_id"] is None else str(each["job_id"]), right=True),
        Column("STATE", lambda each: each["state"]),
        Column("ATTEMPTS", lambda each: str(each["attempts"]), right=True),
        Column("STATUS", lambda each: "" if each["status"] is None else str(each["status"]), right=True),
        Column("CREATED", lambda each: when(each["created_at"])),
        Column("NEXT", lambda each: when(each["next_at"])),
        Column("ERROR", lambda each: each["error"] or "", long=True),
    ),
    key=lambda each: str(each["id"]),
    name="deliveries",
)


def add_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL to which events are posted.")],
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help="Event to send, such as job.failed; repeatable. Default: the ends of jobs."),
    ] = None,
    user: UserOption = None,
    project: ProjectOption = None,
    secret_file: Annotated[
        typer.FileText | None,
        typer.Option(
            "--secret-file", help="File with the signing secret (- = standard input). Default: a generated secret."
        ),
    ] = None,
    *,
    how: IdsStyle,
) -> None:
    """Add a webhook. Its signing secret is printed once."""
    given = {"url": url, "events": event, "user": user, "project": project}
    body = {name: value for name, value in given.items() if value}
    if secret_file is not None:
        body["secret"] = secret_file.read().strip()
    with connect() as client:
        added = client.webhooks.add(body)
    if how.as_json:
        print_json({"schema": "sooner.webhook/1", "webhook": added})
    elif how.quiet:
        typer.echo(str(added["id"]))
    else:
        typer.echo(f"webhook {added['id']} added; its secret, which is not shown again:", err=True)
        typer.echo(printable(added["secret"] or ""))


def list_command(how: OnceStyle) -> None:
    """List your webhooks (for operators: all webhooks)."""
    show_service(WEBHOOKS, lambda client: client.webhooks.list(), how)


def remove_command(webhook: WebhookArgument) -> None:
    """Remove a webhook, its secret and its pending deliveries."""
    with connect() as client:
        client.webhooks.remove(webhook)
    typer.echo(f"webhook {webhook} removed", err=True)


def deliveries_command(
    webhook: WebhookArgument,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most this many deliveries; 0 = all.")] = LIST_LIMIT,
    *,
    how: OnceStyle,
) -> None:
    """List a webhook's deliveries, newest first."""
    show_service(DELIVERIES, lambda client: client.webhooks.deliveries(webhook, limit=limit or None), how)


def try_command(webhook: WebhookArgument, as_json: JsonFlag = False) -> None:
    """Post webhook.test and wait for the result. Exit code 1 if the delivery failed."""
    with connect() as client:
        delivery = _first_attempt(client, webhook, client.webhooks.test(webhook)["id"])
    if as_json:
        print_json(DELIVERIES.answer([delivery]).document)
    elif delivery["state"] == "delivered":
        typer.echo(f"delivered: status {delivery['status']}")
    if delivery["state"] != "delivered":
        fail(delivery["error"] or f"nothing was delivered within {TEST_WAIT_S:g} s", EXIT_FAILED)


def _first_attempt(client: Client, webhook: int, delivery_id: int) -> DeliveryDocument:
    """The delivery once it was tried, or as it is after a while."""
    deadline_s = time.monotonic() + TEST_WAIT_S
    while True:
        found = _delivery(client, webhook, delivery_id)
        if found is None:
            fail(f"delivery {delivery_id} is no longer listed: the webhook was removed", EXIT_FAILED)
        if found["attempts"] or found["state"] != "pending" or time.monotonic() >= deadline_s:
            return found
        pause(TEST_POLL_S)


def _delivery(client: Client, webhook: int, delivery_id: int) -> DeliveryDocument | None:
    """A new delivery; None if it is gone. It is the newest or nearly so: others may have come meanwhile, rarely a pageful."""
    for limit in (LIST_LIMIT, None):
        listed = client.webhooks.deliveries(webhook, limit=limit)
        for each in listed:
            if each["id"] == delivery_id:
                return each
        if len(listed) < LIST_LIMIT:
            break
    return None
