"""A client of the HTTP API, for the command line, the demo and scripts.

Answers are the plain JSON objects of :mod:`service.wire`, which is imported for the types alone: the only dependency is httpx.
A newer service may add keys. Not safe to share between threads.
"""

from __future__ import annotations

import time
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import httpx

from service.client.events import StreamEvent, follow
from service.client.transport import ApiError, ClientError, Transport, Unreachable, segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from service.wire.access import (
        AuditDocument,
        DeliveryDocument,
        IdentityDocument,
        KeyDocument,
        MembershipDocument,
        NewKeyDocument,
        NewWebhookDocument,
        ProjectDocument,
        UsageDocument,
        UserDocument,
        WebhookDocument,
    )
    from service.wire.cluster import (
        ClusterDocument,
        QueueDocument,
        QuotaDocument,
        ReadinessDocument,
        ReservationDocument,
        ServerEventDocument,
        ServiceDocument,
    )
    from service.wire.jobs import (
        AcceptedDocument,
        ArrayAcceptedDocument,
        ArrayDocument,
        AttemptDocument,
        EventDocument,
        ExplanationDocument,
        JobDocument,
        PredictionDocument,
        ProgressDocument,
        ToldDocument,
    )
    from service.wire.predictions import (
        AccuracyDocument,
        ForecastsDocument,
        JobForecastDocument,
        ModelDocument,
        PlansDocument,
        PredictionDetailsDocument,
        PredictorDocument,
        TrainingRunDocument,
    )
    from service.wire.shadow import ShadowDocument

__all__ = [
    "TERMINAL_STATES",
    "UNFINISHED_STATES",
    "ApiError",
    "Client",
    "ClientError",
    "LogChunk",
    "StreamEvent",
    "Unreachable",
]

NEXT_OFFSET_HEADER = "Sooner-Next-Offset"
CUT_BYTES_HEADER = "Sooner-Cut-Bytes"

TERMINAL_STATES = ("succeeded", "failed", "cancelled")
UNFINISHED_STATES = ("queued", "starting", "running", "preempting", "cancelling")


class LogChunk(NamedTuple):
    """Bytes of a log, the offset to go on from, and how many bytes before them were deleted (over the log's limit)."""

    data: bytes
    next_offset: int
    cut_bytes: int


