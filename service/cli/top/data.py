"""What the view shows, read from the API: the cluster's picture and one job's story.

The queue is read a page at a time: the cost of a look does not grow with its length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from service.cli.top.fields import Row
from service.client import UNFINISHED_STATES, ApiError

if TYPE_CHECKING:
    from service.client import AsyncClient
    from service.wire.jobs import AttemptDocument, EventDocument, ExplanationDocument, JobDocument
    from service.wire.predictions import JobForecastDocument, PredictionDetailsDocument

PAGE_JOBS = 100
SCAN_JOBS = 500
"""The size of a page while a filter looks for its jobs."""
SCAN_PAGES_MAX = 10
"""Pages that one look reads for a filter. The next page of the table goes on where it ended."""
RUNNING_MAX = 300
"""Jobs that hold GPUs, newest first: more are counted and not listed."""
LOG_BYTES = 16_384
"""The end of a log that a job's page shows."""
HOLDING_STATES = tuple(state for state in UNFINISHED_STATES if state != "queued")


@dataclass(frozen=True)
class QueuePage:
    """Jobs of the queue in the policy's order.

    ``looked``: how many were read for it, of ``total``; ``after`` and ``next`` are the cursors of this page and the one after it;
    ``note``: what the order alone does not show of how jobs start.
    """

    items: Sequence[Row]
    after: str | None
    next: str | None
    looked: int
    total: int
    policy: str
    note: str | None


@dataclass(frozen=True)
class Picture:
    """The cluster at one moment."""

    overview: Row
    gpus: Sequence[Row]
    running: Sequence[Row]
    queue: QueuePage


@dataclass(frozen=True)
class Story:
    """One job. A part that is missing is a sentence that says why."""

    job: JobDocument
    explanation: ExplanationDocument
    events: Sequence[EventDocument]
    attempts: Sequence[AttemptDocument]
    prediction: PredictionDetailsDocument | None
    forecast: JobForecastDocument | str
    log: bytes | str


class Reader:
    """Reads the API. Errors are those of the client: :class:`ApiError` for a refusal, ``Unreachable`` without an answer."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def picture(self, after: str | None, keep: Callable[[Row], bool] | None) -> Picture:
        """The cluster now, with the page of the queue after a cursor. ``keep`` filters the queue."""
        overview = await self.client.overview()
        gpus = await self.client.cluster.gpus()
        running = await self.client.jobs.list(states=HOLDING_STATES, limit=RUNNING_MAX)
        return Picture(overview, gpus["servers"], running, await self.queue(after, keep))

    async def queue(self, after: str | None, keep: Callable[[Row], bool] | None) -> QueuePage:
        """A page of the queue; of a filtered one, whole pages until there are enough jobs."""
        size = PAGE_JOBS if keep is None else SCAN_JOBS
        found: list[Row] = []
        looked, cursor = 0, after
        for _ in range(1 if keep is None else SCAN_PAGES_MAX):
            page = await self.client.queue.page(limit=size, after=cursor)
            found += [each for each in page["items"] if keep is None or keep(each)]
            looked, cursor = looked + len(page["items"]), page["next"]
            if cursor is None or len(found) >= PAGE_JOBS:
                break
        return QueuePage(found, after, cursor, looked, page["total"], page["policy"], page["note"])

    async def story(self, job_id: int) -> Story:
        """Everything about one job. :class:`ApiError` of status 404 if there is none."""
        jobs = self.client.jobs
        return Story(
            await jobs.show(job_id),
            await jobs.explanation(job_id),
            await jobs.events(job_id),
            await jobs.attempts(job_id),
            await self._prediction(job_id),
            await self._forecast(job_id),
            await self._log(job_id),
        )

    async def _prediction(self, job_id: int) -> PredictionDetailsDocument | None:
        try:
            return await self.client.jobs.prediction(job_id)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def _forecast(self, job_id: int) -> JobForecastDocument | str:
        try:
            return await self.client.jobs.forecast(job_id)
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE):
                raise
            return error.detail or error.title

    async def _log(self, job_id: int) -> bytes | str:
        try:
            data = (await self.client.jobs.logs(job_id, offset=-LOG_BYTES)).data
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_GATEWAY):
                raise
            return str(error)
        # It begins in the middle of a line, if it is not the whole log.
        return data if len(data) < LOG_BYTES else data.partition(b"\n")[2]
