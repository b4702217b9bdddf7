"""Server-sent events: a log as a stream that a client can leave and come back to.

``id`` is the position after the event; given back in ``Last-Event-ID`` (on any service of the database), the stream goes on
exactly there. Comments keep the connection alive while nothing happens.
"""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from service.api.feed import Feed, Log
from service.db import event_log
from service.db.event_log import Entry
from service.db.session import Database
from service.runtime.stream_position import Position

PULSE_S: Final = 15.0
"""Between two signs of life on a silent stream: proxies close what is silent for a minute."""

STREAM_S_MAX: Final = 900.0
"""A stream ends after so long, and its client comes back: whoever lost his rights meanwhile does not."""

MEDIA_TYPE: Final = "text/event-stream"


class Streams:
    """The feeds of one application."""

    def __init__(self, database: Database) -> None:
        self.job_events = Feed(database, Log(event_log.job_events, event_log.newest_job_event))
        self.cycles = Feed(database, Log(event_log.cycles, event_log.newest_cycle))

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self.job_events.followers + self.cycles.followers


async def stream(
    feed: Feed,
    since: Position | None,
    event: str,
    tell: Callable[[Entry], Any | None],
    stopping: Callable[[], bool],
    *,
    pulse_s: float = PULSE_S,
) -> AsyncIterator[str]:
    """The text of a stream: an ``event`` for each entry of which ``tell`` makes a document (None: not for this client)."""
    ends_at_s = time.monotonic() + STREAM_S_MAX
    async with aclosing(feed.follow(since, lambda: stopping() or time.monotonic() > ends_at_s, pulse_s)) as found:
        hello = "retry: 2000\n\n"
        async for step in found:
            if step is None:
                yield hello or ": alive\n\n"
                hello = ""
                continue
            entry, position = step
            document = tell(entry)
            if document is not None:
                # JSON in one line: a line break would end the field.
                said = json.dumps(document, separators=(",", ":"))
                yield f"id: {position}\nevent: {event}\ndata: {said}\n\n"
