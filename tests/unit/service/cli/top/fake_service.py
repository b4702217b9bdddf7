"""A service that answers what ``sooner top`` asks from a few lists: for states that a real one reaches only by chance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from service.domain.access import Role
from service.wire.access import IdentityDocument

GPUS_A_SERVER = 8


def ago(seconds: float) -> str:
    """A time of the API."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def spread(seconds: float) -> dict[str, str]:
    """A forecast whose median is in so many seconds."""
    return {"p10": ago(-0.8 * seconds), "p50": ago(-seconds), "p90": ago(-1.5 * seconds)}


def running_job(number: int, **changes: Any) -> dict[str, Any]:
    """A job that holds GPUs, as ``GET /v1/jobs`` answers it."""
    prediction = {
        "unit": "iterations",
        "p10": 3000.0,
        "p50": 4000.0,
        "p90": 6000.0,
        "source": "recurring, 14 past runs",
    }
    plain = {
        "id": number,
        "name": f"train-{number}",
        "user": "ada",
        "project": "vision",
        "state": "running",
        "reason": "running",
        "reason_sentence": "It runs.",
        "gpus": 4,
        "priority": 0,
        "held": False,
        "submitted_at": ago(9000),
        "started_at": ago(7800),
        "finished_at": None,
        "attempts": 1,
        "preemptions": 0,
        "iterations_done": 3000.0,
        "prediction": prediction,
        "forecasts": [{"milestone": "finish", **spread(2400)}],
        "eta": None,
        "eta_reason": None,
        "servers": ["s0001"],
        "exit_code": None,
        "array_id": None,
        "array_index": None,
    }
    return plain | changes


def queued_job(number: int, **changes: Any) -> dict[str, Any]:
    """A job of the queue, as ``GET /v1/queue/jobs`` answers it; its position is set by the page."""
    plain = {
        "job_id": number,
        "name": f"sweep-{number}",
        "user": ("ada", "ben", "cleo")[number % 3],
        "project": "speech",
        "gpus": 2,
        "priority": 0,
        "held": False,
        "state": "queued",
        "reason": "resources",
        "reason_sentence": "Not enough GPUs are free; it starts when running jobs end.",
        "submitted_at": ago(4000),
        "waiting_s": 4000.0,
        "rank": 1.0,
        "start": spread(5400),
        "end": spread(90_000),
    }
    return plain | changes


