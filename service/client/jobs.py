"""Jobs and job arrays."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from service.client.flow import Flow, Many
from service.client.noun import C, Noun, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from service.wire.jobs import (
        AcceptedDocument,
        ArrayAcceptedDocument,
        ArrayDocument,
        AttemptDocument,
        EventDocument,
        ExplanationDocument,
        JobDocument,
        ProgressDocument,
        ToldDocument,
    )
    from service.wire.placement import PlacementDocument
    from service.wire.predictions import JobForecastDocument, PlansDocument, PredictionDetailsDocument

NEXT_OFFSET_HEADER: Final = "Sooner-Next-Offset"
CUT_BYTES_HEADER: Final = "Sooner-Cut-Bytes"

TERMINAL_STATES = ("succeeded", "failed", "cancelled")
UNFINISHED_STATES = ("queued", "starting", "running", "preempting", "cancelling")


class LogChunk(NamedTuple):
    """Bytes of a log, the offset to go on from, and how many bytes before them were deleted (over the log's limit)."""

    data: bytes
    next_offset: int
    cut_bytes: int


class Jobs(Noun[C]):
    """``client.jobs``."""

    @call
    def submit(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, *, wait_prediction: bool = False
    ) -> Flow[JobDocument]:
        """Submit one job; ValueError for a body of several.

        With ``wait_prediction`` the answer comes when the job is predicted, or after ten seconds. Submitting again with the
        same ``idempotency_key`` and body returns the same job.
        """
        if "jobs" in body or body.get("array") is not None:
            raise ValueError("submit() takes one job; submit_many() takes 'jobs' and 'array'")
        [job] = yield from self._submit(body, idempotency_key, wait_prediction)
        return job

    @call
    def submit_many(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, *, wait_prediction: bool = False
    ) -> Many[JobDocument]:
        """Submit ``{"jobs": [...]}``, a job with ``array``, or one job; the new jobs in their order. All of them, or none."""
        return self._submit(body, idempotency_key, wait_prediction)

    def _submit(self, body: Mapping[str, Any], key: str | None, wait: bool) -> Many[JobDocument]:
        answer = yield from self._change("POST", "/v1/jobs", body, key, {"wait_prediction": "true" if wait else None})
        return list(answer["jobs"]) if "jobs" in answer else [answer]

    @call
    def plan(self, body: Mapping[str, Any]) -> Flow[PlansDocument]:
        """When and where a submission would run; nothing is stored."""
        answer = yield from self._answer("POST", "/v1/plans", body=body)
        return self._json(answer)

    @call
    def list(
        self,
        *,
        states: Sequence[str] = (),
        user: str | None = None,
        project: str | None = None,
        name: str | None = None,
        array: int | None = None,
        order: Literal["newest", "oldest"] = "newest",
        since_s: float | None = None,
        limit: int | None = None,
    ) -> Many[JobDocument]:
        """Jobs, newest first unless ``order`` says otherwise; all pages, or at most ``limit`` jobs.

        ``since_s`` (seconds since the Unix epoch, with ``newest``) leaves out jobs submitted before it.
        """
        filters = {"state": list(states), "user": user, "project": project, "name": name, "array": array}
        if order != "newest":
            filters["order"] = order
        return self._pages("/v1/jobs", filters, limit, None if since_s is None else _submitted_before(since_s))

    @call
    def show(self, job_id: int) -> Flow[JobDocument]:
        """One job."""
        return self._get(f"/v1/jobs/{job_id}")

    @call
    def spec(self, job_id: int) -> Flow[dict[str, Any]]:
        """A job as it was submitted: a body for :meth:`submit`. Values of ``env`` that the caller may not read are None."""
        return self._get(f"/v1/jobs/{job_id}/spec")

    @call
    def explanation(self, job_id: int) -> Flow[ExplanationDocument]:
        """Why a job is in its state, with the numbers behind the reason."""
        return self._get(f"/v1/jobs/{job_id}/explanation")

    @call
    def prediction(self, job_id: int) -> Flow[PredictionDetailsDocument]:
        """A job's newest prediction and its reasons. :class:`ApiError` of status 404 while there is none."""
        return self._get(f"/v1/jobs/{job_id}/prediction")

    @call
    def forecast(self, job_id: int) -> Flow[JobForecastDocument]:
        """When a job will start and end. :class:`ApiError` of status 409 says why there is no forecast."""
        return self._get(f"/v1/jobs/{job_id}/forecast")

    @call
    def forecast_records(self, job_id: int) -> Many[ToldDocument]:
        """Every forecast of a job on record, oldest first."""
        return self._pages(f"/v1/jobs/{job_id}/forecasts")

    @call
    def attempts(self, job_id: int) -> Many[AttemptDocument]:
        """A job's attempts in their order."""
        return self._pages(f"/v1/jobs/{job_id}/attempts")

    @call
    def placement(self, job_id: int) -> Flow[PlacementDocument]:
        """Where the stages of a job's newest attempt are, what they send, and what limits an iteration there."""
        return self._get(f"/v1/jobs/{job_id}/placement")

    @call
    def events(self, job_id: int) -> Many[EventDocument]:
        """The changes of a job's state, oldest first."""
        return self._pages(f"/v1/jobs/{job_id}/events")

    @call
    def progress(self, job_id: int) -> Many[ProgressDocument]:
        """A job's progress reports, oldest first."""
        return self._pages(f"/v1/jobs/{job_id}/progress")

    @call
    def logs(self, job_id: int, attempt: int | None = None, offset: int = 0, node: int = 0) -> Flow[LogChunk]:
        """Bytes of an attempt's log (None: the newest) from ``offset``; an empty chunk is the end for now.

        A negative ``offset`` counts from the end. ``node``: the server of the attempt, in the order of its placement.
        """
        query = {"offset": offset, "attempt": attempt, "node": node or None}
        answer = yield from self._answer("GET", f"/v1/jobs/{job_id}/logs", query)
        following = int(answer.headers.get(NEXT_OFFSET_HEADER, offset + len(answer.content)))
        return LogChunk(answer.content, following, int(answer.headers.get(CUT_BYTES_HEADER, 0)))

    @call
    def cancel(self, job_id: int) -> Flow[AcceptedDocument]:
        """Cancel a job."""
        return self._post(f"/v1/jobs/{job_id}/cancel")

    @call
    def hold(self, job_id: int, *, preempt: bool = False) -> Flow[AcceptedDocument]:
        """Keep a job from starting; with ``preempt`` also stop its attempt."""
        return self._post(f"/v1/jobs/{job_id}/hold", {"preempt": preempt})

    @call
    def release(self, job_id: int) -> Flow[AcceptedDocument]:
        """Release a held job."""
        return self._post(f"/v1/jobs/{job_id}/release")

    @call
    def set_priority(self, job_id: int, priority: int) -> Flow[AcceptedDocument]:
        """Change a job's priority; larger comes first."""
        return self._change("PUT", f"/v1/jobs/{job_id}/priority", {"priority": priority})


class Arrays(Noun[C]):
    """``client.arrays``: job arrays. A change is about every element that has not ended."""

    @call
    def show(self, array_id: int) -> Flow[ArrayDocument]:
        """The number of its elements in each state."""
        return self._get(f"/v1/arrays/{array_id}")

    @call
    def cancel(self, array_id: int) -> Flow[ArrayAcceptedDocument]:
        """Cancel its elements."""
        return self._post(f"/v1/arrays/{array_id}/cancel")

    @call
    def hold(self, array_id: int, *, preempt: bool = False) -> Flow[ArrayAcceptedDocument]:
        """Keep its elements from starting; with ``preempt`` also stop their attempts."""
        return self._post(f"/v1/arrays/{array_id}/hold", {"preempt": preempt})

    @call
    def release(self, array_id: int) -> Flow[ArrayAcceptedDocument]:
        """Release its held elements."""
        return self._post(f"/v1/arrays/{array_id}/release")

    @call
    def set_priority(self, array_id: int, priority: int) -> Flow[ArrayAcceptedDocument]:
        """Change the priority of its elements."""
        return self._change("PUT", f"/v1/arrays/{array_id}/priority", {"priority": priority})


def _submitted_before(since_s: float) -> Callable[[JobDocument], bool]:
    return lambda job: datetime.fromisoformat(job["submitted_at"]).timestamp() < since_s
