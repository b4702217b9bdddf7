"""Alibaba's GPU traces (CC BY 4.0): PAI's tables of 2020 in a folder, the table of their simulator, or the pods of 2023.

The tables have no header; their columns are below. A job's start is its submission, the first of its tasks' starts its launch;
``plan_gpu`` is in percent of a GPU and counts for each of ``inst_num`` instances. The simulator's table: job_id, user, num_gpu,
num_inst or num_pod, duration, submit_time, group, gpu_type, wait_time. Its columns user_dur, group_dur and group_gpu_dur are
means over the whole trace, the future included: they are never read.

A table of pods (``openb_pod_list_*.csv``): name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase,
creation_time, deletion_time, scheduled_time. Each pod is a job; ``gpu_spec`` may list several types, any of which would do.
Source: the traces' READMEs (alibaba/clusterdata, cluster-trace-gpu-v2020 and cluster-trace-gpu-v2023).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from service.domain.source_rows import SkipRow, number, positive_seconds, seconds, whole_gpus
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers.rows import checked_end_s, collect, csv_rows, header, import_rows, rounded_up
from service.sim.workloads.model import Workload, WorkloadJob

_JOB: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_TASK: Final = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
_GROUP: Final = ("inst_id", "user", "gpu_type_spec", "group", "workload")
_SIMULATOR: Final = ("job_id", "user", "num_gpu", "duration", "submit_time", "group")
_FINAL_STATES: Final = {"Terminated": "succeeded", "Failed": "failed"}
_POD: Final = ("name", "num_gpu", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
_POD_STATES: Final = {"Succeeded": "succeeded", "Failed": "failed", "Running": ""}
"""The state of a pod that was deleted while it ran is unknown."""


def import_pai(path: Path) -> Workload:
    """Read a folder with ``pai_{job,task,group_tag}_table.csv`` (also ``.gz``), the simulator's table, or a table of pods.

    The tables of the folder have no header; where its published file ``pai_*_table.header`` is there too, it names the columns.

    name = the group tag (equal entry scripts, arguments and data), gpus = the sum over tasks, rounded up: a share of a GPU
    holds a whole one. Jobs without GPUs and jobs that had not ended are skipped. Times are shifted to the first submission.
    """
    if path.is_dir():
        tasks = _tasks(_table_rows(path, "task", _TASK))
        groups = _groups(_table_rows(path, "group_tag", _GROUP))
        return collect(path.name, _table_rows(path, "job", _JOB), _job_parser(tasks, groups))
    if "pod_phase" in header(path):
        return import_rows(path, _POD, _parse_pod)
    return import_rows(path, _SIMULATOR, _parse_simulated)


def _table_rows(folder: Path, kind: str, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    name = f"pai_{kind}_table.csv"
    published = folder / f"pai_{kind}_table.header"
    names = header(published) if published.is_file() else columns
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return csv_rows(path, columns, columns=names)
    raise WorkloadError(f"neither {name} nor {name}.gz is there; unpack the published archives first", file=str(folder))


@dataclass(slots=True)
class _Tasks:
    """The sum over the tasks of one job."""

    gpu_percent: float = 0.0
    launched_s: float = math.inf


class _Group(NamedTuple):
    name: str
    gpu_type: str


def _tasks(rows: Iterable[tuple[int, Mapping[str, str]]]) -> dict[str, _Tasks]:
    """The GPUs and the launch of each job. A task without a number (one without GPUs) adds nothing."""
    tasks: dict[str, _Tasks] = {}
    for _, cells in rows:
        task = tasks.setdefault(cells["job_name"], _Tasks())
        task.gpu_percent += _number_or(cells["inst_num"], 1.0) * _number_or(cells["plan_gpu"], 0.0)
        task.launched_s = min(task.launched_s, _number_or(cells["start_time"], math.inf))
    return tasks


def _groups(rows: Iterable[tuple[int, Mapping[str, str]]]) -> dict[str, _Group]:
    return {cells["inst_id"]: _Group(cells["group"] or "", cells["gpu_type_spec"] or "") for _, cells in rows}


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
        submit_s = seconds(cells["start_time"], "start_time")
        end_s = checked_end_s(number(cells["end_time"], "end_time"), submit_s)
        if not task.launched_s < end_s:
            raise SkipRow("no task was launched before the job's end")
        group = groups.get(cells["inst_id"], _Group("", ""))
        return WorkloadJob(
            job_id=cells["job_name"],
            submit_time_s=submit_s,
            gpus=rounded_up(task.gpu_percent / 100.0),
            duration_s=end_s - max(submit_s, task.launched_s),
            user=cells["user"] or "",
            name=group.name,
            end_time_s=end_s,
            gpu_type=group.gpu_type,
            final_state=final_state,
        )

    return parse


def _parse_simulated(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    submit_s = seconds(cells["submit_time"], "submit_time")
    duration_s = positive_seconds(cells["duration"], "duration")
    instances = cells.get("num_inst") or cells.get("num_pod") or "1"
    return WorkloadJob(
        job_id=cells["job_id"],
        submit_time_s=submit_s,
        gpus=rounded_up(_number_or(cells["num_gpu"], 0.0) * number(instances, "num_inst")),
        duration_s=duration_s,
        user=cells["user"] or "",
        name=cells["group"] or "",
        end_time_s=submit_s + max(0.0, _number_or(cells.get("wait_time"), 0.0)) + duration_s,
        gpu_type=cells.get("gpu_type") or "",
    )


def _parse_pod(line: int, cells: Mapping[str, str]) -> WorkloadJob:
    if cells["pod_phase"] not in _POD_STATES:
        raise SkipRow(f"the pod never ran, its phase is {cells['pod_phase'] or 'empty'}")
    if number(cells["num_gpu"], "num_gpu") == 0.0:
        raise SkipRow("the job asks for no GPU")
    submit_s = seconds(cells["creation_time"], "creation_time")
    end_s = checked_end_s(number(cells["deletion_time"], "deletion_time"), submit_s)
    run_s = end_s - seconds(cells["scheduled_time"], "scheduled_time")
    if run_s <= 0.0:
        raise SkipRow("the run time is not positive")
    gpu_type = cells.get("gpu_spec") or ""
    return WorkloadJob(
        job_id=cells["name"],
        submit_time_s=submit_s,
        gpus=whole_gpus(cells["num_gpu"], "num_gpu"),
        duration_s=run_s,
        end_time_s=end_s,
        gpu_type="" if "|" in gpu_type else gpu_type,
        final_state=_POD_STATES[cells["pod_phase"]],
    )
