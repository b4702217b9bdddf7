"""The service's own past under other policies or on other servers: what is read, what is run, and the report.

``sooner sim what-if`` and the what-if runs of the service make the report ``sooner.sim.whatif/1`` here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.model.cluster import Cluster
from service.config.cluster_export import all_servers, present_cluster
from service.config.settings import Settings
from service.db.recorded_jobs import recorded_jobs, stored_servers
from service.db.session import Database
from service.history.workload import OwnHistory, actual_result, own_history, simulated_jobs
from service.sim.experiment import SimulationOptions
from service.sim.results import Result
from service.simulations.request import RECORDED, Window
from service.simulations.runs import Plan, Setting

SCHEMA = "sooner.sim.whatif/1"


def read_past(
    database: Database, settings: Settings, when: Window, *, carry: bool
) -> tuple[OwnHistory, Cluster, list[str]]:
    """The window's jobs, the present servers, and the names of those that are down."""
    servers = stored_servers(database)
    cluster, down = present_cluster(servers, settings.cluster)
    cluster = replace(cluster, gangs=settings.gangs)
    jobs = recorded_jobs(database, *when)
    return own_history(jobs, all_servers(servers, cluster), when.since_s, carry=carry), cluster, down


@dataclass(frozen=True, slots=True)
class Past:
    """A window of the past, prepared for runs on ``setting.cluster``. ``actual``: what happened."""

    history: OwnHistory
    setting: Setting
    actual: Result

    def as_recorded(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans; those with the recorded predictions run without any where the service predicted none of the jobs."""
        assert self.setting.prepared is not None
        if any(job.predicted is not None for job in self.setting.prepared.jobs):
            return list(plans)
        return [replace(plan, predictor="none") if plan.predictor == RECORDED else plan for plan in plans]

    def report(self, results: Sequence[Result]) -> dict[str, Any]:
        """The document of these runs beside what happened."""
        history, machines = self.history, self.setting.cluster
        return {
            "schema": SCHEMA,
            "start_s": history.start_s,
            "jobs": len(history.jobs),
            "carried": sum(job.carried for job in history.jobs),
            "left_out": dict(history.left_out),
            "servers": len(machines.servers),
            "gpus": machines.gpus,
            "actual": self.actual.to_dict(),
            "runs": [result.to_dict() for result in results],
        }


def prepare_past(
    history: OwnHistory, present: Cluster, machines: Cluster, settings: Settings, network: str, seed: int
) -> Past:
    """The jobs of the window for runs on ``machines``; they ran on ``present``. Raises WorkloadError."""
    options = SimulationOptions(
        checkpoint_s=settings.checkpoint_s, restart_s=settings.restart_s, network=network, seed=seed
    )
    prepared = simulated_jobs(history, machines)
    actual = actual_result(history, present, simulated_jobs(history, present, skip_invalid=True).jobs)
    return Past(history, Setting(history.workload, machines, options, prepared=prepared), actual)
