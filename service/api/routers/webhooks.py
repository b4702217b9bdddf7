"""Webhooks: add, list, test and remove them, and list their deliveries.

Operators see all of them. Other users see those that they have added, which receive events of their own jobs only.
"""

from typing import Annotated, Any

from fastapi import Path, Response
from sqlalchemy import Connection, Row
from sqlmodel import Session

from service.api.access import Caller
from service.api.access_documents import delivery_document, webhook_document
from service.api.changes import Change
from service.api.deps import Deps
from service.api.idempotency import Answer, Effect
from service.api.paging import SERIAL, Page, Paging
from service.api.permissions import OWN_WEBHOOKS
from service.api.problems import Fault, Problem, ProblemType
from service.api.routers.common import NoBody, Routes
from service.config.settings import Settings
from service.db import webhooks
from service.db.webhooks import NewWebhook
from service.domain.access import Identity, Role
from service.domain.webhooks import WebhookEvent, new_secret
from service.runtime.webhook_post import refusal_of
from service.wire.access import DeliveryDocument, NewWebhookDocument, WebhookDocument
from service.wire.bodies import Id, WebhookBody

routes = Routes("webhooks")

WebhookPath = Annotated[Id, Path(description="The webhook's number.")]


@routes.read("/webhooks", OWN_WEBHOOKS, "List webhooks")
def list_webhooks(caller: Caller, dependencies: Deps, paging: Paging) -> Page[WebhookDocument]:
    """Oldest first, without their secrets."""
    scope = f"webhooks {_owner(caller)!r}"
    after = paging.position(scope, SERIAL) or 0
    with dependencies.reading() as connection:
        rows = webhooks.webhooks(connection, _owner(caller), after, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), webhook_document)


@routes.change("POST", "/webhooks", OWN_WEBHOOKS, "Add a webhook", NewWebhookDocument, status=201)
def add_webhook(caller: Caller, dependencies: Deps, change: Change, body: WebhookBody) -> Response:
    """It receives later events. Only this response contains the secret."""

    def prepare() -> Effect:
        new = _checked(body, caller, dependencies.settings)
        return lambda session: _add(session, new, dependencies.settings, dependencies.now_s())

    return change.prepare_and_make(prepare)


@routes.read("/webhooks/{webhook_id}", OWN_WEBHOOKS, "Show a webhook", 404)
def show_webhook(caller: Caller, dependencies: Deps, webhook_id: WebhookPath) -> WebhookDocument:
    """Without its secret."""
    with dependencies.reading() as connection:
        return webhook_document(_mine(connection, webhook_id, caller))


@routes.change("DELETE", "/webhooks/{webhook_id}", OWN_WEBHOOKS, "Remove a webhook", WebhookDocument, 404, status=200)
def remove_webhook(caller: Caller, dependencies: Deps, change: Change, webhook_id: WebhookPath) -> Response:
    """Its secret and its pending deliveries are deleted too."""

    def effect(session: Session) -> Answer:
        connection = session.connection()
        document = webhook_document(_mine(connection, webhook_id, caller))
        webhooks.remove_webhook(connection, webhook_id)
        return Answer(200, document)

    return change.make(effect)


@routes.change("POST", "/webhooks/{webhook_id}/test", OWN_WEBHOOKS, "Test a webhook", DeliveryDocument, 404)
def try_webhook(
    caller: Caller, dependencies: Deps, change: Change, webhook_id: WebhookPath, body: NoBody = None
) -> Response:
    """Posts `webhook.test` to it. The list of its deliveries shows the result some seconds later."""

    def effect(session: Session) -> Answer:
        connection = session.connection()
        _mine(connection, webhook_id, caller)
        delivery = webhooks.add_test(connection, webhook_id, dependencies.now_s())
        return Answer(202, delivery_document(webhooks.delivery(connection, delivery)))

    return change.make(effect)


@routes.read("/webhooks/{webhook_id}/deliveries", OWN_WEBHOOKS, "List a webhook's deliveries", 404)
def list_deliveries(
    caller: Caller, dependencies: Deps, paging: Paging, webhook_id: WebhookPath
) -> Page[DeliveryDocument]:
    """Newest first. Ended deliveries are deleted after `deliveries_kept_s`."""
    scope = f"deliveries {webhook_id}"
    before = paging.position(scope, SERIAL)
    with dependencies.reading() as connection:
        _mine(connection, webhook_id, caller)
        rows = webhooks.deliveries(connection, webhook_id, before, paging.limit + 1)
    return paging.page(scope, rows, lambda row: (row.id,), delivery_document)


def _owner(caller: Identity) -> str | None:
    """Whose webhooks the caller sees; None = everybody's."""
    return None if caller.role.covers(Role.OPERATOR) else caller.user or ""


def _mine(connection: Connection, webhook_id: int, caller: Identity) -> Row[Any]:
    """The webhook, or 404; also for one that is not the caller's to know of."""
    row = webhooks.webhook(connection, webhook_id)
    if row is None or _owner(caller) not in (None, row.owner):
        raise Problem(ProblemType.NOT_FOUND, f"There is no webhook {webhook_id}.")
    return row


def _checked(body: WebhookBody, caller: Identity, settings: Settings) -> NewWebhook:
    refusal = refusal_of(body.url, allow_private=settings.webhook_private_addresses)
    if refusal is not None:
        raise Problem(ProblemType.INVALID_BODY, faults=[Fault(refusal, pointer="/url")])
    user = body.user
    if not caller.role.covers(Role.OPERATOR):
        if user not in (None, caller.user):
            fault = Fault("must be null: only operators receive events of other users' jobs", pointer="/user")
            raise Problem(ProblemType.FORBIDDEN, faults=[fault])
        user = caller.user
    events = [WebhookEvent(word) for word in dict.fromkeys(body.events)]
    return NewWebhook(body.url, events, caller.user or "", user, body.project, body.secret or new_secret())


def _add(session: Session, new: NewWebhook, settings: Settings, now_s: float) -> Answer:
    connection = session.connection()
    number = webhooks.add_webhook(connection, new, settings.webhooks_max, now_s)
    if number is None:
        detail = f"At most {settings.webhooks_max} webhooks (setting webhooks_max)."
        raise Problem(ProblemType.CONFLICT, detail)
    row = webhooks.webhook(connection, number)
    assert row is not None
    document = webhook_document(row)
    return Answer(
        201,
        {**document, "secret": new.secret},
        f"/v1/webhooks/{number}",
        kept={**document, "secret": None},
        target=f"webhook {number}",
        detail={"events": document["events"], "user": document["user"], "project": document["project"]},
    )
