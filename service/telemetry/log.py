"""Logs: one JSON line per transition with job, attempt, cycle and cause, on standard error."""

import json
import logging
import sys
from datetime import UTC, datetime

from service.engine.events import JobEvent
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord

transitions = logging.getLogger("sooner.transitions")


class JsonLines(logging.Formatter):
    """One JSON object a line; whatever a record carries as ``fields`` goes in."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
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
    # They speak of each timer, each look at the schema and each request; what matters of those is in our own lines.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)


class LogSink:
    """The engine's sink: its story as log lines."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        """One line."""
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
        """Cycles are rows of the database."""
