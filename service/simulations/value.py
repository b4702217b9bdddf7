"""What predictions were worth to the service's own past, or would have been to a workload: the report ``sooner.model.value/1``.

What was served and what each expert said at the time is in the database; of a workload it is predicted again, as jobs end in a
simulation. The replays are those of :mod:`service.sim.value`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from policies.model.cluster import Cluster
from policies.model.estimate import Estimate
from policies.model.ids import JobId
from policies.registry import make_policy
from service.config.settings import Settings
from service.db.prediction_log import first_predictions
from service.db.recorded_jobs import ended_in
from service.db.session import Database
from service.history.workload import OwnHistory, OwnJob, actual_result, left_of, simulated_jobs
from service.sim.experiment import SimulationOptions
from service.sim.jobs import SimJobs, prepare
from service.sim.results import Result
from service.sim.value import Replay, Said, Told, said_of, schedule_json, tell, value_of
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload
from service.simulations.past import read_past
from service.simulations.request import Window
from service.simulations.runs import Plan, Setting, simulate
from service.simulations.words import left_out_notes, nothing_to_run

SCHEMA: Final = "sooner.model.value/1"
NO_LONGER_FITS: Final = "does not fit the servers as they are now"


class NoValue(Exception):
    """There is nothing to replay; one line that says why."""


Runner = Callable[[Setting, list[Plan]], Sequence[Result]]
"""Runs plans on what they share, and returns the results in their order. Raises what :func:`.runs.simulate` raises."""


def one_by_one(setting: Setting, plans: list[Plan]) -> Sequence[Result]:
    """A :data:`Runner` in this process."""
    return [simulate(setting, plan).result for plan in plans]


def stored_value(
    database: Database,
    settings: Settings,
    when: Window,
    newest: int,
    plan: Plan,
    options: SimulationOptions,
    runner: Runner = one_by_one,
) -> dict[str, Any]:
    """The report on the ``newest`` jobs of a window of the service's past, on its present servers.

    Jobs that were unfinished when the window began are replayed with their remaining work. Raises :class:`NoValue`, WorkloadError
    and SimulationStuck.
    """
    ended, oldest_s = ended_in(database, *when, newest)
    since_s = when.since_s if oldest_s is None else oldest_s
    history, cluster, down = read_past(database, settings, Window(since_s, when.until_s), carry=True)
    if not history.jobs:
        raise NoValue(nothing_to_run(history))
    if not cluster.servers:
        raise NoValue("all servers of the service are down, so there is nothing to replay the jobs on")
    history = _newest(history, newest)
    jobs = simulated_jobs(history, cluster, skip_invalid=True)
    told = Told(jobs, _said(database, history, jobs))
    left_out = {**history.left_out, **({NO_LONGER_FITS: jobs.skipped} if jobs.skipped else {})}
    report = _report(told, Setting(history.workload, cluster, options), plan, left_out, runner) | {
        "workload": None,
        "start_s": history.start_s,
        "carried": sum(job.carried for job in history.jobs),
        "older_jobs": max(0, ended - newest),
        "servers_down": down,
    }
    report["schedules"]["actual"] = schedule_json(actual_result(history, cluster, jobs.jobs))
    return report


def workload_value(
    workload: Workload,
    cluster: Cluster,
    newest: int,
    plan: Plan,
    options: SimulationOptions,
    runner: Runner = one_by_one,
) -> dict[str, Any]:
    """The report on the ``newest`` jobs of a table, predicted by a predictor that begins with them and learns as they end.

    Raises :class:`NoValue`, WorkloadError and SimulationStuck.
    """
    older = max(0, len(workload.jobs) - newest)
    workload = replace(workload, jobs=workload.jobs[older:], skipped=())
    jobs = prepare(workload, cluster, checkpoint_period_s=options.checkpoint_period_s, skip_invalid=True)
    left_out = {NO_LONGER_FITS: jobs.skipped} if jobs.skipped else {}
    if not jobs.jobs:
        raise WorkloadError("; ".join(["the workload holds no job that fits the cluster", *left_out_notes(left_out)]))
    jobs = replace(jobs, jobs=list(jobs.jobs))
    told, _ = tell(jobs, cluster, make_policy(plan.policy, plan.options), options)
    return _report(told, Setting(workload, cluster, options), plan, left_out, runner) | {
        "workload": workload.name,
        "start_s": None,
        "carried": 0,
        "older_jobs": older,
        "servers_down": [],
    }


def _newest(history: OwnHistory, newest: int) -> OwnHistory:
    """As many jobs as are wanted, beside those carried over: the elements of an array are submitted at one instant."""
    carried = [job for job in history.jobs if job.carried]
    return replace(history, jobs=[*carried, *[job for job in history.jobs if not job.carried][-newest:]])


def _said(database: Database, history: OwnHistory, jobs: SimJobs) -> dict[JobId, Said]:
    """What was said of the jobs at their submission, without what they had done by the start of the window."""
    own = {job.row.job_id: job for job in history.jobs}
    numbers = {own[job.row.job_id].recorded.record.id: job for job in jobs.jobs}
    found = {}
    for past_id, prediction in first_predictions(database, 0, list(numbers)):
        job = numbers[past_id]
        said = _left(said_of(prediction), own[job.row.job_id])
        if said is not None:
            found[job.id] = said
    return found


def _left(said: Said, own: OwnJob) -> Said | None:
    served = left_of(said.estimate, own)
    if served is None:
        return None
    experts: dict[str, Estimate] = {}
    for name, estimate in said.experts.items():
        left = left_of(estimate, own)
        if left is not None:
            experts[name] = left
    return replace(said, estimate=served, experts=experts)


def _report(told: Told, setting: Setting, plan: Plan, left_out: Mapping[str, int], runner: Runner) -> dict[str, Any]:
    if not told.said:
        raise NoValue("; ".join(["none of these jobs was predicted", *left_out_notes(left_out)]))

    def run(replays: Sequence[Replay]) -> Sequence[Result]:
        return runner(
            setting,
            [replace(plan, label=each.name, predictor=each.predictor, jobs=each.jobs) for each in replays],
        )

    cluster, options = setting.cluster, setting.options
    return {
        "schema": SCHEMA,
        "policy": plan.policy,
        "policy_options": dict(plan.options),
        "jobs": len(told.jobs.jobs),
        "predicted": len(told.said),
        "left_out": dict(left_out),
        "servers": len(cluster.servers),
        "gpus": cluster.gpus,
        "checkpoint_s": options.checkpoint_s,
        "restart_s": options.restart_s,
        **value_of(told, run).to_json(),
    }
