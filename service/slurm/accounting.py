"""Slurm's accounting: jobs as ``sacct --parsable2`` prints them. The one definition of the fields and of what they mean.

One line a job: its name comes last, because it may hold bars. ``-X`` leaves out the steps. ``-D`` prints every run of a job that
was requeued, as a row each. The state of the row counts and not its exit code, which 22.05 gives as 0 for some jobs that failed.

Source: Slurm's manual page of sacct ("Job Accounting Fields", "Job State Codes"), and recorded answers of 22.05.8.
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Final

from service.domain.source_rows import SkipRow, number, timestamp_s, whole_gpus
from service.slurm.commands import SlurmUnreadable
from service.slurm.text import expand_hosts, parse_tres

FIELDS: Final = (
    *("JobID", "User", "Account", "Partition", "State", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("TimelimitRaw", "AllocTRES", "ReqTRES", "NNodes", "NodeList", "Priority", "JobName"),
)
REQUIRED: Final = ("JobID", "State", "Submit", "End")
GPU_FIELDS: Final = ("AllocTRES", "ReqTRES")
"""Where the GPUs of a job stand; the first that names any counts. Tracked resources are totals over all nodes."""
RUN_FIELDS: Final = ("ElapsedRaw", "Elapsed", "Start")

FINAL_STATES: Final = {
    "COMPLETED": "succeeded",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "CANCELLED": "killed",
    "TIMEOUT": "killed",
    "DEADLINE": "killed",
    "PREEMPTED": "killed",
    "REVOKED": "killed",
}
"""Slurm's states of a job that has ended -> ``final_state`` of a workload."""
_CUT_STATES: Final = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
"""States of a run after which Slurm may run the same job again."""
_DURATION: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_UNITS: Final = {"K": 1024, "M": 1024**2}
_UNKNOWN: Final = frozenset({"", "Unknown", "None"})
_NO_NODES: Final = frozenset({"", "None assigned", "None", "(null)"})


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """One run of a job, one task of an array, or one component of a heterogeneous job, in Unix seconds.

    ``id`` is Slurm's text: ``123``, ``123_4`` or ``123+0``. ``state`` is one word. ``gpus`` are those of all nodes, 0 for none;
    ``gpu_type`` is set where exactly one is named. ``run_s`` is the time in which it ran, 0 if it never did.
    ``time_limit_s`` None: no limit, or the partition's.
    """

    id: str
    state: str
    submit_s: float
    eligible_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    run_s: float = 0.0
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    gpus: int = 0
    gpu_type: str = ""
    time_limit_s: float | None = None
    node_count: int = 0
    nodes: tuple[str, ...] = ()
    priority: int | None = None

    @property
    def final_state(self) -> str | None:
        """``succeeded``, ``failed`` or ``killed``; None for a run that has not ended, or after which the job was requeued."""
        return FINAL_STATES.get(self.state)

    @property
    def has_ended(self) -> bool:
        """Whether this run is over; the job may have been requeued afterwards."""
        return self.end_s is not None and (self.state in FINAL_STATES or self.state in _CUT_STATES)

    @property
    def waits_from_s(self) -> float:
        """When it could start: not before its submission, its begin time and the end of the jobs that it depends on."""
        return self.submit_s if self.eligible_s is None else max(self.submit_s, self.eligible_s)

    def continues(self, earlier: "AccountedJob") -> bool:
        """Whether this row is the next run of the job of an ``earlier`` row."""
        return (
            self.id == earlier.id
            and (self.name, self.user) == (earlier.name, earlier.user)
            and earlier.state in _CUT_STATES
            and earlier.end_s is not None
            and (self.start_s is None or self.start_s >= earlier.end_s)
        )


def slurm_final_state(state: str | None) -> str:
    """``final_state`` of a Slurm state, also ``CANCELLED by 1000``; :class:`SkipRow` for a job that has not ended."""
    word = _word(state)
    if word not in FINAL_STATES:
        raise SkipRow(f"the job has not ended, its state is {word or 'empty'}")
    return FINAL_STATES[word]


def sacct_arguments(since_s: float, until_s: float) -> Sequence[str]:
    """Arguments of ``sacct`` for all runs, of all users, that were pending or running between two instants or ended there."""
    return (
        *("--allusers", "--allocations", "--duplicates", "--parsable2"),
        *("--starttime", _sacct_time(since_s), "--endtime", _sacct_time(until_s), "--format", ",".join(FIELDS)),
    )


def _sacct_time(at_s: float) -> str:
    return f"uts{int(at_s)}"


