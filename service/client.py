"""A small client of the HTTP API: what the command line and the demo call, and what a script may call.

Documents come back as the plain JSON objects that the API describes (:mod:`service.client_documents`); units are in the names.
The only dependency is httpx. Not safe to share between threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx

from service.client_documents import (
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
from service.client_prediction_documents import PredictionDetails, Predictor

PAGE_SIZE = 500
"""Entries asked for at once: the most that a service with default settings gives."""
TIMEOUT_S = 30.0
"""Longer than any request takes whose transaction gets the write lock within its own limit of ten seconds."""
NEXT_OFFSET_HEADER = "Sooner-Next-Offset"
CUT_BYTES_HEADER = "Sooner-Cut-Bytes"

TERMINAL_STATES = ("succeeded", "failed", "cancelled")
UNFINISHED_STATES = ("queued", "starting", "running", "preempting", "cancelling")


class LogChunk(NamedTuple):
    """Bytes of a log, the offset to go on from, and how many bytes in front of them are gone (over the log's limit)."""

    data: bytes
    next_offset: int
    cut_bytes: int


class ClientError(Exception):
    """Something between this process and the answer; ``str()`` is one line for a person."""


class Unreachable(ClientError):
    """Nobody answered at ``url``; ``cause`` says how that showed."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"cannot reach Sooner at {url} ({cause})")
        self.url = url
        self.cause = cause


class ApiError(ClientError):
    """The service refused: its problem document (RFC 9457). ``errors`` point to the single faults."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.kind = str(problem.get("type", "")).rpartition("/")[2]
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)


class Client(AbstractContextManager["Client"]):
    """Talks to one service. Every method raises :class:`ApiError` for a refusal and :class:`Unreachable` for silence."""

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The token opens a service that runs commands: it goes to that address alone, never through a proxy of the
        # environment or along with a redirect.
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=timeout_s, transport=transport, trust_env=False
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Give back the connections."""
        self._http.close()

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
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, newest first; all pages, or at most ``limit`` jobs."""
        filters = {"state": list(states), "user": user, "project": project, "name": name}
        return list(self._pages("/v1/jobs", filters, limit))

    def job(self, job_id: int) -> Job:
        """One job."""
        found: Job = self._json("GET", f"/v1/jobs/{job_id}")
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

    def set_priority(self, job_id: int, priority: int) -> Accepted:
        """Change a job's priority; larger comes first."""
        return self._accepted("PUT", f"/v1/jobs/{job_id}/priority", {"priority": priority})

    # Looking ahead

    def forecasts(self) -> Forecasts:
        """When the unfinished jobs will start and end. An :class:`ApiError` of status 409 says why there is no forecast."""
        found: Forecasts = self._json("GET", "/v1/forecasts")
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
        return self._accepted("POST", f"/v1/cluster/servers/{_segment(server)}/drain")

    def resume(self, server: str) -> Accepted:
        """Give a drained server work again."""
        return self._accepted("POST", f"/v1/cluster/servers/{_segment(server)}/resume")

    # Learning

    def predictions(self, job_id: int | None = None, *, limit: int | None = None) -> list[Prediction]:
        """Predictions, newest first; of one job if given; all pages, or at most ``limit``."""
        return list(self._pages("/v1/predictions", {"job": job_id}, limit))

    def models(self) -> list[Model]:
        """Models, newest first."""
        return list(self._pages("/v1/models"))

    def model(self, model_id: str) -> Model:
        """One model with its metrics."""
        found: Model = self._json("GET", f"/v1/models/{_segment(model_id)}")
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
        return str(self._json("POST", f"/v1/models/{_segment(model_id)}/promote")["champion"])

    # Health

    def ready(self) -> bool:
        """Whether the service answers, is migrated, and its loop has looked lately."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    # How

    def _accepted(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Accepted:
        found: Accepted = self._json(method, path, body=body)
        return found

    def _pages(self, path: str, filters: Mapping[str, Any] | None = None, limit: int | None = None) -> Iterator[Any]:
        """The entries of a list, page after page, as long as the caller takes them."""
        given = {name: value for name, value in (filters or {}).items() if value not in (None, [])}
        left = limit
        while left is None or left > 0:
            page = self._page(path, given, PAGE_SIZE if left is None else min(PAGE_SIZE, left))
            items = page["items"] if left is None else page["items"][:left]
            yield from items
            if page["next"] is None:
                return
            given["after"] = page["next"]
            left = left - len(items) if left is not None else None

    def _page(self, path: str, parameters: Mapping[str, Any], size: int) -> Any:
        try:
            return self._json("GET", path, parameters={**parameters, "limit": size})
        except ApiError as error:
            # An operator may allow fewer entries a page than we like to ask for: take what they give by default.
            if not any(fault.get("parameter") == "limit" for fault in error.errors):
                raise
            return self._json("GET", path, parameters=parameters)

    def _json(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        answer = self._request(method, path, body=body, parameters=parameters, headers=headers)
        try:
            return answer.json()
        except ValueError:
            raise ClientError(f"{self._http.base_url} does not speak Sooner's API: its answer is not JSON") from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body, params=parameters, headers=headers)
        except httpx.ConnectError as error:
            refused = "refused" in str(error).lower()
            raise Unreachable(self.address, "connection refused" if refused else _line(error)) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(self.address, _line(error)) from error
        if not answer.is_success:
            raise ApiError(_problem(answer))
        return answer

    @property
    def address(self) -> str:
        """Where the service is."""
        return str(self._http.base_url).rstrip("/")


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    """The problem document of an answer, or one made from the status where a stranger answered."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and "title" in document:
        return document
    return {"status": answer.status_code, "title": f"HTTP {answer.status_code} {answer.reason_phrase}".strip()}


def _segment(text: str) -> str:
    """One segment of a path: a slash or a question mark in a name stays part of the name."""
    return quote(text, safe="")


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
