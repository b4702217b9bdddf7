"""Logs on standard error as JSON lines: one per transition, with job, attempt, cycle and cause."""

import json
import logging
import sys
from datetime import UTC, datetime

from service.engine.events import JobEvent
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord

transitions = logging.getLogger("sooner.transitions")
servers = logging.getLogger("sooner.servers")


class JsonLines(logging.Formatter):
    """Formats a record as one line with a JSON object. Includes the record's attribute ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: int = logging.INFO) -> None:
    """Send all logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These libraries log each timer, each schema check and each request. The service logs the relevant ones itself.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    # The HTTP client logs whole URLs, and the path of a webhook's is a secret.
    for name in ("alembic", "uvicorn.access", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


class LogSink:
    """Implements :class:`service.engine.ports.Sink`: logs each transition."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """Log one line."""
        fields: dict[str, object] = {
            "job": event.job,
            "attempt": event.attempt,
            "cycle": event.cycle,
            "from": event.source,
            "to": event.target,
            "cause": event.cause,
            "reason": event.reason,
        }
        if event.detail:
            fields["detail"] = event.detail
        transitions.info("job %s %s", event.job, event.target, extra={"fields": fields})

    def cycle(self, batch: CycleBatch) -> None:
        """Log one line for each change of a server. Cycles themselves are rows of the database."""
        for event in batch.server_events:
            fields = {"server": event.server, "kind": event.kind, "cycle": event.cycle, "detail": event.detail}
            servers.info("server %s %s", event.server, event.kind, extra={"fields": fields})
