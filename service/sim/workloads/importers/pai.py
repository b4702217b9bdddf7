"""Alibaba PAI (2020, CC BY 4.0): the published tables in a folder, or the table of the trace's own simulator.

The tables have no header; their columns are below. A job's start is its submission, the first of its tasks' starts its launch;
``plan_gpu`` is in percent of a GPU and counts for each of ``inst_num`` instances. The simulator's table: job_id, user, num_gpu,
num_inst or num_pod, duration, submit_time, group, gpu_type, wait_time. Its columns user_dur, group_dur and group_gpu_dur are
means over the whole trace, the future included: they are never read.
Source: the trace's README (alibaba/clusterdata, cluster-trace-gpu-v2020).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers.rows import (
    SkipRow,
    checked_end_s,
    collect,
    csv_rows,
    import_rows,
    number,
    positive_seconds,
)
from service.sim.workloads.model import Workload, WorkloadJob

_JOB: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASK: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_GROUP: Final = ("inst_id", "user", "gpu_type_spec", "group", "workload")
_SIMULATOR: Final = ("job_id", "user", "num_gpu", "duration", "submit_time", "group")
_FINAL_STATES: Final = {"Terminated": "succeeded", "Failed": "failed"}


def import_pai(path: Path) -> Workload:
    """Read a folder with ``pai_{job,task,group_tag}_table.csv`` (also ``.gz``), or the simulator's table.

    name = the group tag (equal entry scripts, arguments and data), gpus = the sum over tasks, rounded up: a share of a GPU
    holds a whole one. Jobs without GPUs and jobs that had not ended are skipped. Times are shifted to the first submission.
    """
    if path.is_dir():
        tasks = _tasks(_table(path, "task"))
        groups = _groups(_table(path, "group_tag"))
        return collect(path.name, csv_rows(_table(path, "job"), _JOB, columns=_JOB), _job_parser(tasks, groups))
    return import_rows(path, _SIMULATOR, _parse_simulated)


def _table(folder: Path, kind: str) -> Path:
    name = f"pai_{kind}_table.csv"
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise WorkloadError(f"neither {name} nor {name}.gz is there; unpack the published archives first", file=str(folder))


@dataclass(slots=True)
class _Tasks:
    """What the tasks of one job sum up to."""

    gpu_percent: float = 0.0
    launched_s: float = math.inf


class _Group(NamedTuple):
    name: str
    gpu_type: str


def _tasks(path: Path) -> dict[str, _Tasks]:
    """The GPUs and the launch of each job. A task without a number (a job's tasks that ask for no GPU) adds nothing."""
    tasks: dict[str, _Tasks] = {}
    for _, cells in csv_rows(path, _TASK, columns=_TASK):
        task = tasks.setdefault(cells["job_name"], _Tasks())
        task.gpu_percent += _number_or(cells["inst_num"], 1.0) * _number_or(cells["plan_gpu"], 0.0)
        task.launched_s = min(task.launched_s, _number_or(cells["start_time"], math.inf))
    return tasks


def _groups(path: Path) -> dict[str, _Group]:
    return {
        cells["inst_id"]: _Group(cells["group"] or "", cells["gpu_type_spec"] or "")
        for _, cells in csv_rows(path, _GROUP, columns=_GROUP)
    }


def _number_or(cell: str | None, missing: float) -> float:
    try:
        return number(cell, "")
    except SkipRow:
        return missing


def _job_parser(
    tasks: Mapping[str, _Tasks], groups: Mapping[str, _Group]
) -> Callable[[int, Mapping[str, str]], WorkloadJob]:
    def parse(line: int, cells: Mapping[str, str]) -> WorkloadJob:
        final_state = _FINAL_STATES.get(cells["status"])
        if final_state is None:
            raise SkipRow(f"the job has not ended, its status is {cells['status'] or 'empty'}")
        task = tasks.get(cells["job_name"])
        if task is None:
            raise SkipRow("the job has no task")
        submit_s = number(cells["start_time"], "start_time")
        end_s = checked_end_s(number(cells["end_time"], "end_time"), submit_s)
        if not task.launched_s < end_s:
            raise SkipRow("no task was launched before the job's end")
        group = groups.get(cells["inst_id"], _Group("", ""))
        return WorkloadJob(
            job_id=cells["job_name"],
            submit_time_s=submit_s,
            gpus=_whole(task.gpu_percent / 100.0),
            duration_s=end_s - max(submit_s, task.launched_s),
            user=cells["user"] or "",
            name=group.name,
            end_time_s=end_s,
            gpu_type=group.gpu_type,
            final_state=final_state,
        )

    return parse


def _parse_simulated(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    submit_s = number(cells["submit_time"], "submit_time")
    duration_s = positive_seconds(cells["duration"], "duration")
    instances = cells.get("num_inst") or cells.get("num_pod") or "1"
    return WorkloadJob(
        job_id=cells["job_id"],
        submit_time_s=submit_s,
        gpus=_whole(_number_or(cells["num_gpu"], 0.0) * number(instances, "num_inst")),
        duration_s=duration_s,
        user=cells["user"] or "",
        name=cells["group"] or "",
        end_time_s=submit_s + max(0.0, _number_or(cells.get("wait_time"), 0.0)) + duration_s,
        gpu_type=cells.get("gpu_type") or "",
    )


def _whole(gpus: float) -> int:
    if gpus <= 0.0:
        raise SkipRow("the job asks for no GPU")
    return math.ceil(round(gpus, 6))
