"""A service's database as a source: whole distributions, the predictions of every model, and the recorded past."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import Row

from policies.model.cluster import Cluster
from service.config.settings import Settings
from service.db.codec import decode_shadows
from service.db.prediction_log import scored_predictions, submission_of_newest
from service.db.session import Database
from service.history.workload import OwnHistory, actual_result, simulated_jobs
from service.notebooks.source import Past, Scored, SourceError, first_predictions, with_jobs
from service.sim.experiment import SimulationOptions
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload
from service.simulations.past import read_past
from service.simulations.request import RECORDED, Window, current_plan
from service.simulations.value import NoValue, stored_value


class StoredSource:
    """Implements :class:`service.notebooks.source.Source`. It only reads, also while the service runs."""

    synthetic = False

    def __init__(self, database: Database, settings: Settings, newest: int) -> None:
        self.origin = f"the database {database.url}: its newest {newest:,} jobs at most"
        self._database = database
        self._settings = settings
        self._newest = newest

    def predictions(self) -> list[Scored]:
        """The first prediction of each job that has ended."""
        return first_predictions({row.job_id: _scored(row) for row in scored_predictions(self._database, self._newest)})

    @cached_property
    def _past(self) -> tuple[OwnHistory, Cluster]:
        since_s = submission_of_newest(self._database, self._newest)
        history, cluster, _ = read_past(self._database, self._settings, Window(since_s, None), carry=False)
        return history, cluster

    def workload(self) -> Workload:
        """The jobs that ran and ended: their productive seconds, at the best placement."""
        return with_jobs(self._past[0].workload, self.origin)

    def cluster(self) -> Cluster:
        """The servers that are not down."""
        return self._past[1]

    def past(self) -> Past:
        """The jobs with their own networks, priorities and predictions, and their real outcome."""
        history, cluster = self._past
        with_jobs(history.workload, self.origin)
        jobs = simulated_jobs(history, cluster, skip_invalid=True)
        recorded = any(job.predicted is not None for job in jobs.jobs)
        return Past(jobs, cluster, actual_result(history, cluster, jobs.jobs), recorded)

    def value(self, newest: int) -> Mapping[str, Any]:
        """Under the configured policy and costs."""
        settings = self._settings
        options = SimulationOptions(checkpoint_s=settings.checkpoint_s, restart_s=settings.restart_s)
        plan = current_plan(settings, RECORDED)
        try:
            return stored_value(self._database, settings, Window(None, None), newest, plan, options)
        except (NoValue, WorkloadError) as error:
            raise SourceError(str(error)) from error


def _scored(row: Row[Any]) -> Scored:
    return Scored(
        job_id=row.job_id,
        name=row.name,
        user=row.user,
        project=row.project,
        gpus=row.gpus,
        submitted_at_s=row.submitted_at_s,
        scored_at_s=row.scored_at_s,
        unit=row.unit,
        p10=row.p10,
        p50=row.p50,
        p90=row.p90,
        actual=row.actual,
        source=row.source,
        model=row.model_version,
        point=row.point,
        points=tuple(row.points),
        others={shadow.model_version: shadow.points for shadow in decode_shadows(row.shadows)},
    )
