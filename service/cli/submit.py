"""``sooner job submit`` and ``sooner job wait``."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from policies.model.reasons import BEFORE_THE_PROGRAM
from service.cli.connect import connect, has_key
from service.cli.fail import EXIT_FAILED, fail
from service.cli.forecast import show_plans
from service.cli.job_file import read_job_file
from service.cli.job_tables import JOBS
from service.cli.jobs import jobs_answer
from service.cli.options import above_zero, given, seconds_option
from service.cli.outages import Outages
from service.cli.output import OnceStyle, Style, chosen, pause, printable, show
from service.cli.plan_words import plan_lines
from service.cli.selectors import SelectorArgument, select
from service.cli.short_forms import array_of, gpu_types_of, topology_of, volume_of, words_of
from service.client import TERMINAL_STATES, UNFINISHED_STATES, Client, ClientError
from service.client.noun import PAGE_SIZE
from service.domain.duration import PERIOD_S_MIN

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument

Read = TypeVar("Read")

_TYPES = frozenset({"gpu_type", "gpu_types"})
"""Either of them, as an option, replaces both of the file."""

WAIT_POLL_S = 0.5
LOOK_SINGLY_MAX = 20
"""Jobs that are waited for by a request each; above it a page of the list costs less, and in a longer list each of its pages as
much as so many jobs."""
WaitTimeoutOption = Annotated[
    float | None, seconds_option("--timeout-s", "Stop waiting after this long (exit code 1).")
]


def submit_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE | -- COMMAND...", help="A YAML or JSON file (- = standard input), or a command."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name. Runs with the same name are predicted from each other.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=1, help="Number of GPUs.")] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", help="The command as one string. It is split into words, without a shell."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Project of the job.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="User of the job. Default: your login name.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help="Environment variable of the job; repeatable."),
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option(
            "--secret-env",
            metavar="NAME",
            help="Copy this variable from your environment; its value is never shown. Repeatable.",
        ),
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option("--working-dir", help="Working directory. Default for a command: the current folder.")
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option("--gpu-type", help="GPU type, or several separated by commas, the preferred type first."),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option("--cpus", min=1, help="CPUs of the whole job, shared over its servers by its GPUs there."),
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option("--memory-gib", callback=above_zero, help="Memory of the whole job, shared in the same way."),
    ] = None,
    gpu_memory_gib: Annotated[
        float | None, typer.Option("--gpu-memory-gib", callback=above_zero, help="Minimum memory of each GPU.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Container image in which the command runs.")] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(
            "--volume", metavar="SOURCE[:TARGET[:ro]]", help="Folder or file that the container sees; repeatable."
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--declared-iterations",
            min=1,
            help="Iterations that you expect. Weighted by how accurate your earlier declarations were.",
        ),
    ] = None,
    walltime_s: Annotated[
        float | None, seconds_option("--walltime-s", "Stop the job after this running time.", PERIOD_S_MIN)
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Priority; larger comes first.")] = None,
    checkpoint_period_s: Annotated[
        float | None, seconds_option("--checkpoint-period-s", "Time between the program's checkpoints.", PERIOD_S_MIN)
    ] = None,
    signal: Annotated[
        str | None, typer.Option("--preemption-signal", help="Signal that warns the program before a preemption.")
    ] = None,
    grace_s: Annotated[
        float | None, seconds_option("--grace-s", "Time between the warning signal and SIGTERM.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", help="All GPUs in one 'server' or 'rack' (required), or 'server?' or 'rack?' (preferred)."
        ),
    ] = None,
    min_run_s: Annotated[
        float | None,
        seconds_option("--min-run-s", "Minimum running time of each attempt before a preemption."),
    ] = None,
    max_retries: Annotated[int | None, typer.Option("--max-retries", min=0, help="Retries after failures.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="JOBS", help="Start after these jobs have succeeded.")
    ] = None,
    after_any: Annotated[
        str | None,
        typer.Option("--after-any", metavar="JOBS", help="Start after these jobs have ended, successfully or not."),
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Label; repeatable.")] = None,
    array: Annotated[
        str | None,
        typer.Option(
            "--array",
            metavar="INDICES",
            help="Submit one job per index: 0-99, or 1,5,20-30; 0-99%10: ten at a time.",
        ),
    ] = None,
    launch: Annotated[
        str | None, typer.Option("--launch", help="server (one process per server) or gpu (one process per GPU).")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Submit the job held.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, predict and forecast the job without submitting it.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job has ended, and print each change of its state.")
    ] = False,
    timeout_s: WaitTimeoutOption = None,
    *,
    how: OnceStyle,
) -> None:
    """Submit jobs from a file, or one job from a command. Options override the file's keys."""
    if dry_run and wait:
        fail("--dry-run and --wait exclude each other")
    if not dry_run:
        chosen(JOBS, how)
    options = given(
        name=name,
        gpus=gpus,
        project=project,
        user=user,
        **(gpu_types_of(gpu_type) if gpu_type is not None else {}),
        declared_iterations=iterations,
        walltime_s=walltime_s,
        priority=priority,
        checkpoint_period_s=checkpoint_period_s,
        topology=_read("--topology", topology_of, topology),
        min_run_s=min_run_s,
        max_retries=max_retries,
        launch=launch,
        working_dir=str(working_dir.absolute()) if working_dir is not None else None,
        env=pairs("--env", env) if not secret_env else {**(pairs("--env", env) or {}), **_own(secret_env)},
        secret_env=secret_env,
        labels=pairs("--label", label),
        preemption=_preemption(signal, grace_s),
        array=_read("--array", array_of, array),
        cpus=cpus,
        memory_gib=memory_gib,
        gpu_memory_gib=gpu_memory_gib,
        image=image,
        volumes=[_read("--volume", volume_of, each) for each in volume] if volume else None,
        hold=True if hold else None,
    )
    body = body_of(arguments or [], command, options)
    with connect() as client:
        if after is not None or after_any is not None:
            needed = [{"job": job, "when": "any"} for job in select(client, [after_any])] if after_any else []
            options["after"] = [*(select(client, [after]) if after else []), *needed]
        if dry_run:
            show_plans(client.jobs.plan(complete(body, options)), how)
            return
        whole = complete(body, options)
        jobs = client.jobs.submit_many(whole)
        _print_plans(jobs)
        _warn_of_failures(client, whole)
        if wait:
            _print_submitted(jobs)
            _wait_and_end(client, [job["id"] for job in jobs], timeout_s, jobs, how)
        else:
            _show(jobs, how)


