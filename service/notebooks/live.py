"""A running service as a source, read through its HTTP API.

The API returns three quantiles of a prediction and when a job held GPUs; whole distributions, the predictions of other models,
and the exact seconds of progress are only in the database (:mod:`.stored`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from policies.model.cluster import Cluster
from service.client import TERMINAL_STATES, Client
from service.config.cluster_file import SCHEMA, parse_cluster
from service.notebooks.source import Past, Scored, first_predictions, with_jobs
from service.sim.jobs import prepare
from service.sim.workloads.model import Workload, WorkloadJob, in_submission_order

if TYPE_CHECKING:
    from service.wire.cluster import ServerDocument
    from service.wire.jobs import JobDocument, PredictionDocument


_FINAL_STATES = {"cancelled": "killed"}
"""States with another name in a workload table."""


class LiveSource:
    """Implements :class:`service.notebooks.source.Source`. At most the ``newest`` jobs and their predictions are read, once."""

    synthetic = False

    def __init__(self, client: Client, address: str, newest: int) -> None:
        self.origin = f"the service at {address}: its newest {newest:,} jobs at most"
        self._client = client
        self._newest = newest

    @cached_property
    def _jobs(self) -> dict[int, JobDocument]:
        return {job["id"]: job for job in self._client.jobs.list(limit=self._newest)}

    def predictions(self) -> list[Scored]:
        """The first prediction of each job that has ended. Raises ClientError."""
        found: dict[int, Scored] = {}
        first_s = min((_instant_s(job["submitted_at"]) for job in self._jobs.values()), default=None)
        if first_s is None:
            return []
        # Newest first: the last one that is read of a job is its first prediction. However many there are of a job, all are read.
        for each in self._client.predictions.list(since=datetime.fromtimestamp(first_s, UTC)):
            job = self._jobs.get(each["job_id"])
            if job is not None and each["actual"] is not None and each["log_error"] is not None:
                found[each["job_id"]] = _scored(each, each["actual"], job)
        return first_predictions(found)

    def workload(self) -> Workload:
        """The jobs that ran and ended. A duration is the time in which a job held GPUs: the API returns no other."""
        return with_jobs(in_submission_order("the service's newest jobs", self._rows(), ()), self.origin)

    def _rows(self) -> Iterator[WorkloadJob]:
        for job in self._jobs.values():
            if job["state"] in TERMINAL_STATES and job["started_at"] and job["finished_at"]:
                duration_s = self._held_s(job)
                if duration_s > 0.0:
                    yield WorkloadJob(
                        job_id=str(job["id"]),
                        submit_time_s=_instant_s(job["submitted_at"]),
                        gpus=job["gpus"],
                        duration_s=duration_s,
                        user=job["user"] or "",
                        project=job["project"] or "",
                        name=job["name"],
                        end_time_s=_instant_s(job["finished_at"]),
                        iterations=round(job["iterations_done"]) if job["iterations_done"] else None,
                        final_state=_FINAL_STATES.get(job["state"], job["state"]),
                    )

    def _held_s(self, job: JobDocument) -> float:
        if job["attempts"] == 1:
            assert job["started_at"] is not None
            assert job["finished_at"] is not None
            return _instant_s(job["finished_at"]) - _instant_s(job["started_at"])
        return sum(
            _instant_s(attempt["ended_at"]) - _instant_s(attempt["started_at"])
            for attempt in self._client.jobs.attempts(job["id"])
            if attempt["started_at"] is not None and attempt["ended_at"] is not None
        )

    def cluster(self) -> Cluster:
        """The service's servers, including those that are down."""
        found = self._client.cluster.show()
        return parse_cluster(
            {"schema": SCHEMA, "name": found["name"], "servers": [_entry(server) for server in found["servers"]]}
        )

    def past(self) -> Past:
        """The jobs without their models: the API does not return them, so any placement is as good as another."""
        cluster = self.cluster()
        return Past(prepare(self.workload(), cluster, skip_invalid=True), cluster)

    def value(self, newest: int) -> None:
        """None: the API returns no whole predictions."""
        return


def _scored(prediction: PredictionDocument, actual: float, job: JobDocument) -> Scored:
    return Scored(
        job_id=job["id"],
        name=job["name"],
        user=job["user"] or "",
        project=job["project"] or "",
        gpus=job["gpus"],
        submitted_at_s=_instant_s(job["submitted_at"]),
        scored_at_s=_instant_s(prediction["scored_at"] or prediction["made_at"]),
        unit=prediction["unit"],
        p10=prediction["p10"],
        p50=prediction["p50"],
        p90=prediction["p90"],
        actual=actual,
        source=prediction["source"],
        model=prediction["model_version"] or "",
        point=prediction["point"],
    )


def _entry(server: ServerDocument) -> dict[str, Any]:
    """The server as an entry of a cluster file."""
    shared = ("gpus", "gpu_type", "rack", "nic_gbps", "intra_gbps", "gpu_speed", "gpu_memory_gib")
    return {"names": [server["name"]]} | {key: value for key, value in server.items() if key in shared}


def _instant_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
