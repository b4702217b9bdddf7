"""A sink for tests that look at the store alone."""

from service.engine.events import JobEvent
from service.engine.ports import CycleBatch
from service.engine.record import JobRecord


class NullSink:
    """Ignores all events."""

    def transition(self, event: JobEvent, job: JobRecord) -> None:
        pass

    def cycle(self, batch: CycleBatch) -> None:
        pass
