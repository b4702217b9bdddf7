"""Philly's own job log (``cluster_job_log``, CC BY 4.0): one JSON list of jobs, over 100 MB long, decoded job by job.

A job: status (Pass, Killed, Failed), vc, jobid, submitted_time, user, attempts [{start_time, end_time, detail [{ip, gpus}]}].
Source: the trace's README (msr-fiddle/philly-traces).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from service.domain.source_rows import SkipRow, timestamp_s
from service.sim.workloads.files import READ_ERRORS, WorkloadError, open_text
from service.sim.workloads.importers.rows import checked_end_s, collect
from service.sim.workloads.model import Workload, WorkloadJob

_FINAL_STATES: Final = {"Pass": "succeeded", "Killed": "killed", "Failed": "failed"}
_NO_SPACE: Final = re.compile(r"[^ \t\r\n]")
_DECODER: Final = json.JSONDecoder()


def import_philly_json(path: Path) -> Workload:
    """Read the log (also gzip). gpus = the most of any attempt, duration = the attempts' run times, end = the last one's.

    Jobs that were never started, still ran at the end of the log, or lack a time or GPUs are skipped.
    """
    return collect(path.name, _jobs(path), _parse)


def _elements(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list, decoded one at a time, with the line on which each begins."""
    line, at = 1, 0

    def move(to: int) -> str:
        """Skip to the next character that is no space, and return it; empty at the end of the text."""
        nonlocal line, at
        found = _NO_SPACE.search(text, to)
        to = found.start() if found else len(text)
        line += text.count("\n", at, to)
        at = to
        return text[at : at + 1]

    def fail(message: str) -> NoReturn:
        raise WorkloadError(message, file=str(path), line=line)

    if move(0) != "[":
        fail("the file must hold a JSON list of jobs")
    separator = "," if move(1 + at) != "]" else "]"
    while separator == ",":
        try:
            value, end = _DECODER.raw_decode(text, at)
        except ValueError as error:
            fail(f"not a JSON value: {error}")
        yield line, value
        separator = move(end)
        if separator not in (",", "]"):
            fail("a comma or the end of the list is missing")
        if separator == ",":
            move(1 + at)
    if move(1 + at):
        fail("there is text after the list")


def _jobs(path: Path) -> Iterator[tuple[int, Any]]:
    with open_text(path, errors="replace") as stream:
        try:
            yield from _elements(path, stream.read())
        except (*READ_ERRORS, RecursionError) as error:
            raise WorkloadError(str(error), file=str(path)) from error


def _parse(line: int, job: Any) -> WorkloadJob:
    if not isinstance(job, dict):
        raise SkipRow("the element is not an object")
    attempts = job.get("attempts")
    if not isinstance(attempts, list) or not attempts:
        raise SkipRow("the job has no attempt")
    submit_s = timestamp_s(job.get("submitted_time"), "submitted_time")
    runs = [_run_s(attempt) for attempt in attempts]
    gpus = max(_gpus(attempt) for attempt in attempts)
    if gpus < 1:
        raise SkipRow("no attempt names a GPU")
    duration_s = sum(end_s - start_s for start_s, end_s in runs)
    if duration_s <= 0.0:
        raise SkipRow("the run time is not positive")
    return WorkloadJob(
        job_id=_text(job.get("jobid")),
        submit_time_s=submit_s,
        gpus=gpus,
        duration_s=duration_s,
        user=_text(job.get("user")),
        project=_text(job.get("vc")),
        end_time_s=checked_end_s(runs[-1][1], submit_s),
        final_state=_FINAL_STATES.get(str(job.get("status")), ""),
    )


def _text(value: object) -> str:
    """Text that can be encoded: JSON may contain unpaired surrogates."""
    return str("" if value is None else value).encode("utf-8", "replace").decode()


def _run_s(attempt: Any) -> tuple[float, float]:
    if not isinstance(attempt, dict):
        raise SkipRow("an attempt is not an object")
    start_s = timestamp_s(attempt.get("start_time"), "start_time of an attempt")
    end_s = timestamp_s(attempt.get("end_time"), "end_time of an attempt")
    if end_s < start_s:
        raise SkipRow("an attempt ends before it starts")
    return start_s, end_s


def _gpus(attempt: dict[str, Any]) -> int:
    servers = attempt.get("detail")
    if not isinstance(servers, list):
        return 0
    lists = [server.get("gpus") for server in servers if isinstance(server, dict)]
    return sum(len(gpus) for gpus in lists if isinstance(gpus, list))
