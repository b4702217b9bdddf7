"""A small client of the HTTP API: what the command line and the demo call, and what a script may call.

Documents come back as the plain JSON objects that the API describes (:mod:`service.client.documents`); units are in the names.
The only dependency is httpx. Not safe to share between threads.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import httpx

from service.client.documents import (
    Accepted,
    Accuracy,
    Attempt,
    ClusterStatus,
    Event,
    Explanation,
    Forecasts,
    Job,
    JobForecast,
    Model,
    Plans,
    Prediction,
    Shadow,
    Told,
    TrainingRun,
)
from service.client.prediction_documents import PredictionDetails, Predictor
from service.client.queue_documents import QueueStatus, Quota, Reservation
from service.client.request_documents import ArrayAccepted, JobArray
from service.client.transport import ApiError, ClientError, Unreachable, segment
from service.client.webhooks import WebhookClient

__all__ = ["TERMINAL_STATES", "UNFINISHED_STATES", "ApiError", "Client", "ClientError", "LogChunk", "Unreachable"]

NEXT_OFFSET_HEADER = "Sooner-Next-Offset"
CUT_BYTES_HEADER = "Sooner-Cut-Bytes"

TERMINAL_STATES = ("succeeded", "failed", "cancelled")
UNFINISHED_STATES = ("queued", "starting", "running", "preempting", "cancelling")


class LogChunk(NamedTuple):
    """Bytes of a log, the offset to go on from, and how many bytes in front of them are gone (over the log's limit)."""

    data: bytes
    next_offset: int
    cut_bytes: int


class Client(WebhookClient):
    """Everything that the API can be asked."""

    # Jobs

    def submit(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, *, wait_prediction: bool = False
    ) -> list[Job]:
        """Submit one job, or ``{"jobs": [...]}``; the new jobs in their order. A key makes it safe to repeat.

        With ``wait_prediction`` the answer comes when the jobs are predicted, at most some seconds later.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key is not None else None
        parameters = {"wait_prediction": "true"} if wait_prediction else None
        document = self._json("POST", "/v1/jobs", body=body, parameters=parameters, headers=headers)
        return list(document["jobs"]) if "jobs" in document else [document]

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
    ) -> list[Job]:
        """Jobs, newest first unless ``order`` says otherwise; all pages, or at most ``limit`` jobs.

        ``since_s`` (seconds since the Unix epoch, with ``newest``) leaves out jobs submitted before it.
        """
        filters = {"state": list(states), "user": user, "project": project, "name": name, "array": array}
        if order != "newest":
            filters["order"] = order
        found = self._pages("/v1/jobs", filters, limit)
        if since_s is not None:
            return list(
                takewhile(lambda job: datetime.fromisoformat(job["submitted_at"]).timestamp() >= since_s, found)
            )
        return list(found)

    def job(self, job_id: int) -> Job:
        """One job."""
        found: Job = self._json("GET", f"/v1/jobs/{job_id}")
        return found

    def spec(self, job_id: int) -> dict[str, Any]:
        """A job as it was submitted: a body for :meth:`submit`. Values of ``env`` that the caller may not read are None."""
        found: dict[str, Any] = self._json("GET", f"/v1/jobs/{job_id}/spec")
        return found

    def explanation(self, job_id: int) -> Explanation:
        """Why a job is where it is, with the numbers behind it."""
        found: Explanation = self._json("GET", f"/v1/jobs/{job_id}/explanation")
        return found

    def prediction(self, job_id: int) -> PredictionDetails:
        """A job's newest prediction and why it is what it is. An :class:`ApiError` of status 404 while there is none."""
        found: PredictionDetails = self._json("GET", f"/v1/jobs/{job_id}/prediction")
        return found

    def attempts(self, job_id: int) -> list[Attempt]:
        """A job's attempts in their order."""
        return list(self._pages(f"/v1/jobs/{job_id}/attempts"))

    def events(self, job_id: int) -> list[Event]:
        """A job's story, oldest first."""
        return list(self._pages(f"/v1/jobs/{job_id}/events"))

    def logs(self, job_id: int, attempt: int | None = None, offset: int = 0) -> LogChunk:
        """Bytes of an attempt's log (None: the newest) from ``offset``; an empty chunk is the end for now."""
        parameters = {"offset": offset} if attempt is None else {"offset": offset, "attempt": attempt}
        answer = self._request("GET", f"/v1/jobs/{job_id}/logs", parameters=parameters)
        following = int(answer.headers.get(NEXT_OFFSET_HEADER, offset + len(answer.content)))
        return LogChunk(answer.content, following, int(answer.headers.get(CUT_BYTES_HEADER, 0)))

    def cancel(self, job_id: int) -> Accepted:
        """Ask for a job's end."""
        return self._accepted("POST", f"/v1/jobs/{job_id}/cancel")

    def hold(self, job_id: int, *, preempt: bool = False) -> Accepted:
        """Keep a job from starting; with ``preempt`` also stop its attempt."""
        return self._accepted("POST", f"/v1/jobs/{job_id}/hold", {"preempt": preempt})

    def release(self, job_id: int) -> Accepted:
        """Let a held job compete again."""
        return self._accepted("POST", f"/v1/jobs/{job_id}/release")

    def array(self, array_id: int) -> JobArray:
        """A job array: how many of its elements are in which state."""
        found: JobArray = self._json("GET", f"/v1/arrays/{array_id}")
        return found

    def cancel_array(self, array_id: int) -> ArrayAccepted:
        """Ask for the end of every element that has not ended."""
        return self._accepted_of_array("POST", f"/v1/arrays/{array_id}/cancel")

    def hold_array(self, array_id: int, *, preempt: bool = False) -> ArrayAccepted:
        """Keep every element from starting; with ``preempt`` also stop their attempts."""
        return self._accepted_of_array("POST", f"/v1/arrays/{array_id}/hold", {"preempt": preempt})

    def release_array(self, array_id: int) -> ArrayAccepted:
        """Let the held elements compete again."""
        return self._accepted_of_array("POST", f"/v1/arrays/{array_id}/release")

    def set_array_priority(self, array_id: int, priority: int) -> ArrayAccepted:
        """Change the priority of every element that has not ended."""
        return self._accepted_of_array("PUT", f"/v1/arrays/{array_id}/priority", {"priority": priority})

    def _accepted_of_array(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> ArrayAccepted:
        found: ArrayAccepted = self._json(method, path, body=body)
        return found

    def set_priority(self, job_id: int, priority: int) -> Accepted:
        """Change a job's priority; larger comes first."""
        return self._accepted("PUT", f"/v1/jobs/{job_id}/priority", {"priority": priority})

    # Looking ahead

    def forecasts(self, jobs: Sequence[int] | None = None) -> Forecasts:
        """When the unfinished jobs (of ``jobs``, at most 500, if given) will start and end.

        An :class:`ApiError` of status 409 says why there is no forecast.
        """
        parameters = None if jobs is None else {"job": list(jobs)}
        found: Forecasts = self._json("GET", "/v1/forecasts", parameters=parameters)
        return found

    def forecast(self, job_id: int) -> JobForecast:
        """When a job will start and end; 409 as above."""
        found: JobForecast = self._json("GET", f"/v1/jobs/{job_id}/forecast")
        return found

    def forecast_accuracy(self, days: int = 30) -> Accuracy:
        """How right the forecasts were that were made in the last ``days``."""
        found: Accuracy = self._json("GET", "/v1/forecasts/accuracy", parameters={"days": days})
        return found

    def told(self, job_id: int) -> list[Told]:
        """Every forecast of a job on record, oldest first."""
        return list(self._pages(f"/v1/jobs/{job_id}/forecasts"))

    def plan(self, body: Mapping[str, Any]) -> Plans:
        """What would become of a submission; nothing is stored."""
        found: Plans = self._json("POST", "/v1/plans", body=body)
        return found

    def snapshots(self) -> list[int]:
        """The cycles that can be replayed, newest first."""
        return list(self._json("GET", "/v1/snapshots")["cycles"])

    def snapshot(self, cycle: int) -> dict[str, Any]:
        """Everything that a cycle's decision rests on: what ``sooner sim replay`` reads."""
        found: dict[str, Any] = self._json("GET", f"/v1/cycles/{cycle}/snapshot")
        return found

    def snapshot_now(self) -> dict[str, Any]:
        """The same of the present: nothing was told, nothing decided. Status 409 for a very long queue."""
        found: dict[str, Any] = self._json("GET", "/v1/snapshots/now")
        return found

    def shadow(self) -> Shadow:
        """What the second policy would have done; an :class:`ApiError` of status 404 where there is none."""
        found: Shadow = self._json("GET", "/v1/shadow")
        return found

    # Cluster

    def cluster(self) -> ClusterStatus:
        """The cluster as the loop sees it now."""
        found: ClusterStatus = self._json("GET", "/v1/cluster")
        return found

    def add_server(self, server: Mapping[str, Any]) -> Accepted:
        """Add a server (keys as in the API: ``name``, ``gpus``, ...)."""
        return self._accepted("POST", "/v1/cluster/servers", server)

    def drain(self, server: str) -> Accepted:
        """Give a server no new work."""
        return self._accepted("POST", f"/v1/cluster/servers/{segment(server)}/drain")

    def resume(self, server: str) -> Accepted:
        """Give a drained server work again."""
        return self._accepted("POST", f"/v1/cluster/servers/{segment(server)}/resume")

    def reservations(self) -> list[Reservation]:
        """Reservations of servers that are not over."""
        return list(self._json("GET", "/v1/reservations")["reservations"])

    def reserve(self, reservation: Mapping[str, Any]) -> Reservation:
        """Set servers aside for a time (keys as in the API: ``servers``, ``starts_at``, ``ends_at``, ...)."""
        found: Reservation = self._json("POST", "/v1/reservations", body=reservation)
        return found

    def cancel_reservation(self, number: int) -> Accepted:
        """Open its servers to all again."""
        return self._accepted("POST", f"/v1/reservations/{number}/cancel")

    # The queue

    def queue(self) -> QueueStatus:
        """How long the queue is, and what of it is paused."""
        found: QueueStatus = self._json("GET", "/v1/queue")
        return found

    def pause_queue(self, part: Mapping[str, str]) -> Accepted:
        """Let nothing of it start: of a ``user`` or a ``project``, or of everybody; ``reason`` tells them why."""
        return self._accepted("POST", "/v1/queue/pause", part)

    def resume_queue(self, part: Mapping[str, str]) -> Accepted:
        """Let it start again."""
        return self._accepted("POST", "/v1/queue/resume", part)

    def quotas(self) -> list[Quota]:
        """Quotas and what is used of them."""
        return list(self._json("GET", "/v1/quotas")["quotas"])

    def set_quota(self, scope: str, name: str, limits: Mapping[str, int | None]) -> Quota:
        """Set both limits of a user or a project."""
        found: Quota = self._json("PUT", f"/v1/quotas/{scope}/{segment(name)}", body=limits)
        return found

    def remove_quota(self, scope: str, name: str) -> Quota:
        """Remove both limits."""
        found: Quota = self._json("DELETE", f"/v1/quotas/{scope}/{segment(name)}")
        return found

    # Learning

    def predictions(self, job_id: int | None = None, *, limit: int | None = None) -> list[Prediction]:
        """Predictions, newest first; of one job if given; all pages, or at most ``limit``."""
        return list(self._pages("/v1/predictions", {"job": job_id}, limit))

    def models(self) -> list[Model]:
        """Models, newest first."""
        return list(self._pages("/v1/models"))

    def model(self, model_id: str) -> Model:
        """One model with its metrics."""
        found: Model = self._json("GET", f"/v1/models/{segment(model_id)}")
        return found

    def metrics(self) -> str:
        """Counters and gauges in Prometheus' text format."""
        return self._request("GET", "/metrics").text

    def readiness(self) -> dict[str, Any]:
        """Whether the service is ready, and what it lacks if it is not."""
        found: dict[str, Any] = self._json("GET", "/readyz", also=503)
        return found

    def predictor(self) -> Predictor:
        """What predicts now, and how far it is trusted."""
        found: Predictor = self._json("GET", "/v1/predictor")
        return found

    def train(self) -> int:
        """Start a retraining; the number of its run."""
        return int(self._json("POST", "/v1/models/train")["training_run"])

    def training_run(self, run: int) -> TrainingRun:
        """How a retraining ended, or that it is under way."""
        document: TrainingRun = self._json("GET", f"/v1/training-runs/{run}")
        return document

    def promote(self, model_id: str) -> str:
        """Make a model the champion; its id."""
        return str(self._json("POST", f"/v1/models/{segment(model_id)}/promote")["champion"])

    # Health

    def ready(self) -> bool:
        """Whether the service answers, is migrated, and its loop has looked lately."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