def wait_command(jobs: SelectorArgument, timeout_s: WaitTimeoutOption = None, *, how: OnceStyle) -> None:
    """Wait until jobs have ended, also while the service restarts. Exit code 0 if all succeeded, else 1."""
    chosen(JOBS, how)
    with connect() as client:
        _wait_and_end(client, select(client, jobs, unfinished=True), timeout_s, (), how)


def _read(option: str, reader: Callable[[str], Read], text: str | None) -> Read | None:
    """The value of an option. Ends the command for one that cannot be read."""
    if text is None:
        return None
    try:
        return reader(text)
    except ValueError as error:
        fail(f"{option}: {error}")


def _show(jobs: Sequence[JobDocument], how: Style) -> None:
    show(JOBS, lambda: jobs_answer(jobs), how)


def _print_submitted(jobs: Sequence[JobDocument]) -> None:
    for job in jobs:
        typer.echo(f"submitted job {job['id']}", err=True)


def _print_plans(jobs: Sequence[JobDocument]) -> None:
    for job in jobs:
        for name, text in plan_lines(job):
            typer.echo(printable(f"job {job['id']}: {name}: {text}"), err=True)


def _warn_of_failures(client: Client, body: Mapping[str, Any]) -> None:
    """Name jobs whose success is waited for in vain, among the first :data:`LOOK_SINGLY_MAX`."""
    # The jobs are submitted, whether or not more can be said of them.
    with suppress(ClientError):
        for needed in list(dict.fromkeys(_needed(body)))[:LOOK_SINGLY_MAX]:
            state = client.jobs.show(needed)["state"]
            if state in TERMINAL_STATES and state != "succeeded":
                line = f"warning: after: job {needed} has not succeeded ({state}); a job after it is cancelled"
                typer.echo(line, err=True)


def _needed(body: Mapping[str, Any]) -> Iterator[int]:
    """The jobs that must succeed, of a submission that was accepted."""
    for job in body.get("jobs") or [body]:
        for entry in job.get("after") or ():
            if isinstance(entry, int):
                yield entry
            elif entry.get("when", "success") == "success":
                yield entry["job"]


def more_of(job: JobDocument) -> str:
    """The command that says more of a failed job: a program that never ran has no output."""
    if job["reason"] in BEFORE_THE_PROGRAM:
        return f"why: sooner job explain {job['id']}"
    return f"its output: sooner job logs {job['id']}"


def _end(jobs: Sequence[JobDocument]) -> None:
    """Exit code 1 unless all succeeded."""
    bad = [job for job in jobs if job["state"] != "succeeded"]
    for job in bad:
        code = "" if job["exit_code"] is None else f" with exit code {job['exit_code']}"
        typer.echo(printable(f"job {job['id']} {job['state']}{code}: {job['reason_sentence']}"), err=True)
        if job["state"] == "failed":
            typer.echo(more_of(job), err=True)
    if bad:
        raise typer.Exit(EXIT_FAILED)


