"""A workload table or the generator as a source: each job is predicted from the jobs that had ended before its submission."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster, Server
from policies.model.estimate import EndedJob, Estimate, PredictionRequest, ShadowPrediction, Unit
from policies.model.ids import JobId
from predictor.retraining import RetrainingPredictor
from service.cli.history import label_of
from service.notebooks.source import Past, Scored, SourceError
from service.sim.experiment import SimulationOptions
from service.sim.jobs import prepare
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import generate
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload
from service.simulations.request import RECORDED
from service.simulations.runs import Plan
from service.simulations.value import NoValue, workload_value

GPUS_PER_SERVER = 8
_SERVER = Server("", GPUS_PER_SERVER)
GENERATED_GPUS = 64
LOAD = 0.85
"""The load of a table's jobs on the cluster that is made for them."""
CHANGE_AT = 2.0 / 3.0
"""Share of the generator's jobs that come before its programs change."""
FIRST_TRAINING_JOBS = 400
GROWTH = 2.0
"""Growth of the data between trainings: fewer trainings than in a service, because the notebook waits for each."""


class TableSource:
    """Implements :class:`service.notebooks.source.Source`. Predictions are made at the first call, once."""

    def __init__(self, origin: str, workload: Workload, servers: Cluster | None, *, synthetic: bool = False) -> None:
        self.origin = origin
        self.synthetic = synthetic
        self._workload = workload
        self._cluster = servers
        self._predicted: list[Scored] | None = None

    def predictions(self) -> list[Scored]:
        """The predictions that a service would have made: it trains models as jobs end, and they serve if they pass the gate."""
        if self._predicted is None:
            self._predicted = list(_predicted(self._workload))
        return self._predicted

    def workload(self) -> Workload:
        """The table."""
        return self._workload

    def cluster(self) -> Cluster:
        """The given cluster, else as many servers of 8 GPUs as the jobs load by :data:`LOAD`."""
        return self._cluster if self._cluster is not None else _sized(self._workload)

    def past(self) -> Past:
        """The jobs, without those that do not fit the cluster."""
        cluster = self.cluster()
        return Past(prepare(self._workload, cluster, skip_invalid=True), cluster)

    def value(self, newest: int) -> Mapping[str, Any]:
        """Under A-SRPT, with predictions made as the jobs end in a simulation."""
        plan = Plan("asrpt", "asrpt", {}, RECORDED)
        try:
            return workload_value(self._workload, self.cluster(), newest, plan, SimulationOptions())
        except (NoValue, WorkloadError) as error:
            raise SourceError(str(error)) from error


def generated(jobs: int, seed: int, change: float, why: str = "") -> TableSource:
    """The generator as a source; see :func:`service.notebooks.sources.open_source`. ``why``: the reason that it is not another.

    Raises ValueError for arguments out of range.
    """
    workload = generate(seed, jobs, gpus=GENERATED_GPUS, load=LOAD)
    if change != 1.0:
        workload = _changed(workload, change)
    servers = tuple(replace(_SERVER, name=f"s{number:02d}") for number in range(GENERATED_GPUS // GPUS_PER_SERVER))
    origin = f"{jobs:,} made-up jobs (seeded generator, seed {seed}): no number here is about a real cluster"
    if why:
        origin += f"\n({why}; SOURCE names another source)"
    return TableSource(origin, workload, Cluster("a made-up cluster", servers), synthetic=True)


def read_table(path: Path, jobs: int) -> Workload:
    """The first ``jobs`` rows of a workload table. Raises WorkloadError and OSError."""
    workload = read_workload(path, first=jobs)
    if not workload.jobs:
        raise WorkloadError("holds no job", file=str(path))
    return workload


def _changed(workload: Workload, factor: float) -> Workload:
    """From :data:`CHANGE_AT` on every job is ``factor`` times as long: a data set that grew, say."""
    first = int(CHANGE_AT * len(workload.jobs))
    jobs = [
        job if at < first else replace(job, duration_s=job.duration_s * factor, iterations=_scaled(job, factor))
        for at, job in enumerate(workload.jobs)
    ]
    return replace(workload, jobs=tuple(jobs))


def _scaled(job: WorkloadJob, factor: float) -> int | None:
    return None if job.iterations is None else max(1, round(job.iterations * factor))


def _sized(workload: Workload) -> Cluster:
    jobs = workload.jobs
    span_s = max(1.0, jobs[-1].submit_time_s - jobs[0].submit_time_s)
    gpus = max(sum(job.gpus * job.duration_s for job in jobs) / span_s / LOAD, max(job.gpus for job in jobs))
    types = sorted({job.gpu_type for job in jobs if job.gpu_type}) or [_SERVER.gpu_type]
    count = math.ceil(gpus / GPUS_PER_SERVER)
    return Cluster(
        "a made-up cluster",
        tuple(
            replace(_SERVER, name=f"s{number:03d}", gpu_type=types[number % len(types)])
            for number in range(max(count, len(types)))
        ),
    )


def _predicted(workload: Workload) -> Iterator[Scored]:
    """Predict each job at its submission and learn from it at its end, as the live predictor does."""
    predictor = RetrainingPredictor(0, first_rows=FIRST_TRAINING_JOBS, growth=GROWTH)
    ends: list[tuple[float, int, EndedJob]] = []
    for number, row in enumerate(workload.jobs, start=1):
        while ends and ends[0][0] <= row.submit_time_s:
            predictor.ended(heappop(ends)[2])
        label = replace(label_of(row, 0.0), job=JobId(number))
        request = PredictionRequest(label.job, label.spec, row.submit_time_s)
        (predicted,) = predictor.predict(row.submit_time_s, [request])
        heappush(ends, (label.ended_at_s, number, label))
        if predicted is not None and (found := _scored(row, label, predicted.estimate, predicted.shadows)) is not None:
            yield found


def _scored(
    row: WorkloadJob, label: EndedJob, estimate: Estimate, shadows: Sequence[ShadowPrediction]
) -> Scored | None:
    """None for a job that was predicted in iterations and reported none: its error is unknown."""
    actual = label.iterations if estimate.unit is Unit.ITERATIONS else label.service_s
    if actual is None:
        return None
    return Scored(
        job_id=label.job,
        name=row.name,
        user=row.user,
        project=row.project,
        gpus=row.gpus,
        submitted_at_s=row.submit_time_s,
        scored_at_s=label.ended_at_s,
        unit=str(estimate.unit),
        p10=estimate.quantile(0.1),
        p50=estimate.median,
        p90=estimate.quantile(0.9),
        actual=actual,
        source=estimate.source,
        model=estimate.model_version,
        point=estimate.point,
        points=estimate.points,
        others={shadow.model_version: shadow.points for shadow in shadows},
    )
