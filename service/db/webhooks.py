"""Webhooks and their outbox in the database.

Deliveries follow from the log of job events, which is read with one cursor. The cursor moves in the transaction that writes the
outbox, so each change enters it exactly once, at no cost for the cycle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, select, update

from policies.lifecycle import JobState
from policies.model.reasons import Reason
from service.db.dialects import take_locks, upsert
from service.db.event_log import job_events, newest_job_event
from service.db.pages import equal, page
from service.db.rows import Values, chunks
from service.db.tables import DELIVERIES, PROPERTIES, USERS, WEBHOOKS
from service.domain.webhooks import WebhookEvent, event_of

_SHOWN = tuple(column for column in WEBHOOKS.c if column.name != "secret")
_DISABLED = select(USERS.c.name).where(USERS.c.disabled_at_s.is_not(None))
_CURSOR = "webhook_cursor"
_LOCK = "webhooks"

OVERFLOW = "too many deliveries were waiting (setting webhook_pending_max)"


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A new webhook: its URL, events, and the user who adds it (``owner`` empty: the local token)."""

    url: str
    events: Sequence[WebhookEvent]
    owner: str
    user: str | None
    project: str | None
    secret: str


@dataclass(frozen=True, slots=True)
class Attempted:
    """The outcome of one attempt at a delivery. ``retry_at_s`` None = no further attempt."""

    delivery: int
    attempts: int
    delivered: bool
    status: int | None
    error: str
    retry_at_s: float | None


def add_webhook(connection: Connection, new: NewWebhook, webhooks_max: int, now_s: float) -> int | None:
    """Store a webhook for events from now on and return its id; None if there are ``webhooks_max`` already."""
    take_locks(connection, _LOCK)
    if int(connection.execute(select(func.count()).select_from(WEBHOOKS)).scalar_one()) >= webhooks_max:
        return None
    values = asdict(new) | {"events": [event.value for event in new.events]}
    values |= {"after_event": newest_job_event(connection), "created_at_s": now_s}
    return int(connection.execute(insert(WEBHOOKS).returning(WEBHOOKS.c.id), values).scalar_one())


def webhooks(connection: Connection, owner: str | None, after_id: int, limit: int) -> Sequence[Row[Any]]:
    """Webhooks without their secrets, oldest first; of one owner if given."""
    theirs = select(*_SHOWN).where(*equal(WEBHOOKS, owner=owner))
    return page(connection, theirs, [WEBHOOKS.c.id], after_id, limit)


def webhook(connection: Connection, webhook_id: int) -> Row[Any] | None:
    """One webhook without its secret, or None."""
    return connection.execute(select(*_SHOWN).where(WEBHOOKS.c.id == webhook_id)).one_or_none()


def remove_webhook(connection: Connection, webhook_id: int) -> None:
    """Delete a webhook with its secret and its deliveries."""
    take_locks(connection, _LOCK)
    connection.execute(delete(DELIVERIES).where(DELIVERIES.c.webhook_id == webhook_id))
    # Overwrite the secret first: a database may keep the bytes of a deleted row.
    connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.id == webhook_id).values(secret="-" * 64))
    connection.execute(delete(WEBHOOKS).where(WEBHOOKS.c.id == webhook_id))


def deliveries(connection: Connection, webhook_id: int, before_id: int | None, limit: int) -> Sequence[Row[Any]]:
    """The deliveries of one webhook, past and pending, newest first."""
    to_it = select(DELIVERIES).where(DELIVERIES.c.webhook_id == webhook_id)
    return page(connection, to_it, [DELIVERIES.c.id], before_id, limit, descending=True)


def delivery(connection: Connection, delivery_id: int) -> Row[Any]:
    """One delivery."""
    return connection.execute(select(DELIVERIES).where(DELIVERIES.c.id == delivery_id)).one()


def add_test(connection: Connection, webhook_id: int, now_s: float) -> int:
    """Put a test delivery into the outbox and return its id."""
    take_locks(connection, _LOCK)
    body = {"id": None, "event": WebhookEvent.TEST.value, "at": _timestamp(now_s), "webhook_id": webhook_id}
    values = _delivery(webhook_id, None, WebhookEvent.TEST, body, now_s)
    return int(connection.execute(insert(DELIVERIES).returning(DELIVERIES.c.id), values).scalar_one())


def add_deliveries(connection: Connection, now_s: float, rows_max: int, pending_max: int) -> int:
    """Put deliveries for the newest changes of jobs into the outbox; returns the number of changes read, 0 = no more.

    Reads at most ``rows_max`` changes and stops after as many deliveries, so that the transaction stays short.
    """
    take_locks(connection, _LOCK)
    hooks = connection.execute(select(*_SHOWN)).all()
    if not hooks:
        return 0
    known = connection.execute(select(PROPERTIES.c.value).where(PROPERTIES.c.name == _CURSOR)).scalar()
    cursor = max(int(known or 0), min(hook.after_event for hook in hooks))
    rows = [row for _, row in job_events(connection, cursor, rows_max)]
    if not rows:
        return 0
    # A disabled user gets no deliveries, neither now nor later for this time: the cursor moves all the same.
    disabled = set(connection.execute(_DISABLED).scalars())
    hooks = [hook for hook in hooks if hook.owner not in disabled]
    capacity: dict[int, int] = {}
    outbox: list[Values] = []
    done = 0
    while done < len(rows) and len(outbox) < rows_max:
        row = rows[done]
        done += 1
        event = event_of(JobState(row.target)) if row.source is not None else None
        for hook in hooks if event is not None else ():
            if event is not None and _matches(hook, row, event):
                new = _delivery(hook.id, row.id, event, _body(row, event), now_s)
                if hook.id not in capacity:
                    capacity[hook.id] = pending_max - _waiting(connection, hook.id, pending_max)
                capacity[hook.id] -= 1
                outbox.append(new if capacity[hook.id] >= 0 else new | _overflow(now_s))
    if outbox:
        connection.execute(insert(DELIVERIES), outbox)
    upsert(connection, PROPERTIES, [{"name": _CURSOR, "value": str(rows[done - 1].id)}])
    return done