def _wait_and_end(
    client: Client, ids: Sequence[int], timeout_s: float | None, jobs: Sequence[JobDocument], how: Style
) -> None:
    """Wait until all have ended, show them, and end with exit code 1 unless all succeeded. ``jobs``: what is known of them."""
    known = {job["id"]: job for job in jobs}
    missing: Sequence[int] = ()
    try:
        missing = _wait(client, ids, timeout_s, known)
    finally:
        # Also after Ctrl-C or an error: a script gets the numbers of the jobs that it has submitted from here.
        # Where nothing is known of any, as of a job that does not exist, a table would be a header alone.
        if known or not ids or how.as_json:
            _show([known[job_id] for job_id in ids if job_id in known], how)
    if missing:
        fail(f"jobs that have not ended after {timeout_s:.15g} s: {', '.join(map(str, missing))}", EXIT_FAILED)
    _end([known[job_id] for job_id in ids])


def _wait(client: Client, ids: Sequence[int], timeout_s: float | None, known: dict[int, JobDocument]) -> Sequence[int]:
    """Wait until all have ended or the time is up; the jobs that have not ended. ``known`` gets the newest of each.

    Changes of state and reason are printed on standard error.
    """
    deadline_s = time.monotonic() + timeout_s if timeout_s is not None else None
    left = list(dict.fromkeys(ids))
    shown: dict[int, tuple[str, str]] = {}
    outages = Outages()
    while True:
        for job in outages.answer(partial(_look, client, left, known)) or ():
            job_id = job["id"]
            known[job_id] = job
            if (job["state"], job["reason"]) != shown.get(job_id):
                shown[job_id] = job["state"], job["reason"]
                where = f" on {', '.join(job['servers'])}" if job["servers"] else ""
                typer.echo(printable(f"job {job_id}: {job['state']}{where}: {job['reason_sentence']}"), err=True)
        left = [job_id for job_id in left if job_id not in known or known[job_id]["state"] not in TERMINAL_STATES]
        if not left or (deadline_s is not None and time.monotonic() >= deadline_s):
            return left
        pause(WAIT_POLL_S)


def _look(client: Client, ids: Sequence[int], known: Mapping[int, JobDocument]) -> list[JobDocument]:
    """These jobs now: the unfinished ones of a list where that costs less than a request each, and one each for the others.

    The list is that of the array of jobs that are ``known`` to be elements; of other jobs it is the whole queue.
    """
    of_array: dict[int | None, list[int]] = {}
    for job_id in ids:
        of_array.setdefault(known[job_id]["array_id"] if job_id in known else None, []).append(job_id)
    unfinished: dict[int, JobDocument] = {}
    for array, jobs in of_array.items():
        pages = 1
        if array is None and len(jobs) > LOOK_SINGLY_MAX:
            pages += client.queue.show()["jobs"] // PAGE_SIZE
        if len(jobs) > LOOK_SINGLY_MAX * pages:
            unfinished |= {job["id"]: job for job in client.jobs.list(states=UNFINISHED_STATES, array=array)}
    return [unfinished.get(job_id) or client.jobs.show(job_id) for job_id in ids]


def body_of(arguments: Sequence[str], command: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The submission without the options: a file's content, or a command, which runs in this folder by default."""
    if command is not None:
        if arguments:
            fail("give the command either as --command or after --, not both")
        words = _read("--command", words_of, command)
    elif "name" in options and arguments:
        # With a name on the command line the words are the command; a file brings its own name.
        words = list(arguments)
    elif len(arguments) == 1:
        return read_job_file(arguments[0])
    else:
        fail("give a job file, or --name NAME -- COMMAND...")
    if "name" not in options:
        fail("a command needs a name: --name NAME")
    options.setdefault("gpus", 1)
    options.setdefault("working_dir", str(Path.cwd()))
    return {"command": words}


def complete(body: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the options in place, and the login name where no user is named."""
    many = body.get("jobs")
    if isinstance(many, list):
        jobs = [complete(job, options) if isinstance(job, dict) else job for job in many]
        return {**body, "jobs": jobs}
    if options.keys() & _TYPES:
        body = {key: value for key, value in body.items() if key not in _TYPES}
    merged = {**body, **options}
    for key in ("env", "labels", "preemption"):
        if isinstance(body.get(key), dict) and key in options:
            merged[key] = {**body[key], **options[key]}
    if isinstance(body.get("secret_env"), list) and "secret_env" in options:
        merged["secret_env"] = [*body["secret_env"], *options["secret_env"]]
    if merged.get("user") is None:
        merged["user"] = _login()
    return merged


def _own(names: Sequence[str]) -> dict[str, str]:
    """Variables of this process, so that no value stands on a command line, where others can read it."""
    for name in names:
        if name not in os.environ:
            fail(f"--secret-env: your environment has no variable {name!r}")
    return {name: os.environ[name] for name in names}


def _login() -> str | None:
    if has_key():
        return None  # The service knows whose key it is, and refuses another name to most.
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None  # A container's user may have no name; the service then takes the one it knows.


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str] | None:
    if not texts:
        return None
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            fail(f"{option} {text!r} is not NAME=VALUE")
        found[name] = value
    return found


def _preemption(signal: str | None, grace_s: float | None) -> dict[str, Any] | None:
    return given(signal=signal, grace_s=grace_s) or None
