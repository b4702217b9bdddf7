"""Deliver webhooks. The leader runs this every few seconds, outside of its scheduling loop.

A round adds new events to the outbox, then posts the deliveries that are due: webhooks in parallel, the deliveries of one webhook
one after another. After a failure the webhook gets no more deliveries in this round, so an unreachable receiver costs one
timeout. An attempt is recorded after it was made. After a crash in between it is repeated (at-least-once delivery).
"""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row
from sqlalchemy.exc import DBAPIError

from service.config.settings import Settings
from service.db import webhooks
from service.db.session import Database
from service.db.webhooks import Attempted
from service.domain.webhooks import EVENT_HEADER, SIGNATURE_HEADER, body_of, origin_of, retry_after_s, signature
from service.runtime.webhook_post import PostFailed, PostLimits, post

logger = logging.getLogger(__name__)

ROUND_S = 30.0
"""No delivery starts later than this in a round, seconds. The next round orders the deliveries again."""
OUTBOX_ROWS_MAX = 500
"""Approximate number of deliveries that one transaction adds to the outbox, so that it holds the write lock briefly."""
EACH_MAX = 16
"""Most deliveries of one webhook in a round."""
HOOKS_AT_ONCE = 16
USER_AGENT = "Sooner-Webhook/1"


class WebhookSender:
    """Delivers while ``leads()`` is true. One thread calls :meth:`run`; another may call :meth:`close`.

    ``count`` is called with the outcome of each attempt: ``delivered``, ``failed``, or ``given_up``.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        now_s: Callable[[], float],
        leads: Callable[[], bool],
        count: Callable[[str], None],
    ) -> None:
        self._database = database
        self._settings = settings
        self._now_s = now_s
        self._leads = leads
        self._count = count
        self._limits = PostLimits(settings.webhook_timeout_s, settings.webhook_private_addresses)
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._reached = 0
        self._under_way: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    def run(self) -> None:
        """Run one round. If the database does not answer, the next round tries again."""
        try:
            if self._closed or not self._leads() or not self._has_work():
                return
            while self._leads() and not self._closed and self._add_deliveries():
                pass
            self._delete_ended()
            found = self._due()
            if found:
                asyncio.run(self._deliver(found))
        except DBAPIError as error:
            logger.warning("webhooks were not delivered; the database does not answer: %s", error.orig)
        except asyncio.CancelledError:
            logger.info("deliveries in progress were cancelled; the next leader repeats them")

    def close(self) -> None:
        """Cancel the round in progress. Its remaining deliveries stay in the outbox."""
        with self._lock:
            self._closed = True
            if self._under_way is not None:
                loop, task = self._under_way
                loop.call_soon_threadsafe(task.cancel)

    # The outbox.

    def _has_work(self) -> bool:
        with self._database.reading() as session:
            return webhooks.has_work(session.connection())

    def _add_deliveries(self) -> int:
        with self._database.writing() as session:
            pending_max = self._settings.webhook_pending_max
            return webhooks.add_deliveries(session.connection(), self._now_s(), OUTBOX_ROWS_MAX, pending_max)

    def _due(self) -> Sequence[Row[Any]]:
        with self._database.reading() as session:
            return webhooks.due(session.connection(), self._now_s(), EACH_MAX)

    def _store_outcomes(self, outcomes: Sequence[Attempted]) -> None:
        with self._database.writing() as session:
            webhooks.store_outcomes(session.connection(), outcomes, self._now_s())

    def _delete_ended(self) -> None:
        before_s = self._now_s() - self._settings.deliveries_kept_s
        with self._database.writing() as session:
            webhooks.delete_ended(session.connection(), before_s, self._settings.prune_rows_max)

    # Posting.

    async def _deliver(self, found: Sequence[Row[Any]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if self._closed:
                return
            self._under_way = asyncio.get_running_loop(), task
        try:
            by_hook: dict[int, list[Row[Any]]] = {}
            for row in found:
                by_hook.setdefault(row.webhook_id, []).append(row)
            at_once = asyncio.Semaphore(HOOKS_AT_ONCE)
            until_s = asyncio.get_running_loop().time() + ROUND_S
            # Webhooks that the last round did not reach come first.
            order = sorted(by_hook, key=lambda hook: (hook <= self._reached, hook))
            await asyncio.gather(*(self._to_hook(by_hook[hook], at_once, until_s) for hook in order))
        finally:
            with self._lock:
                self._under_way = None

    async def _to_hook(self, rows: Sequence[Row[Any]], at_once: asyncio.Semaphore, until_s: float) -> None:
        outcomes: list[Attempted] = []
        async with at_once:
            for row in rows:
                if asyncio.get_running_loop().time() > until_s or not self._leads():
                    break
                self._reached = row.webhook_id
                outcomes.append(await self._attempt(row))
                if not outcomes[-1].delivered:
                    break
        if outcomes:
            # Write in a thread: waiting for the write lock must not block the posts to other webhooks.
            await asyncio.to_thread(self._store_outcomes, outcomes)

    async def _attempt(self, row: Row[Any]) -> Attempted:
        body, now_s = body_of(row.body), self._now_s()
        headers = {
            SIGNATURE_HEADER: signature(row.secret, int(now_s), body),
            EVENT_HEADER: row.event,
            "User-Agent": USER_AGENT,
        }
        attempts = row.attempts + 1
        try:
            status = await post(row.url, body, headers, self._limits, self._tls_context())
        except PostFailed as failure:
            return self._failed(row, attempts, None, str(failure))
        if 200 <= status < 300:
            self._count("delivered")
            return Attempted(row.id, attempts, True, status, "", None)
        return self._failed(row, attempts, status, f"answered with status {status}")

    def _failed(self, row: Row[Any], attempts: int, status: int | None, error: str) -> Attempted:
        last = attempts >= self._settings.webhook_attempts_max
        if last:
            logger.warning(
                "webhook %s (%s): delivery %s given up after %s attempts: %s",
                *(row.webhook_id, origin_of(row.url), row.id, attempts, error),
            )
        self._count("given_up" if last else "failed")
        retry_at_s = None if last else self._now_s() + retry_after_s(attempts)
        return Attempted(row.id, attempts, False, status, error, retry_at_s)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
