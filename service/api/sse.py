"""Server-sent events: a log as a stream that a client can resume.

``id`` is the number of the event. With it in ``Last-Event-ID`` any service of the database resumes the stream after it.
While nothing is sent, the position alone keeps the connection alive. So a client also resumes after events that it may not see.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from service.api.feed import Feed, Log
from service.db import event_log
from service.db.event_log import Entry
from service.db.session import Database

PULSE_S: Final = 15.0
"""Pause between two signs of life on a silent stream: proxies close connections that are silent for a minute."""

STREAM_S_MAX: Final = 900.0
"""Longest life of a stream. Clients reconnect, and only with a valid key."""

CHANGES_S: Final = 1.0
"""Pause between two looks of a stream that says only which logs have grown."""

CHANGES_S_MAX: Final = 4.0
"""Longest such pause: it doubles while each look finds changes, because a page is not read again at each of them anyway."""

MEDIA_TYPE: Final = "text/event-stream"


class Streams:
    """The feeds of one application."""

    def __init__(self, database: Database) -> None:
        self.job_events = Feed(database, Log(event_log.job_events, event_log.newest_job_event))
        self.server_events = Feed(database, Log(event_log.server_events, event_log.newest_server_event))
        self.cycles = Feed(database, Log(event_log.cycles, event_log.newest_cycle))


async def stream(
    feed: Feed,
    since: int | None,
    event: str,
    show: Callable[[Entry], Any | None],
    stopping: Callable[[], bool],
    *,
    pulse_s: float = PULSE_S,
) -> AsyncIterator[str]:
    """The text of a stream: an ``event`` for each entry. ``show`` makes its document (None: not for this client)."""
    ends_at_s = time.monotonic() + STREAM_S_MAX
    async with aclosing(feed.follow(since, lambda: stopping() or time.monotonic() > ends_at_s, pulse_s)) as found:
        hello, sent_s = "retry: 2000\n", time.monotonic()
        async for entry in found:
            position = entry if isinstance(entry, int) else entry[0]
            document = None if isinstance(entry, int) else show(entry)
            now_s = time.monotonic()
            if document is not None:
                # JSON on one line: a line break would end the field.
                data = json.dumps(document, separators=(",", ":"))
                yield f"id: {position}\nevent: {event}\ndata: {data}\n\n"
            elif isinstance(entry, int) or now_s - sent_s >= pulse_s:
                yield f"{hello}id: {position}\n: alive\n\n"
                hello = ""
            else:
                continue
            sent_s = now_s


async def changes(
    feeds: Mapping[str, Feed],
    stopping: Callable[[], bool],
    *,
    gap_s: float = CHANGES_S,
    pulse_s: float = PULSE_S,
) -> AsyncIterator[str]:
    """The text of a stream that names the logs with new entries, and not the entries: an event after ``gap_s`` at most, and while
    changes go on one in :data:`CHANGES_S_MAX` seconds.

    So a page that reads itself again at a change costs little however much changes. The stream cannot be resumed: what changed
    before its first line is in what the client reads after that line.
    """
    ends_at_s = time.monotonic() + STREAM_S_MAX
    async with AsyncExitStack() as stack:
        seen = {name: await stack.enter_async_context(feed.watched()) for name, feed in feeds.items()}
        yield "retry: 2000\n: alive\n\n"
        sent_s, pause_s = time.monotonic(), gap_s
        while not stopping() and time.monotonic() < ends_at_s:
            await asyncio.sleep(pause_s)
            now_s, now = time.monotonic(), {name: max(seen[name], feed.newest) for name, feed in feeds.items()}
            if now != seen:
                changed = [name for name in feeds if now[name] > seen[name]]
                yield f"event: changes\ndata: {json.dumps({'changed': changed})}\n\n"
                seen, sent_s, pause_s = now, now_s, min(2.0 * pause_s, CHANGES_S_MAX)
                continue
            pause_s = gap_s
            if now_s - sent_s >= pulse_s:
                yield ": alive\n\n"
                sent_s = now_s