def due(connection: Connection, now_s: float, each_max: int) -> Sequence[Row[Any]]:
    """Due deliveries with the URL and the secret of their webhook: at most ``each_max`` of every webhook, oldest first. Those
    of a disabled user wait.

    One index walk per webhook, so the cost does not grow with the deliveries to unreachable receivers.
    """
    found: list[Row[Any]] = []
    hooks = select(WEBHOOKS.c.id).where(WEBHOOKS.c.owner.not_in(_DISABLED)).order_by(WEBHOOKS.c.id)
    for hook in connection.execute(hooks).scalars().all():
        statement = (
            select(DELIVERIES, WEBHOOKS.c.url, WEBHOOKS.c.secret)
            .join(WEBHOOKS, WEBHOOKS.c.id == DELIVERIES.c.webhook_id)
            .where(
                DELIVERIES.c.webhook_id == hook,
                DELIVERIES.c.state == "pending",
                DELIVERIES.c.next_at_s <= now_s,
            )
            .order_by(DELIVERIES.c.next_at_s, DELIVERIES.c.id)
            .limit(each_max)
        )
        found += connection.execute(statement).all()
    return found


def has_work(connection: Connection) -> bool:
    """Whether there is any webhook."""
    return connection.execute(select(WEBHOOKS.c.id).limit(1)).first() is not None


def store_outcomes(connection: Connection, outcomes: Sequence[Attempted], now_s: float) -> None:
    """Store the outcomes of attempts. A delivery whose outcome another leader has stored meanwhile is left as it is."""
    for each in outcomes:
        ended = each.delivered or each.retry_at_s is None
        values: Values = {"attempts": each.attempts, "status": each.status, "error": each.error}
        if ended:
            values |= {"state": "delivered" if each.delivered else "given_up", "ended_at_s": now_s}
        else:
            values["next_at_s"] = each.retry_at_s
        mine = and_(
            DELIVERIES.c.id == each.delivery,
            DELIVERIES.c.state == "pending",
            DELIVERIES.c.attempts == each.attempts - 1,
        )
        connection.execute(update(DELIVERIES).where(mine).values(values))


def delete_ended(connection: Connection, before_s: float, limit: int) -> int:
    """Delete at most ``limit`` deliveries that ended before an instant; returns how many."""
    old = select(DELIVERIES.c.id).where(DELIVERIES.c.ended_at_s < before_s).limit(limit)
    ids = list(connection.execute(old).scalars())
    for part in chunks(ids):
        connection.execute(delete(DELIVERIES).where(DELIVERIES.c.id.in_(part)))
    return len(ids)


def _waiting(connection: Connection, webhook_id: int, at_most: int) -> int:
    """The number of its pending deliveries, counted up to ``at_most``."""
    some = (
        select(DELIVERIES.c.id)
        .where(DELIVERIES.c.webhook_id == webhook_id, DELIVERIES.c.state == "pending")
        .limit(at_most)
    )
    return int(connection.execute(select(func.count()).select_from(some.subquery())).scalar_one())


def _matches(hook: Row[Any], row: Row[Any], event: WebhookEvent) -> bool:
    return (
        row.id > hook.after_event
        and event.value in hook.events
        and hook.user in (None, row.user)
        and hook.project in (None, row.project)
    )


def _body(row: Row[Any], event: WebhookEvent) -> Mapping[str, Any]:
    """The body of a delivery. It contains nothing from an environment or a log."""
    return {
        "id": f"evt_{row.id}",
        "event": event.value,
        "at": _timestamp(row.at_s),
        "job": {
            "id": row.job_id,
            "name": row.name,
            "user": row.user or None,
            "project": row.project or None,
            "gpus": row.gpus,
            "array_id": row.array_id,
            "array_index": row.array_index,
        },
        "attempt_id": row.attempt_id,
        "source": row.source,
        "target": row.target,
        "reason": row.reason,
        "reason_sentence": Reason(row.reason).sentence,
    }


def _timestamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")


def _delivery(
    webhook_id: int, event_id: int | None, event: WebhookEvent, body: Mapping[str, Any], now_s: float
) -> Values:
    return {
        "webhook_id": webhook_id,
        "event_id": event_id,
        "event": event.value,
        "body": body,
        "state": "pending",
        "attempts": 0,
        "next_at_s": now_s,
        "created_at_s": now_s,
        "ended_at_s": None,
        "error": "",
    }


def _overflow(now_s: float) -> Values:
    return {"state": "given_up", "ended_at_s": now_s, "error": OVERFLOW}
