"""``sooner job profile``: short runs of a program at three placements, and what they say about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic as monotonic_s
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from policies.model.job import PROFILE_LABEL
from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import given, seconds_option
from service.cli.output import JsonFlag, pause, print_json, printable
from service.cli.profile_report import Profiled, print_report, report_document
from service.cli.submit import body_of, complete, more_of, pairs
from service.client import TERMINAL_STATES, ApiError, Client, ClientError
from service.domain.counts import count_of
from service.profile.measure import Measured, Point, measured
from service.profile.stalls import Place, Run

if TYPE_CHECKING:
    from service.wire.cluster import ClusterDocument
    from service.wire.jobs import JobDocument

POLL_S: Final = 0.5
STOP_WAIT_S: Final = 120.0
"""Longest wait for a cancelled run to end, so that it does not disturb the next one."""
BACKSTOP_S: Final = 120.0
"""The walltime of a run is so much longer than the timeout: it ends the run if this command cannot."""
NAME_MAX: Final = 200
DROPPED: Final = frozenset(
    {
        "graph",
        "parallelism",
        "plan",
        "model",
        "topology",
        "servers",
        "gpus",
        "gpus_min",
        "gpus_max",
        "gpu_types",
        "array",
        "after",
    }
    | {"hold", "declared_iterations", "tensor_across_servers", "min_run_s"}
)
"""Keys of a job file that belong to the real run, not to a short one at a given placement."""
NO_PROGRESS: Final = (
    "job {job} ran {seconds:g} s and reported no progress: after each iteration, let the program append a line such as "
    '{{"iteration": 12}} to the file $SOONER_PROGRESS_FILE, or call report(12) of examples/sooner_progress.py'
)


@dataclass(frozen=True)
class Limits:
    """How much is measured."""

    iterations: Annotated[
        int,
        typer.Option("--iterations", "-n", min=1, max=1_000_000, help="Iterations to measure in each run, at least."),
    ] = 20
    warm_up: Annotated[
        int,
        typer.Option("--warm-up", min=0, max=1_000_000, help="First iterations of each run, which are not measured."),
    ] = 5
    window_s: Annotated[
        float,
        seconds_option("--window-s", "Measure each run for at least this long: reports are seen every few seconds."),
    ] = 20.0
    timeout_s: Annotated[
        float, seconds_option("--timeout-s", "Longest time of each run, from its start.", least_s=1.0)
    ] = 600.0


def profile_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE | -- COMMAND...", help="A job file (- = standard input), or a command."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the program's jobs: the speeds are stored for it.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", "-g", min=1, help="GPUs of the larger runs. Default: those of the largest server."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Project of the jobs.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable; repeatable.")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="Working directory. Default for a command: the current folder.")
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu-type", help="GPU type. Default: that of the largest server.")
    ] = None,
    launch: Annotated[
        str | None, typer.Option("--launch", help="server (one process per server) or gpu (one process per GPU).")
    ] = None,
    split_batch: Annotated[
        bool,
        typer.Option(
            "--split-batch", help="The GPUs divide a batch of fixed size. Default: each has a batch of its own."
        ),
    ] = False,
    as_json: JsonFlag = False,
    *,
    limits: Limits,
) -> None:
    """Measure a program for a few iterations on one GPU, on one server and on two servers, and say what stalls it.

    The runs are ordinary short jobs, one after the other; Ctrl-C cancels them. The program only has to report its progress.
    """
    options = given(
        name=name,
        gpus=gpus,
        project=project,
        gpu_type=gpu_type,
        launch=launch,
        env=pairs("--env", env),
        working_dir=str(working_dir.absolute()) if working_dir is not None else None,
    )
    read = body_of(arguments or [], None, options)
    asked = gpus if gpus is not None else read.get("gpus")
    body = complete(read, options)
    if "jobs" in body or body.get("array") is not None:
        fail("a profile is of one job: the file has several")
    if not isinstance(body.get("name"), str) or not isinstance(asked, int | None):
        fail("a job needs a name (--name NAME), and its gpus must be a whole number")
    with connect() as client:
        size = _size(
            client.cluster.show(), asked, body.get("gpu_type") or next(iter(body.get("gpu_types") or ()), None)
        )
        profiled = Profiler(client, body, size, limits).run(split_batch=split_batch)
    if as_json:
        print_json(report_document(profiled))
    else:
        print_report(profiled)


@dataclass(frozen=True, slots=True)
class Size:
    """GPUs of the larger runs, and their type. ``note`` says where the GPUs are not those that were asked for.

    ``whole``: GPUs of the real job, for which the job file states CPUs and memory; None = not known.
    """

    gpus: int
    gpu_type: str | None
    note: str = ""
    whole: int | None = None


def _size(cluster: ClusterDocument, gpus: int | None, gpu_type: str | None) -> Size:
    """At most the GPUs of the largest server that is up and has the type: all runs are on one type, to be comparable."""
    up = [server for server in cluster["servers"] if server["state"] == "up"]
    fitting = [server for server in up if gpu_type in (None, server["gpu_type"])] or up
    if not fitting:
        fail("no server is up", EXIT_FAILED)
    largest = max(fitting, key=lambda server: server["gpus"])
    most, kind = largest["gpus"], gpu_type or largest["gpu_type"]
    if gpus is None or gpus <= most:
        return Size(gpus or most, kind, whole=gpus)
    return Size(
        most,
        kind,
        f"The largest server has {count_of(most, 'GPU')}, so {most} {'is' if most == 1 else 'are'} profiled, not {gpus}.",
        gpus,
    )


@dataclass(slots=True)
class Watched:
    """What the command has seen of a run so far."""

    job: JobDocument
    running_since_s: float | None = None
    points: Sequence[Point] = ()
    found: Measured | None = None
    shown: tuple[str, str] | None = None


class Profiler:
    """Runs the jobs of one profile, one after the other, so that they do not disturb each other."""

    def __init__(self, client: Client, body: Mapping[str, Any], size: Size, limits: Limits) -> None:
        self._client = client
        self._body = body
        self._size = size
        self._limits = limits

    def run(self, *, split_batch: bool) -> Profiled:
        """All runs that the cluster can place. Ends the command if none could be measured."""
        gpus = self._size.gpus
        profiled = Profiled(str(self._body["name"]), self._size.gpu_type, split_batch, note=self._size.note)
        places = [(Place.GPU, 1, 1)] + ([(Place.SERVER, gpus, 1), (Place.SERVERS, gpus, 2)] if gpus > 1 else [])
        for place, count, servers in places:
            if count % servers:
                profiled.skipped[place] = f"{count} GPUs cannot be divided by {servers} servers"
                continue
            self._one(profiled, place, count, servers)
        if not profiled.runs:
            fail("no run could be measured: " + "; ".join(profiled.skipped.values()), EXIT_FAILED)
        return profiled

    def _one(self, profiled: Profiled, place: Place, gpus: int, servers: int) -> None:
        try:
            job = self._client.jobs.submit(self._job(place, gpus, servers))
        except ApiError as error:
            if error.kind != "never-fits":
                raise
            profiled.skipped[place] = "; ".join(fault["detail"] for fault in error.errors)
            _say(f"{_label(place, gpus)}: skipped: {profiled.skipped[place]}")
            return
        watched = Watched(job)
        with self._cancelled_at_the_end(watched):
            self._watch(watched, _label(place, gpus))
        found = watched.found
        if found is None:
            profiled.skipped[place] = self._why_not(watched)
            _say(f"{_label(place, gpus)}: not measured: {profiled.skipped[place]}")
            return
        if found.iterations < self._limits.iterations:
            made = f"{found.iterations:g} iteration{'' if found.iterations == 1 else 's'}"
            _say(f"warning: job {job['id']} made {made}, fewer than {self._limits.iterations}")
        profiled.runs[place] = Run(place, gpus, servers, found)
        profiled.jobs[place] = job["id"]

    def _job(self, place: Place, gpus: int, servers: int) -> dict[str, Any]:
        """The body of a run. It counts as the program's own by its recurrence key, and is never started twice."""
        kept = {key: value for key, value in self._body.items() if key not in DROPPED}
        name, suffix = str(self._body["name"]), f": profile, {_label(place, gpus)}"
        labels = {**(kept.get("labels") or {}), PROFILE_LABEL: str(self._limits.warm_up)}
        return {
            **kept,
            "name": name[: NAME_MAX - len(suffix)] + suffix,
            "recurrence_key": kept.get("recurrence_key") or name,
            "gpus": gpus,
            "servers": servers,
            "gpu_type": self._size.gpu_type,
            "walltime_s": self._limits.timeout_s + BACKSTOP_S,
            "max_retries": 0,
            "labels": labels,
            **self._needs(kept, gpus),
        }

    def _needs(self, kept: Mapping[str, Any], gpus: int) -> dict[str, Any]:
        """CPUs and memory of a run: each GPU has as much as in the real job, for which the keys state the sum."""
        whole = self._size.whole
        found: dict[str, Any] = {}
        if whole is not None and isinstance(cpus := kept.get("cpus"), int):
            found["cpus"] = math.ceil(cpus * gpus / whole)
        if whole is not None and isinstance(memory_gib := kept.get("memory_gib"), int | float):
            found["memory_gib"] = memory_gib * gpus / whole
        return found

    def _watch(self, watched: Watched, label: str) -> None:
        """Until enough was measured, the job has ended, or its time is over."""
        limits, job_id = self._limits, watched.job["id"]
        while True:
            watched.job = self._client.jobs.show(job_id)
            _show_change(watched, label)
            state = watched.job["state"]
            if state in ("running", *TERMINAL_STATES):
                watched.points = _newest_attempt(self._client.jobs.progress(job_id))
                watched.found = measured(watched.points, self._begun_at(watched.job) + limits.warm_up)
                if _enough(watched.found, limits) or state in TERMINAL_STATES:
                    return
            now_s = monotonic_s()
            if state != "running":
                watched.running_since_s = None
            elif watched.running_since_s is None:
                watched.running_since_s = now_s
            elif now_s - watched.running_since_s >= limits.timeout_s:
                if not watched.points:
                    fail(NO_PROGRESS.format(job=job_id, seconds=limits.timeout_s), EXIT_FAILED)
                return
            pause(POLL_S)

    def _begun_at(self, job: JobDocument) -> float:
        """The iteration at which the newest attempt began: after a preemption there is a warm-up again."""
        return self._client.jobs.attempts(job["id"])[-1]["resume_iteration"] if job["attempts"] > 1 else 0.0

    @contextmanager
    def _cancelled_at_the_end(self, watched: Watched) -> Iterator[None]:
        """Cancel the run however the block ends, Ctrl-C included, and wait until it has ended where nothing went wrong."""
        job_id = watched.job["id"]
        try:
            yield
        except BaseException:
            try:
                self._cancel(job_id)
            except ClientError:
                _say(f"job {job_id} could not be cancelled: when the service answers, run: sooner job cancel {job_id}")
            else:
                _say(f"job {job_id} is cancelled")
            raise
        if watched.job["state"] in TERMINAL_STATES:
            return
        self._cancel(job_id)
        deadline_s = monotonic_s() + STOP_WAIT_S
        while self._client.jobs.show(job_id)["state"] not in TERMINAL_STATES:
            if monotonic_s() >= deadline_s:
                fail(f"job {job_id} is cancelled, but has not ended after {STOP_WAIT_S:g} s", EXIT_FAILED)
            pause(POLL_S)

    def _cancel(self, job_id: int) -> None:
        """A job that ended by itself meanwhile is none to cancel."""
        try:
            self._client.jobs.cancel(job_id)
        except ApiError:
            if self._client.jobs.show(job_id)["state"] not in TERMINAL_STATES:
                raise

    def _why_not(self, watched: Watched) -> str:
        """Why a run gave no speed."""
        job, limits = watched.job, self._limits
        done = max((point.iteration for point in watched.points), default=0.0)
        if job["state"] == "failed":
            code = "" if job["exit_code"] is None else f" with exit code {job['exit_code']}"
            return f"job {job['id']} failed{code}: {job['reason_sentence']} ({more_of(job)})"
        if job["state"] == "cancelled":
            return f"job {job['id']} was cancelled"
        if job["state"] == "succeeded" and not watched.points:
            return f"job {job['id']} ended without a progress report"
        what = "ended" if job["state"] == "succeeded" else f"was stopped after {limits.timeout_s:.15g} s"
        return (
            f"job {job['id']} {what} at iteration {done:g}; the warm-up is {count_of(limits.warm_up, 'iteration')}, "
            "and two reports must follow it"
        )


def _enough(found: Measured | None, limits: Limits) -> bool:
    return found is not None and found.iterations >= limits.iterations and found.window_s >= limits.window_s


def _newest_attempt(reports: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The points of the newest attempt, oldest first."""
    return [
        Point(datetime.fromisoformat(each["at"]).timestamp(), each["iteration"], each.get("input_s"))
        for each in reports
        if each["attempt_id"] == reports[-1]["attempt_id"]
    ]


def _show_change(watched: Watched, label: str) -> None:
    job = watched.job
    if (job["state"], job["reason"]) != watched.shown:
        watched.shown = job["state"], job["reason"]
        where = f" on {', '.join(job['servers'])}" if job["servers"] else ""
        _say(f"{label}: job {job['id']} {job['state']}{where}: {job['reason_sentence']}")


def _label(place: Place, gpus: int) -> str:
    counted = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    return {Place.GPU: "1 GPU", Place.SERVER: f"{counted} on 1 server", Place.SERVERS: f"{counted} on 2 servers"}[place]


def _say(line: str) -> None:
    typer.echo(printable(line), err=True)
