"""Shows the jobs of the demo: a live table on a terminal, else a line for every change."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from service.cli.job_tables import amount, interval, total
from service.cli.output import Column, printable, rich_table
from service.client import TERMINAL_STATES, Client

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument


POLL_S = 0.4

_COLUMNS: tuple[Column[JobDocument], ...] = (
    Column("JOB", lambda job: str(job["id"]), right=True),
    Column("NAME", lambda job: job["name"], long=True),
    Column("GPUS", lambda job: str(job["gpus"]), right=True),
    Column("STATE", lambda job: job["state"]),
    Column("DONE", lambda job: amount(job["iterations_done"] or 0.0), right=True),
    Column("PREDICTED", lambda job: predicted(job), right=True),
    Column("[10-90%]", interval, right=True),
    Column("PREEMPTED", lambda job: str(job["preemptions"] or ""), right=True),
    Column("SERVERS", lambda job: ",".join(job["servers"]), long=True),
    Column("REASON", lambda job: job["reason"], long=True),
)


def predicted(job: JobDocument) -> str:
    """The middle of the prediction, in its unit."""
    prediction = job["prediction"]
    if prediction is None:
        return ""
    return total(prediction["p50"], prediction["unit"])


class Watch:
    """Follows jobs until a condition holds, and prints what changed. ``started_s`` is the monotonic time of second 0."""

    def __init__(self, client: Client, started_s: float, say: Callable[[str], None]) -> None:
        self._client = client
        self._started_s = started_s
        self._say = say
        self._seen: dict[int, JobDocument] = {}

    def until(self, done: Callable[[Sequence[JobDocument]], bool], deadline_s: float) -> list[JobDocument]:
        """The jobs, oldest first, once ``done`` holds or the deadline (monotonic) has passed."""
        with ExitStack() as stack:
            draw = self._table(stack) if sys.stdout.isatty() else self._lines
            while True:
                jobs = self._client.jobs.list()[::-1]
                draw(jobs)
                self._seen = {job["id"]: job for job in jobs}
                if done(jobs) or time.monotonic() >= deadline_s:
                    return jobs
                threading.Event().wait(POLL_S)

    def _table(self, stack: ExitStack) -> Callable[[Sequence[JobDocument]], None]:
        from rich.live import Live

        live = stack.enter_context(Live(auto_refresh=False, vertical_overflow="crop"))

        def draw(jobs: Sequence[JobDocument]) -> None:
            for job in jobs:
                for line in self._changes(job):
                    if "preempt" in line:
                        live.console.print(line, markup=False, highlight=False)
            table: Any = rich_table(_COLUMNS, jobs)
            live.update(table, refresh=True)

        return draw

    def _lines(self, jobs: Sequence[JobDocument]) -> None:
        for job in jobs:
            for line in self._changes(job):
                self._say(line)

    def _changes(self, job: JobDocument) -> list[str]:
        """The changes of a job since the last poll, one line each."""
        before = self._seen.get(job["id"])
        size = "1 GPU" if job["gpus"] == 1 else f"{job['gpus']} GPUs"
        head = f"{time.monotonic() - self._started_s:6.1f} s  job {job['id']:>2} {job['name']} ({size})"
        changes = []
        if job["prediction"] is not None and (before is None or before["prediction"] is None):
            changes.append(f"predicted {predicted(job)} [{interval(job)}]: {job['prediction']['source']}")
        preempted = before is not None and job["preemptions"] > before["preemptions"]
        if preempted:
            changes.append(
                f"preempted at iteration {amount(job['iterations_done'] or 0.0)}: a job with less work left comes first"
            )
        # Printed once only, because the reason changes with every start of another job.
        if job["state"] == "queued" and (preempted or (changes and job["attempts"] == 0)):
            changes.append(f"waits: {job['reason']}: {job['reason_sentence']}")
        if before is not None and job["attempts"] > before["attempts"]:
            again = f", resumes at iteration {amount(job['iterations_done'] or 0.0)}" if before["attempts"] else ""
            changes.append(f"starts on {', '.join(job['servers']) or 'its servers'}{again}")
        if job["state"] in TERMINAL_STATES and (before is None or before["state"] not in TERMINAL_STATES):
            changes.append(f"{job['state']}: {job['reason_sentence']}")
        return [printable(f"{head}: {text}") for text in changes]