class Client(Transport):
    """Every request of the API. All methods raise :class:`ApiError` for a refusal and :class:`Unreachable`."""

    # Jobs

    def submit(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, *, wait_prediction: bool = False
    ) -> list[JobDocument]:
        """Submit one job, or ``{"jobs": [...]}``; the new jobs in their order. A key makes it safe to repeat.

        With ``wait_prediction`` the answer comes when the jobs are predicted, or after ten seconds.
        """
        parameters = {"wait_prediction": "true"} if wait_prediction else None
        answer = self.send("POST", "/v1/jobs", body=body, parameters=parameters, key=idempotency_key)
        return list(answer["jobs"]) if "jobs" in answer else [answer]

    def jobs(
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
    ) -> list[JobDocument]:
        """Jobs, newest first unless ``order`` says otherwise; all pages, or at most ``limit`` jobs.

        ``since_s`` (seconds since the Unix epoch, with ``newest``) leaves out jobs submitted before it.
        """
        filters = {"state": list(states), "user": user, "project": project, "name": name, "array": array}
        if order != "newest":
            filters["order"] = order
        found = self.pages("/v1/jobs", filters, limit)
        if since_s is not None:
            return list(
                takewhile(lambda job: datetime.fromisoformat(job["submitted_at"]).timestamp() >= since_s, found)
            )
        return list(found)

    def job(self, job_id: int) -> JobDocument:
        """One job."""
        return self.get(f"/v1/jobs/{job_id}")

    def spec(self, job_id: int) -> dict[str, Any]:
        """A job as it was submitted: a body for :meth:`submit`. Values of ``env`` that the caller may not read are None."""
        return self.get(f"/v1/jobs/{job_id}/spec")

    def explanation(self, job_id: int) -> ExplanationDocument:
        """Why a job is in its state, with the numbers behind the reason."""
        return self.get(f"/v1/jobs/{job_id}/explanation")

    def prediction(self, job_id: int) -> PredictionDetailsDocument:
        """A job's newest prediction and its reasons. :class:`ApiError` of status 404 while there is none."""
        return self.get(f"/v1/jobs/{job_id}/prediction")

    def attempts(self, job_id: int) -> list[AttemptDocument]:
        """A job's attempts in their order."""
        return list(self.pages(f"/v1/jobs/{job_id}/attempts"))

    def events(self, job_id: int) -> list[EventDocument]:
        """The changes of a job's state, oldest first."""
        return list(self.pages(f"/v1/jobs/{job_id}/events"))

    def progress(self, job_id: int) -> list[ProgressDocument]:
        """A job's progress reports, oldest first."""
        return list(self.pages(f"/v1/jobs/{job_id}/progress"))

    def logs(self, job_id: int, attempt: int | None = None, offset: int = 0, node: int = 0) -> LogChunk:
        """Bytes of an attempt's log (None: the newest) from ``offset``; an empty chunk is the end for now.

        ``node``: the server of the attempt, in the order of its placement.
        """
        parameters = {"offset": offset} if attempt is None else {"offset": offset, "attempt": attempt}
        if node:
            parameters["node"] = node
        answer = self.request("GET", f"/v1/jobs/{job_id}/logs", parameters=parameters)
        following = int(answer.headers.get(NEXT_OFFSET_HEADER, offset + len(answer.content)))
        return LogChunk(answer.content, following, int(answer.headers.get(CUT_BYTES_HEADER, 0)))

    def cancel(self, job_id: int) -> AcceptedDocument:
        """Cancel a job."""
        return self.post(f"/v1/jobs/{job_id}/cancel")

    def hold(self, job_id: int, *, preempt: bool = False) -> AcceptedDocument:
        """Keep a job from starting; with ``preempt`` also stop its attempt."""
        return self.post(f"/v1/jobs/{job_id}/hold", {"preempt": preempt})

    def release(self, job_id: int) -> AcceptedDocument:
        """Release a held job."""
        return self.post(f"/v1/jobs/{job_id}/release")

    def set_priority(self, job_id: int, priority: int) -> AcceptedDocument:
        """Change a job's priority; larger comes first."""
        return self.send("PUT", f"/v1/jobs/{job_id}/priority", body={"priority": priority})

    # Job arrays: requests are about every element that has not ended

    def array(self, array_id: int) -> ArrayDocument:
        """A job array: the number of its elements in each state."""
        return self.get(f"/v1/arrays/{array_id}")

    def cancel_array(self, array_id: int) -> ArrayAcceptedDocument:
        """Cancel its elements."""
        return self.post(f"/v1/arrays/{array_id}/cancel")

    def hold_array(self, array_id: int, *, preempt: bool = False) -> ArrayAcceptedDocument:
        """Keep its elements from starting; with ``preempt`` also stop their attempts."""
        return self.post(f"/v1/arrays/{array_id}/hold", {"preempt": preempt})

    def release_array(self, array_id: int) -> ArrayAcceptedDocument:
        """Release its held elements."""
        return self.post(f"/v1/arrays/{array_id}/release")

    def set_array_priority(self, array_id: int, priority: int) -> ArrayAcceptedDocument:
        """Change the priority of its elements."""
        return self.send("PUT", f"/v1/arrays/{array_id}/priority", body={"priority": priority})

    # Forecasts

    def forecasts(self, jobs: Sequence[int] | None = None) -> ForecastsDocument:
        """When the unfinished jobs (of ``jobs``, at most 500, if given) will start and end.

        :class:`ApiError` of status 409 says why there is no forecast.
        """
        return self.get("/v1/forecasts", None if jobs is None else {"job": list(jobs)})

    def forecast(self, job_id: int) -> JobForecastDocument:
        """When a job will start and end; 409 as above."""
        return self.get(f"/v1/jobs/{job_id}/forecast")

    def forecast_accuracy(self, days: int = 30) -> AccuracyDocument:
        """The accuracy of the forecasts of the last ``days``."""
        return self.get("/v1/forecasts/accuracy", {"days": days})

    def forecast_records(self, job_id: int) -> list[ToldDocument]:
        """Every forecast of a job on record, oldest first."""
        return list(self.pages(f"/v1/jobs/{job_id}/forecasts"))

    def plan(self, body: Mapping[str, Any]) -> PlansDocument:
        """When and where a submission would run; nothing is stored."""
        return self.post("/v1/plans", body)

    def snapshots(self) -> list[int]:
        """The cycles that can be replayed, newest first."""
        return list(self.get("/v1/snapshots")["cycles"])

    def snapshot(self, cycle: int) -> dict[str, Any]:
        """Everything that a cycle's decision depends on: the input of ``sooner sim replay``."""
        return self.get(f"/v1/cycles/{cycle}/snapshot")

    def snapshot_now(self) -> dict[str, Any]:
        """The same of the present, without changes or actions. Status 409 for a very long queue."""
        return self.get("/v1/snapshots/now")

    def shadow(self) -> ShadowDocument:
        """What the shadow policy would have done. :class:`ApiError` of status 404 without a shadow policy."""
        return self.get("/v1/shadow")

    # Cluster

    def cluster(self) -> ClusterDocument:
        """The cluster as the scheduling loop sees it now."""
        return self.get("/v1/cluster")

    def server_events(self, limit: int = 100) -> list[ServerEventDocument]:
        """The newest changes of servers, newest first."""
        return list(self.get("/v1/cluster/events", {"limit": limit})["items"])

    def add_server(self, server: Mapping[str, Any]) -> AcceptedDocument:
        """Add a server (keys as in the API: ``name``, ``gpus``, ...)."""
        return self.post("/v1/cluster/servers", server)

    def drain(self, server: str) -> AcceptedDocument:
        """Give a server no new work."""
        return self.post(f"/v1/cluster/servers/{segment(server)}/drain")

    def resume(self, server: str) -> AcceptedDocument:
        """Give a drained server work again."""
        return self.post(f"/v1/cluster/servers/{segment(server)}/resume")

    def reservations(self) -> list[ReservationDocument]:
        """Reservations of servers that are not over."""
        return list(self.get("/v1/reservations")["reservations"])

    def reserve(self, reservation: Mapping[str, Any]) -> ReservationDocument:
        """Reserve servers for a time (keys as in the API: ``servers``, ``starts_at``, ``ends_at``, ...)."""
        return self.post("/v1/reservations", reservation)

    def cancel_reservation(self, number: int) -> AcceptedDocument:
        """Cancel a reservation."""
        return self.post(f"/v1/reservations/{number}/cancel")

    # The queue

    def queue(self) -> QueueDocument:
        """The length of the queue and its pauses."""
        return self.get("/v1/queue")

    def pause_queue(self, part: Mapping[str, str]) -> AcceptedDocument:
        """Start no jobs of a ``user`` or a ``project``, or none at all; ``reason`` is shown to their users."""
        return self.post("/v1/queue/pause", part)

    def resume_queue(self, part: Mapping[str, str]) -> AcceptedDocument:
        """Start them again."""
        return self.post("/v1/queue/resume", part)

    def quotas(self) -> list[QuotaDocument]:
        """Quotas and what is used of them."""
        return list(self.get("/v1/quotas")["quotas"])

    def set_quota(self, scope: str, name: str, limits: Mapping[str, int | None]) -> QuotaDocument:
        """Set both limits of a user or a project."""
        return self.send("PUT", f"/v1/quotas/{scope}/{segment(name)}", body=limits)

    def remove_quota(self, scope: str, name: str) -> QuotaDocument:
        """Remove both limits."""
        return self.send("DELETE", f"/v1/quotas/{scope}/{segment(name)}")

    # Predictions and models

    def predictions(self, job_id: int | None = None, *, limit: int | None = None) -> list[PredictionDocument]:
        """Predictions, newest first; of one job if given; all pages, or at most ``limit``."""
        return list(self.pages("/v1/predictions", {"job": job_id}, limit))

    def models(self) -> list[ModelDocument]:
        """Models, newest first."""
        return list(self.pages("/v1/models"))

    def model(self, model_id: str) -> ModelDocument:
        """One model with its metrics."""
        return self.get(f"/v1/models/{segment(model_id)}")

    def predictor(self) -> PredictorDocument:
        """What predicts now, and how far it is trusted."""
        return self.get("/v1/predictor")

    def train(self) -> int:
        """Start a retraining; the number of its run."""
        return int(self.post("/v1/models/train")["training_run"])

    def training_run(self, run: int) -> TrainingRunDocument:
        """One retraining; its ``outcome`` is None while it runs."""
        return self.get(f"/v1/training-runs/{run}")

    def promote(self, model_id: str) -> str:
        """Make a model the champion; its id."""
        return str(self.post(f"/v1/models/{segment(model_id)}/promote")["champion"])

    # Users and keys

    def me(self) -> IdentityDocument:
        """The identity of the token."""
        return self.get("/v1/me")

    def keys(self, user: str | None = None) -> list[KeyDocument]:
        """API keys, newest first; of one user if given."""
        return list(self.pages("/v1/keys", {"user": user}))

    def make_key(
        self,
        user: str,
        role: str,
        projects: Sequence[str] = (),
        expires_in_s: float | None = None,
        note: str = "",
    ) -> NewKeyDocument:
        """A new key; its text is in this answer and nowhere else."""
        given = {"projects": list(projects) or None, "expires_in_s": expires_in_s}
        return self.post("/v1/keys", {"user": user, "role": role, **given, "note": note})

    def revoke_key(self, key_id: str) -> KeyDocument:
        """Revoke a key."""
        return self.post(f"/v1/keys/{segment(key_id)}/revoke")

    def users(self) -> list[UserDocument]:
        """Users by name."""
        return list(self.pages("/v1/users"))

    def put_user(self, name: str, *, disabled: bool = False) -> UserDocument:
        """Add a user, or disable or enable one."""
        return self.send("PUT", f"/v1/users/{segment(name)}", body={"disabled": disabled})

    def projects(self) -> list[ProjectDocument]:
        """Projects with members, by name."""
        return list(self.pages("/v1/projects"))

    def set_member(self, project: str, user: str, *, member: bool) -> MembershipDocument:
        """Add a user to a project, or remove it."""
        path = f"/v1/projects/{segment(project)}/members/{segment(user)}"
        return self.send("PUT" if member else "DELETE", path)

    def changes(
        self, *, user: str | None = None, target: str | None = None, limit: int | None = None
    ) -> list[AuditDocument]:
        """The audit log, newest first; all of it, or at most ``limit`` lines."""
        return list(self.pages("/v1/audit", {"user": user, "target": target}, limit))

    # Usage

    def usage(self, group: Sequence[str] = ("user",), **filters: str | None) -> UsageDocument:
        """Sums by ``group`` (``user``, ``project``, ``day``).

        Filters: ``first_day`` and ``last_day`` as ``2026-01-31`` (UTC, both included), ``user``, ``project``.
        """
        return self.get("/v1/usage", _usage_parameters(group, **filters))

    def usage_csv(self, group: Sequence[str] = ("user",), **filters: str | None) -> str:
        """The same as CSV with a header."""
        parameters = {**_usage_parameters(group, **filters), "format": "csv"}
        return self.request("GET", "/v1/usage", parameters=parameters).text

    # Webhooks

    def webhooks(self) -> list[WebhookDocument]:
        """Those that the caller sees, oldest first."""
        return list(self.pages("/v1/webhooks"))

    def add_webhook(self, webhook: Mapping[str, Any], idempotency_key: str | None = None) -> NewWebhookDocument:
        """Add one (keys as in the API: ``url``, ``events``, ...)."""
        return self.post("/v1/webhooks", webhook, idempotency_key)

    def remove_webhook(self, webhook_id: int) -> WebhookDocument:
        """Remove one with its secret and its pending deliveries."""
        return self.send("DELETE", f"/v1/webhooks/{webhook_id}")

    def test_webhook(self, webhook_id: int) -> DeliveryDocument:
        """Send it ``webhook.test``."""
        return self.post(f"/v1/webhooks/{webhook_id}/test")

    def deliveries(self, webhook_id: int, *, limit: int | None = None) -> list[DeliveryDocument]:
        """Its deliveries, newest first; all pages, or at most ``limit``."""
        return list(self.pages(f"/v1/webhooks/{webhook_id}/deliveries", limit=limit))

    # Services

    def services(self) -> list[ServiceDocument]:
        """Every service of the database, the one seen last first."""
        return list(self.get("/v1/services")["services"])

    def follow(
        self, topic: str = "jobs", since: str | None = None, pause: Callable[[float], None] = time.sleep
    ) -> Iterator[StreamEvent]:
        """Events of a topic (``jobs``, ``job:NUMBER``, ``servers``, ``cycle``) as they happen.

        See :func:`service.client.events.follow`.
        """
        return follow(self, topic, since, pause)

    def metrics(self) -> str:
        """Counters and gauges in Prometheus' text format."""
        return self.request("GET", "/metrics").text

    def readiness(self) -> ReadinessDocument:
        """Whether the service is ready, and what is missing if it is not."""
        return self.send("GET", "/readyz", also=503)

    def ready(self) -> bool:
        """Whether the service answers, its schema is current, and its scheduling loop runs."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def _usage_parameters(
    group: Sequence[str],
    first_day: str | None = None,
    last_day: str | None = None,
    user: str | None = None,
    project: str | None = None,
) -> dict[str, str]:
    given = {"group": ",".join(group), "from": first_day, "to": last_day, "user": user, "project": project}
    return {name: value for name, value in given.items() if value is not None}
