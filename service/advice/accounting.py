"""The past jobs of a Slurm cluster, read from its accounting step by step and kept in a file.

Each step asks ``sacct`` for one window of time and stores the rows of ended jobs with the end of the window in one transaction,
so that a crash at any instant repeats at most one step. Rows are recognised by job and submission: reading one twice changes
nothing. At most one window's answer is in memory.
"""

import csv
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from service.domain.source_rows import SkipRow
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers.rows import csv_rows
from service.slurm.accounting import (
    GPU_FIELDS,
    REQUIRED,
    RUN_FIELDS,
    AccountedJob,
    answered_rows,
    parse_row,
    sacct_arguments,
)
from service.slurm.commands import SlurmCommands, SlurmError, SlurmRefused, SlurmUnreadable

DAY_S: Final = 86_400.0
HISTORY_S: Final = 56 * DAY_S
"""How far back the past is read and kept."""
WINDOW_S: Final = DAY_S
WINDOW_MIN_S: Final = 60.0
"""A window with too large an answer is halved, but not below this."""
OVERLAP_S: Final = 3600.0
"""How far a step goes back before the last end that was seen: ends of one instant may be stored one after another."""
LATE_MAX_S: Final = 7 * DAY_S
"""While Slurm's database is away, its controller keeps the ends and sends them later. This far back they are expected."""
JOBS_MAX: Final = 200_000
"""Jobs that are kept: the newest ended."""
TIMEOUT_S: Final = 120.0
"""For one answer of sacct. A day of a large cluster takes its database seconds."""

_FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS job (
    id TEXT NOT NULL, submit_s REAL NOT NULL, end_s REAL NOT NULL, row TEXT NOT NULL, PRIMARY KEY (id, submit_s)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_end ON job (end_s);
CREATE TABLE IF NOT EXISTS progress (
    one INTEGER PRIMARY KEY CHECK (one = 1), read_until_s REAL NOT NULL, last_end_s REAL NOT NULL
);
"""
_FIELDS: Final = tuple(each.name for each in fields(AccountedJob))


class AccountingError(Exception):
    """The past cannot be read: one line that says why and what helps."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an update read. ``ended``: rows of ended jobs with GPUs, ``new``: those that the file did not have."""

    ended: int = 0
    new: int = 0


class AccountingStore:
    """The file. Not thread-safe; a second process that reads at the same time is harmless. Close it after use."""

    def __init__(self, path: Path) -> None:
        """Open or create it, for its owner alone. Raises :class:`AccountingError`."""
        self._path = path
        try:
            path.touch(mode=0o600)
            self._database = sqlite3.connect(path, timeout=30.0, isolation_level=None)
            with closing(self._database.execute("PRAGMA user_version")) as found:
                version = int(found.fetchone()[0])
            if version not in (0, _FORMAT):
                raise AccountingError(f"{path}: format {version} is unknown (this version reads {_FORMAT})")
            self._database.executescript(f"{_SCHEMA} PRAGMA user_version = {_FORMAT};")
        except (OSError, sqlite3.Error) as error:
            raise self._damaged(error) from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def update(self, commands: SlurmCommands, now_s: float, *, history_s: float = HISTORY_S) -> Step:
        """Read what has ended since the last update. Raises :class:`AccountingError`; the windows before it are kept."""
        total = Step()
        window_s = WINDOW_S
        at_s = self._next_s(now_s - history_s)
        while at_s < now_s:
            until_s = min(at_s + window_s, now_s)
            try:
                text = commands.run("sacct", *sacct_arguments(at_s, until_s), timeout_s=TIMEOUT_S)
                step = self._keep(answered_rows(text), until_s)
            except SlurmUnreadable as error:
                if until_s - at_s <= WINDOW_MIN_S:
                    raise AccountingError(str(error)) from error
                window_s = (until_s - at_s) / 2.0
                continue
            except SlurmError as error:
                raise AccountingError(_advice(error)) from error
            except sqlite3.Error as error:
                raise self._damaged(error) from error
            total = Step(total.ended + step.ended, total.new + step.new)
            at_s = until_s
        self._prune(now_s - history_s)
        return total

    def jobs(self, since_s: float = 0.0) -> list[AccountedJob]:
        """The jobs that ended at ``since_s`` or later, in order of submission; the runs of a requeued job are one job."""
        found = "SELECT row FROM job WHERE end_s >= ? ORDER BY submit_s, id"
        try:
            with closing(self._database.execute(found, (since_s,))) as rows:
                return whole_jobs(_from_json(row) for (row,) in rows)
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._damaged(error) from error

    def _next_s(self, oldest_s: float) -> float:
        """Where to go on: before the last end that was seen, as later ones may not have reached the database."""
        with closing(self._database.execute("SELECT read_until_s, last_end_s FROM progress")) as rows:
            found = rows.fetchone()
        if found is None:
            return oldest_s
        read_until_s, last_end_s = float(found[0]), float(found[1])
        known_s = max(min(read_until_s, last_end_s), read_until_s - LATE_MAX_S) - OVERLAP_S
        return max(oldest_s, known_s)

    def _keep(self, rows: Iterable[tuple[int, Any]], until_s: float) -> Step:
        """Store a window's rows and that it has been read, both or neither."""
        ended = new = 0
        last_end_s = 0.0
        self._database.execute("BEGIN IMMEDIATE")
        try:
            for _, cells in rows:
                try:
                    job = parse_row(cells)
                except SkipRow:
                    continue
                if not job.has_ended:
                    continue
                assert job.end_s is not None
                # Also the end of a job without GPUs says how far the accounting reaches.
                last_end_s = max(last_end_s, job.end_s)
                if job.gpus:
                    ended += 1
                    new += self._insert(job)
            self._database.execute(
                "INSERT INTO progress VALUES (1, ?, ?) ON CONFLICT DO UPDATE SET"
                " read_until_s = max(read_until_s, excluded.read_until_s), last_end_s = max(last_end_s, excluded.last_end_s)",
                (until_s, last_end_s),
            )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        return Step(ended, new)

    def _insert(self, job: AccountedJob) -> int:
        """1 for a job that was not there. One that was has its newest row: a job may end, and be requeued later."""
        values = (job.id, job.submit_s, job.end_s, json.dumps([asdict(job)[name] for name in _FIELDS]))
        before = self._database.execute("SELECT 1 FROM job WHERE id = ? AND submit_s = ?", values[:2]).fetchone()
        self._database.execute("INSERT OR REPLACE INTO job VALUES (?, ?, ?, ?)", values)
        return int(before is None)

    def _prune(self, oldest_s: float) -> None:
        newest = "SELECT end_s FROM job ORDER BY end_s DESC LIMIT 1 OFFSET ?"
        over = self._database.execute(newest, (JOBS_MAX,)).fetchone()
        self._database.execute("DELETE FROM job WHERE end_s < ?", (oldest_s,))
        if over is not None:
            self._database.execute("DELETE FROM job WHERE end_s <= ?", over)

    def _damaged(self, error: Exception) -> AccountingError:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return AccountingError(f"{self._path}: {text}; a damaged file may be removed: it is read from sacct again")


def read_file(path: Path) -> tuple[list[AccountedJob], Counter[str]]:
    """The jobs in a file with the output of ``sacct`` (also gzip), as :meth:`AccountingStore.jobs`, and what is left out.

    :mod:`service.slurm.accounting` has the command that makes it. Raises :class:`AccountingError` for a file that cannot be read.
    """
    left_out: Counter[str] = Counter()
    try:
        rows = csv_rows(path, REQUIRED, one_of=(GPU_FIELDS, RUN_FIELDS), delimiter="|", quoting=csv.QUOTE_NONE)
        return whole_jobs(job for _, cells in rows if (job := _ended(cells, left_out)) is not None), left_out
    except WorkloadError as error:
        raise AccountingError(str(error)) from error


def _ended(cells: Any, left_out: Counter[str]) -> AccountedJob | None:
    """The row as a job that has ended and has GPUs."""
    try:
        job = parse_row(cells)
    except SkipRow as reason:
        left_out[str(reason)] += 1
        return None
    if not job.has_ended:
        return None
    if not job.gpus:
        left_out["the job has no GPU"] += 1
        return None
    return job


def _from_json(row: str) -> AccountedJob:
    values = dict(zip(_FIELDS, json.loads(row), strict=True))
    return AccountedJob(**{**values, "nodes": tuple(values["nodes"])})


def whole_jobs(rows: Iterable[AccountedJob]) -> list[AccountedJob]:
    """Jobs from the rows of their runs, in order of submission.

    Where Slurm ran a job again, after a requeue or a failure of a node, the last run says how long it takes; the job has waited
    since its first submission.
    """
    jobs: dict[str, AccountedJob] = {}
    done: list[AccountedJob] = []
    for row in sorted(rows, key=lambda row: (row.submit_s, row.id)):
        earlier = jobs.pop(row.id, None)
        if earlier is not None and row.continues(earlier):
            row = replace(row, submit_s=earlier.submit_s, eligible_s=earlier.eligible_s)
        elif earlier is not None:
            done.append(earlier)
        jobs[row.id] = row
    return sorted((*done, *jobs.values()), key=lambda row: (row.submit_s, row.id))


def _advice(error: SlurmError) -> str:
    if isinstance(error, SlurmRefused) and "disabled" in str(error):
        return f"{error}; this Slurm has no accounting database (slurmdbd), so give a file with the output of sacct"
    return str(error)