def answered_rows(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The rows of an answer of ``sacct`` with these fields: the number of the line, and the cells by name.

    Raises :class:`SlurmUnreadable` for an answer without them.
    """
    # A job's name may hold a carriage return, at which the reader would give up the whole answer.
    reader = csv.DictReader(io.StringIO(text.replace("\r", " ")), delimiter="|", quoting=csv.QUOTE_NONE)
    try:
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise SlurmUnreadable(f"sacct wrote no table of the columns that were asked for: {text[:80]!r}")
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise SlurmUnreadable(f"sacct, line {reader.line_num + 1}: {error}") from error


def parse_row(cells: Mapping[str, str]) -> AccountedJob:
    """A row from its cells by name, in any state. Raises :class:`SkipRow` for a step of a job and for a damaged row.

    :data:`REQUIRED` columns and one of :data:`RUN_FIELDS` must be there. A row of :class:`csv.DictReader` with more cells than
    the header, or fewer, has them under None, or None in its last columns.
    """
    name = _name(cells)
    if "." in cells["JobID"]:
        raise SkipRow("a step of a job")
    state = _word(cells["State"])
    submit_s = _moment_s(cells, "Submit")
    if submit_s is None:
        raise SkipRow("Submit is not a date and time")
    end_s = _moment_s(cells, "End")
    if end_s is None and state in FINAL_STATES:
        raise SkipRow("End is not a date and time")
    gpus, gpu_type = _gpus(cells)
    run_s, nodes = _run_s(cells), _nodes(cells)
    # 22.05 gives a job that was cancelled before it started its end, or None, as its start.
    never_ran = run_s == 0.0 and not nodes and "NodeList" in cells
    return AccountedJob(
        id=cells["JobID"],
        state=state,
        submit_s=submit_s,
        eligible_s=_moment_s(cells, "Eligible"),
        start_s=None if never_ran else _moment_s(cells, "Start"),
        end_s=end_s,
        run_s=run_s,
        name=name,
        user=_text(cells, "User"),
        account=_text(cells, "Account"),
        partition=_text(cells, "Partition"),
        gpus=gpus,
        gpu_type=gpu_type,
        time_limit_s=_time_limit_s(cells),
        node_count=_count(cells, "NNodes") or 0,
        nodes=nodes,
        priority=_count(cells, "Priority"),
    )


def _name(cells: Mapping[str, str]) -> str:
    """The job's name, whose bars have made cells of their own where it is the last column."""
    names = [column for column in cells if column is not None]
    more = cells.get(None)  # type: ignore[call-overload]
    if more is not None and names[-1] == "JobName":
        return "|".join((cells["JobName"], *more))
    if more is not None or None in cells.values():
        raise SkipRow("the row has not as many cells as the header (a job's name may hold a bar)")
    return _text(cells, "JobName")


def _word(state: str | None) -> str:
    return (state or "").split(" ")[0].rstrip("+")


def _text(cells: Mapping[str, str], column: str) -> str:
    cell = cells.get(column, "")
    return "" if cell in _UNKNOWN else intern(cell)


def _gpus(cells: Mapping[str, str]) -> tuple[int, str]:
    """GPUs and, where exactly one is named, their type: ``billing=8,gres/gpu:a100=4,gres/gpu=4,node=1``; (0, "") for none."""
    for column in GPU_FIELDS:
        counts = {}
        for resource, cell in parse_tres(cells.get(column)).items():
            kind, _, gpu_type = resource.partition(":")
            if kind == "gres/gpu" and cell:
                counts[gpu_type] = _whole(cell, column)
        types = sorted(counts.keys() - {""})
        # The entry without a type, where there is one, is the sum of the others.
        gpus = counts[""] if "" in counts else sum(counts.values())
        if gpus > 0:
            return gpus, intern(types[0]) if len(types) == 1 else ""
    return 0, ""


def _whole(cell: str, column: str) -> int:
    """A whole number; without ``--noconvert`` sacct writes large ones with a unit (``1K`` is 1024)."""
    factor = _UNITS.get(cell[-1:].upper(), 1)
    return whole_gpus(str(factor * number(cell[:-1] if factor > 1 else cell, column)), column)


def _count(cells: Mapping[str, str], column: str) -> int | None:
    cell = cells.get(column, "")
    return int(cell) if cell.isascii() and cell.isdecimal() else None


def _moment_s(cells: Mapping[str, str], column: str) -> float | None:
    """Unix seconds; an ISO date is UTC where it names no zone. None where the job has not come to it."""
    cell = cells.get(column, "")
    if cell in _UNKNOWN:
        return None
    return number(cell, column) if cell.isdecimal() else timestamp_s(cell, column)


def _run_s(cells: Mapping[str, str]) -> float:
    """From the first of :data:`RUN_FIELDS` with a value; 0 for a job that never ran."""
    if cells.get("ElapsedRaw"):
        column, run_s = "ElapsedRaw", number(cells["ElapsedRaw"], "ElapsedRaw")
    elif cells.get("Elapsed"):
        column, run_s = "Elapsed", _duration_s(cells["Elapsed"])
    elif "Start" not in cells:
        raise SkipRow("the run time is empty")
    else:
        start_s, end_s = _moment_s(cells, "Start"), _moment_s(cells, "End")
        column, run_s = "End - Start", 0.0 if start_s is None or end_s is None else end_s - start_s
    if not run_s >= 0.0:
        raise SkipRow(f"{column} is not a time of at least 0 s")
    return run_s


def _duration_s(cell: str) -> float:
    """Seconds of ``[days-][hours:]minutes:seconds``; NaN for anything else."""
    found = _DURATION.fullmatch(cell)
    if found is None:
        return math.nan
    days, hours, minutes, seconds = (float(part or 0.0) for part in found.groups())
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds


def _time_limit_s(cells: Mapping[str, str]) -> float | None:
    """The limit: TimelimitRaw is in minutes. None where there is none (UNLIMITED) or it is the partition's."""
    raw = cells.get("TimelimitRaw", "")
    limit_s = 60.0 * float(raw) if raw.isdecimal() else _duration_s(cells.get("Timelimit", ""))
    return limit_s if limit_s > 0.0 else None


def _nodes(cells: Mapping[str, str]) -> tuple[str, ...]:
    cell = cells.get("NodeList", "")
    if cell in _NO_NODES:
        return ()
    try:
        return tuple(intern(name) for name in expand_hosts(cell))
    except SlurmUnreadable as error:
        raise SkipRow(f"NodeList: {error}") from error