@dataclass
class FakeService:
    """Its lists may be changed at any time.

    ``ended``: jobs that only their own pages show; ``down``: no answer at all; ``asked``: the paths of all requests.
    """

    running: list[dict[str, Any]] = field(default_factory=list)
    queue: list[dict[str, Any]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    servers: int = 2
    role: str = "operator"
    user: str | None = "ada"
    down: bool = False
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)
    log: bytes = b"epoch 1\nepoch 2\n"
    asked: list[str] = field(default_factory=list)
    changes: list[tuple[str, Any]] = field(default_factory=list)
    overview: dict[str, Any] = field(default_factory=dict)
    cells: dict[tuple[str, int], tuple[str, int | None]] = field(default_factory=dict)
    refuses_cursors: bool = False
    note: str | None = None

    def identity(self) -> IdentityDocument:
        """What ``GET /v1/me`` answers."""
        role = Role(self.role)
        return {"user": self.user, "role": role, "projects": None, "key_id": None, "expires_at": None}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """The answer to one request."""
        path = request.url.path
        self.asked.append(f"{request.method} {path}?{request.url.query.decode()}")
        if self.down:
            raise httpx.ConnectError("connection refused", request=request)
        if path in self.refuses:
            status, detail = self.refuses[path]
            return _problem(status, detail)
        if request.method != "GET":
            self.changes.append((f"{request.method} {path}", request.content.decode()))
            return httpx.Response(202, json={"accepted": path.rpartition("/")[2]})
        return self._get(path, request.url.params)

    def _get(self, path: str, parameters: httpx.QueryParams) -> httpx.Response:
        if path.startswith("/v1/jobs/"):
            return self._of_job(path.removeprefix("/v1/jobs/"))
        if self.refuses_cursors and "after" in parameters:
            return _problem(422, "The cursor is not one of this list.")
        answers = {
            "/v1/overview": self._overview,
            "/v1/gpus": lambda: {"at": ago(0), "servers": self._gpus()},
            "/v1/jobs": lambda: {"items": self.running[: int(parameters["limit"])], "next": None},
            "/v1/queue/jobs": lambda: self._page(int(parameters["limit"]), int(parameters.get("after", 0))),
        }
        if path == "/v1/events":
            return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=b"")
        return httpx.Response(200, json=answers[path]()) if path in answers else _problem(404, path)

    def _page(self, limit: int, start: int) -> dict[str, Any]:
        items = [each | {"position": start + at + 1} for at, each in enumerate(self.queue[start : start + limit])]
        following = start + limit
        return {
            "items": items,
            "next": str(following) if following < len(self.queue) else None,
            "total": len(self.queue),
            "ordered": len(self.queue),
            "cycle": 1234,
            "policy": "asrpt",
            "note": self.note,
        }

    def _gpus(self) -> list[dict[str, Any]]:
        held = [job["id"] for job in self.running for _ in range(job["gpus"])]
        jobs = held + [None] * (self.servers * GPUS_A_SERVER - len(held))
        servers = []
        for number in range(self.servers):
            name, first = f"s{number + 1:04}", number * GPUS_A_SERVER
            cells = [
                self.cells.get((name, at), ("free" if job is None else "held", job))
                for at, job in enumerate(jobs[first : first + GPUS_A_SERVER])
            ]
            gpus = [{"index": at, "state": state, "job_id": job} for at, (state, job) in enumerate(cells)]
            servers.append({"server": name, "state": "up", "gpus": gpus})
        return servers

    def _overview(self) -> dict[str, Any]:
        total, busy = self.servers * GPUS_A_SERVER, sum(job["gpus"] for job in self.running)
        gpus = {"total": total, "usable": total, "busy": busy, "free": total - busy}
        plain = {
            "at": ago(0),
            "gpus": gpus | {"down": 0, "drained": 0, "reserved": 0},
            "queue": {
                "queued": len(self.queue),
                "held": sum(job["held"] for job in self.queue),
                "reasons": {},
                "starting": 0,
                "running": len(self.running),
                "stopping": 0,
                "oldest_wait_s": 18_720.0 if self.queue else None,
                "oldest_job_id": self.queue[0]["job_id"] if self.queue else None,
            },
            "cycle": {"number": 1234, "at": ago(1), "age_s": 1.0, "healthy": True, "duration_s": 0.01},
            "leader": {"id": "1", "name": "head-1", "version": "0.1.0", "started_at": ago(90_000)},
            "model": {"version": "m-12", "trained_at": ago(300_000), "drifting": False, "known_jobs": 4100},
            "policy": "asrpt",
            "attention": [],
        }
        return plain | self.overview

    def _of_job(self, path: str) -> httpx.Response:
        number, _, part = path.partition("/")
        job = next((each for each in [*self.running, *self.ended] if str(each["id"]) == number), None)
        if job is None:
            waits = next((each for each in self.queue if str(each["job_id"]) == number), None)
            if waits is None:
                return _problem(404, f"There is no job {number}.")
            job = running_job(int(number), state="queued", servers=[], name=waits["name"], user=waits["user"])
        if part == "logs":
            return httpx.Response(200, content=self.log)
        parts: Mapping[str, Any] = {
            "": job,
            "explanation": {
                "job_id": job["id"],
                "state": job["state"],
                "sentence": "It needs 8 GPUs on at most 2 servers; 9 are free, but on 5 servers.",
                "will_preempt": [12],
                "will_be_preempted_by": None,
                "preemption_at": ago(-600),
            },
            "events": {"items": [_event(job["id"])], "next": None},
            "attempts": {"items": [_attempt(job["id"])], "next": None},
            "forecast": {"start_at": None, "finish_at": spread(2400), "made_at": ago(3), "samples": 200}
            | {"source": "history", "reason": None, "job_id": job["id"]},
        }
        return httpx.Response(200, json=parts[part]) if part in parts else _problem(404, part)


def _event(job: int) -> dict[str, Any]:
    plain = {"id": 1, "at": ago(7800), "source": "queued", "target": "starting", "cause": "start_decided"}
    return plain | {"reason": "running", "cycle": 7, "attempt_id": f"{job}.1", "detail": "", "reason_sentence": ""}


def _attempt(job: int) -> dict[str, Any]:
    plain = {"id": f"{job}.1", "job_id": job, "number": 1, "state": "running", "reason": None, "exit_code": None}
    share = {"server": "s0001", "gpus": 4, "gpu_ids": [0, 1, 2, 3], "seats": []}
    times = {"opened_at": ago(7810), "started_at": ago(7800), "stop_requested_at": None, "ended_at": None}
    return plain | times | {"placement": [share], "resume_iteration": 0.0, "last_iteration": 3000.0}


def _problem(status: int, detail: str) -> httpx.Response:
    document = {"type": "/docs/problems/not-found", "title": "Refused", "status": status, "detail": detail}
    return httpx.Response(status, json=document | {"instance": "", "errors": []})
