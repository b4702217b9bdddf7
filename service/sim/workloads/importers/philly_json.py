"""Philly's own job log (``cluster_job_log``, CC BY 4.0): one JSON list of jobs, over 100 MB long, read piece by piece.

A job: status (Pass, Killed, Failed), vc, jobid, submitted_time, user, attempts [{start_time, end_time, detail [{ip, gpus}]}].
Source: the trace's README (msr-fiddle/philly-traces).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from service.sim.workloads.files import READ_ERRORS, WorkloadError, open_text
from service.sim.workloads.importers.rows import SkipRow, checked_end_s, collect, timestamp_s
from service.sim.workloads.model import Workload, WorkloadJob

_PIECE_CHARACTERS: Final = 1 << 20
_JOB_CHARACTERS_MAX: Final = 16 << 20
"""A single job longer than this (the longest is well under 1 MB) means that the list is damaged."""
_FINAL_STATES: Final = {"Pass": "succeeded", "Killed": "killed", "Failed": "failed"}
_SPACE: Final = " \t\r\n"
_NO_SPACE: Final = re.compile(f"[^{_SPACE}]")
_AFTER_VALUE: Final = frozenset(",]" + _SPACE)
_DECODER: Final = json.JSONDecoder()


def import_philly_json(path: Path) -> Workload:
    """Read the log (also gzip). gpus = the most of any attempt, duration = the attempts' run times, end = the last one's.

    Jobs that were never started, still ran at the end of the log, or lack a time or GPUs are skipped.
    """
    return collect(path.name, _jobs(path), _parse)


class _List:
    """The elements of a JSON list in a stream, decoded one at a time, with the line on which each begins.

    ``_buffer`` from ``_at`` on has been read but not consumed.
    """

    def __init__(self, path: Path, stream: Any) -> None:
        self._path = path
        self._stream = stream
        self._buffer = ""
        self._at = 0
        self._line = 1

    def elements(self) -> Iterator[tuple[int, Any]]:
        if self._next_character() != "[":
            self._fail("the file must hold a JSON list of jobs")
        self._consume(1)
        if self._next_character() == "]":
            self._consume(1)
        else:
            yield from self._filled()
        if self._next_character():
            self._fail("there is text after the list")

    def _filled(self) -> Iterator[tuple[int, Any]]:
        separator = ","
        while separator == ",":
            self._next_character()
            value, end = self._decode()
            yield self._line, value
            self._consume(end - self._at)
            separator = self._next_character()
            if separator not in (",", "]"):
                self._fail("a comma or the end of the list is missing")
            self._consume(1)

    def _decode(self) -> tuple[Any, int]:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._buffer, self._at)
                problem = ""
            except ValueError as error:  # broken, or not read completely
                value, end, problem = None, 0, str(error)
            # A number at the end of the buffer may continue in the next piece.
            if not problem and self._buffer[end : end + 1] in _AFTER_VALUE:
                return value, end
            if len(self._buffer) - self._at > _JOB_CHARACTERS_MAX or not self._read():
                self._fail(f"not a JSON value: {problem or 'it is followed by something else'}")

    def _next_character(self) -> str:
        """The next character that is no space, now first in the buffer; empty at the end of the file."""
        while True:
            found = _NO_SPACE.search(self._buffer, self._at)
            self._consume((found.start() if found else len(self._buffer)) - self._at)
            if found or not self._read():
                return self._buffer[self._at : self._at + 1]

    def _consume(self, count: int) -> None:
        self._line += self._buffer.count("\n", self._at, self._at + count)
        self._at += count

    def _read(self) -> bool:
        """Append the next piece and drop what is consumed; for speed this happens here and not for each job."""
        piece = self._stream.read(_PIECE_CHARACTERS)
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _fail(self, message: str) -> NoReturn:
        raise WorkloadError(message, file=str(self._path), line=self._line)


def _jobs(path: Path) -> Iterator[tuple[int, Any]]:
    with open_text(path, errors="replace") as stream:
        try:
            yield from _List(path, stream).elements()
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
