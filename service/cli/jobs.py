"""``sooner job ...`` and ``sooner q``: looking at jobs and acting on them. Submission is :mod:`service.cli.submit`'s."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from policies.suggestion import did_you_mean
from service.cli import completion
from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.forecast import Outlook
from service.cli.job_tables import (
    ATTEMPTS,
    EVENTS,
    JOBS,
    SORT_KEYS,
    amount,
    eta_note,
    prediction_lines,
    sorted_jobs,
    stages,
)
from service.cli.options import ProjectOption, UserOption, instant_s
from service.cli.outages import Outages
from service.cli.output import (
    Answer,
    Column,
    JsonFlag,
    OnceStyle,
    Row,
    Style,
    Table,
    WatchStyle,
    pause,
    print_json,
    printable,
    show,
)
from service.cli.plan_words import plan_lines
from service.cli.selectors import JobArgument, SelectorArgument, select, select_one
from service.client import TERMINAL_STATES, UNFINISHED_STATES, ApiError, Client

if TYPE_CHECKING:
    from service.wire.jobs import ExplanationDocument, JobDocument
    from service.wire.predictions import PredictionDetailsDocument


LIST_LIMIT = 50
"""Rows of the list of jobs, as :data:`QUEUE_LIMIT` for the queue."""
LOG_POLL_S = 0.5

QUEUE_LIMIT = 100
"""Rows of the queue that a table shows unless ``--limit`` is given: more do not fit a screen, and take time to load."""


@dataclass(frozen=True)
class JobFilters:
    """Which jobs a list has."""

    user: UserOption = None
    project: ProjectOption = None
    name: Annotated[str | None, typer.Option("--name", help="Only jobs with this name.")] = None
    array: Annotated[int | None, typer.Option("--array", min=1, help="Only elements of this job array.")] = None

    def __bool__(self) -> bool:
        return any(value is not None for value in asdict(self).values())


def jobs_answer(jobs: Sequence[JobDocument], note: str | None = None) -> Answer[JobDocument]:
    """Jobs as every command shows them; without a ``note``, the reasons of the service for missing ETAs."""
    shown = eta_note(jobs) if note is None else note
    return Answer(jobs, {"schema": "sooner.jobs/1", "jobs": list(jobs)}, shown)


def _show_jobs(client: Client, ask: Callable[[], tuple[Sequence[JobDocument], str]], how: Style) -> None:
    """Jobs with their ETA. ``ask`` gives them and a note."""
    outlook = Outlook(client)

    def answer() -> Answer[JobDocument]:
        found, note = ask()
        outlook.look(found, how)
        return jobs_answer(found, "\n".join(line for line in (note, outlook.note(found)) if line))

    show(outlook.table(), answer, how)


def q_command(
    filters: JobFilters,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help=f"At most this many jobs; 0 = all. Default: {QUEUE_LIMIT} in a table, all with --json or --quiet.",
        ),
    ] = None,
    *,
    how: Style,
) -> None:
    """List the unfinished jobs in order of submission."""
    most = _most(limit, how, QUEUE_LIMIT)
    with connect() as client:
        _show_jobs(client, lambda: _queue(client, filters, most), how)


def _most(limit: int | None, how: Style, in_table: int) -> int:
    """How many jobs to show, 0 = all: a program that gives no limit means all."""
    if limit is not None:
        return limit
    return 0 if how.as_json or how.quiet else in_table


def _queue(client: Client, filters: JobFilters, most: int) -> tuple[Sequence[JobDocument], str]:
    """The first jobs of the queue, and how many follow them. ``most`` 0 = all."""
    found = client.jobs.list(
        states=UNFINISHED_STATES,
        **asdict(filters),
        order="oldest",
        limit=most + 1 if most else None,
    )
    if not most or len(found) <= most:
        return found, ""
    of = None if filters else client.queue.show()["jobs"]
    return found[:most], _cut("first", most, of, "unfinished job")


def _cut(which: str, most: int, of: int | None, what: str) -> str:
    """The note below a table of the ``which`` jobs alone, of as many."""
    jobs = f"{amount(most)}{'' if of is None else f' of {amount(of)}'} {what}s" if most > 1 or of is not None else what
    return f"The {which} {jobs} {'are' if most > 1 else 'is'} shown; --limit 0 shows all."


def list_command(
    filters: JobFilters,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only jobs in this state; repeatable.",
            autocompletion=completion.states,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Only jobs submitted since then: 7d or 12h (ago), or a date and time in UTC.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            help=f"Sort by {', '.join(SORT_KEYS)}; -COLUMN: descending. Default: newest first.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=0,
            help=f"At most this many jobs; 0 = all. Default: {LIST_LIMIT} in a table, all with --json or --quiet.",
        ),
    ] = None,
    *,
    how: Style,
) -> None:
    """List jobs in any state, newest first."""
    for word in state or ():
        _check("--state", word, UNFINISHED_STATES + TERMINAL_STATES)
    if sort is not None:
        sort = sort.lower()
        _check("--sort", sort.removeprefix("-"), tuple(SORT_KEYS))
    since_s = None if since is None else instant_s("--since", since)
    order = _LISTED.get(sort)
    if order == "oldest" and since_s is not None:
        order = None  # The service lists from a time on the newest first.

    most = _most(limit, how, LIST_LIMIT)

    def ask() -> tuple[Sequence[JobDocument], str]:
        found = client.jobs.list(
            states=state or (),
            **asdict(filters),
            since_s=since_s,
            order=order or "newest",
            # What stands first is known only when all are sorted.
            limit=most + 1 if most and order is not None else None,
        )
        if not most or len(found) <= most:
            return (found if sort is None else sorted_jobs(found, sort)), ""
        if sort is None or order is not None:
            return found[:most], _cut("newest" if order == "newest" else "first", most, None, "job")
        note = _cut("first", most, len(found), "job")
        return sorted_jobs(found, sort)[:most], note

    with connect() as client:
        _show_jobs(client, ask, how)


_LISTED: Mapping[str | None, Literal["newest", "oldest"]] = {
    None: "newest",
    "-job": "newest",
    "-submitted": "newest",
    "job": "oldest",
    "submitted": "oldest",
}
"""In which order the service lists jobs as they are sorted: they are numbered as they are submitted."""


def _check(option: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        fail(f"{option}: {word!r} is not one of {', '.join(known)}{did_you_mean(word, known)}")


def show_command(jobs: SelectorArgument, *, how: Style) -> None:
    """Show all details of one job, or several jobs as a table."""
    with connect() as client:
        ids = select(client, jobs)
        if len(ids) == 1 and not how.columns and not how.quiet:
            show(_CARD, lambda: _card(client, ids[0], how), how)
        else:
            _show_jobs(client, lambda: ([client.jobs.show(job_id) for job_id in ids], ""), how)


_CARD = Table[tuple[str, str]](
    columns=(Column("", lambda line: line[0]), Column("", lambda line: line[1], long=True)),
    key=lambda line: line[1],
)


def _card(client: Client, job_id: int, how: Style) -> Answer[tuple[str, str]]:
    """One job, a line a property."""
    job, outlook = client.jobs.show(job_id), Outlook(client)
    outlook.look([job], how)
    lines = [(column.header.lower(), column.text(job)) for column in (*outlook.table().columns, *JOBS.hidden)]
    if job["attempts"]:
        lines += [("stages", line) for line in stages(client.jobs.attempts(job_id)[-1])]
    shown = [line for line in (*lines, *plan_lines(job)) if line[1]]
    return Answer(shown, jobs_answer([job]).document, outlook.note([job]))


def explain_command(jobs: SelectorArgument, *, how: WatchStyle) -> None:
    """Explain the state of jobs with numbers, and forecast when waiting jobs start.

    For a single job, also explain its prediction: the source, the effect of each feature, and similar past jobs.
    """
    with connect() as client:
        ids = select(client, jobs, unfinished=True)
        outlook = Outlook(client)
        show(
            _explanations(outlook),
            lambda: _explain(client, ids, None if how.as_json else outlook),
            how,
        )


def _explain(client: Client, ids: Sequence[int], outlook: Outlook | None) -> Answer[ExplanationDocument]:
    found = [client.jobs.explanation(job_id) for job_id in ids]
    if outlook is not None and any(each["state"] == "queued" for each in found):
        outlook.ask(ids)
    # A table of many jobs has no room for the predictions; the JSON document has them all.
    predicted = [_prediction(client, job_id) for job_id in ids if outlook is None or len(ids) == 1]
    document = {"schema": "sooner.explanations/1", "explanations": found, "predictions": predicted}
    tail = "\n".join(line for each in predicted for line in prediction_lines(each))
    return Answer(found, document, tail=tail)


def _prediction(client: Client, job_id: int) -> PredictionDetailsDocument | None:
    try:
        return client.jobs.prediction(job_id)
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None


def _explanations(outlook: Outlook) -> Table[ExplanationDocument]:
    return Table(
        columns=(
            Column("JOB", lambda each: str(each["job_id"]), right=True),
            Column("STATE", lambda each: each["state"]),
            Column("REASON", lambda each: each["reason"]),
            Column("EXPLANATION", lambda each: _explanation(each, outlook), long=True),
        ),
        key=lambda each: str(each["job_id"]),
    )


def _explanation(each: ExplanationDocument, outlook: Outlook) -> str:
    """Why, when, and what the shadow policy would do instead."""
    shadow = each["shadow"]
    dissent = (
        "" if shadow is None or shadow["wants"] is None else f" Shadow policy {shadow['policy']}: {shadow['sentence']}"
    )
    return each["sentence"] + outlook.expected_start(each["job_id"]) + dissent


def attempts_command(job: JobArgument, *, how: OnceStyle) -> None:
    """List the attempts of a job with GPUs, first and last iteration, and outcome."""
    with connect() as client:
        job_id = select_one(client, job)
        show(ATTEMPTS, lambda: _of_job(job_id, ATTEMPTS, client.jobs.attempts(job_id)), how)


def events_command(job: JobArgument, *, how: Style) -> None:
    """List every change of a job's state with its cause."""
    with connect() as client:
        job_id = select_one(client, job)
        show(EVENTS, lambda: _of_job(job_id, EVENTS, client.jobs.events(job_id)), how)


def _of_job(job_id: int, table: Table[Row], rows: Sequence[Row]) -> Answer[Row]:
    """Rows about one job; the document has its number."""
    answer = table.answer(rows)
    return Answer(rows, {"schema": answer.document["schema"], "job_id": job_id, **answer.document})


def logs_command(
    job: JobArgument,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Attempt number. Default: the newest.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue until the job has ended; with --attempt, until the attempt has."),
    ] = False,
    node: Annotated[
        int, typer.Option("--node", min=0, help="Server of the attempt, from 0 on, in the order of its placement.")
    ] = 0,
) -> None:
    """Print the output of a job. On a Slurm or Ray cluster, each server of an attempt has a log of its own."""
    with connect() as client:
        job_id = select_one(client, job)
        try:
            log = _Log(client, job_id, node, attempt)
            if follow:
                _follow(log, only=attempt is not None)
            else:
                log.copy()
                if not log.offset:
                    typer.echo(printable(_why_empty(log)), err=True)
        except KeyboardInterrupt:
            return


def _why_empty(log: _Log) -> str:
    """A line about a log without a byte, which as standard output alone could mean anything."""
    if log.attempt is not None:
        return f"there is no output of attempt {log.attempt} of job {log.job_id}"
    job = log.client.jobs.show(log.job_id)
    return f"there is no output of job {log.job_id}, which is {job['state']}: {job['reason_sentence']}"


@dataclass
class _Log:
    """The log of an attempt (None: the newest) on a server of it, printed up to ``offset``."""

    client: Client
    job_id: int
    node: int
    attempt: int | None
    offset: int = 0

    def copy(self) -> None:
        """Print what there is. After an error it can be called again: it goes on from what was printed."""
        while True:
            chunk = self.client.jobs.logs(self.job_id, self.attempt, self.offset, self.node)
            if not chunk.data:
                return
            if chunk.cut_bytes:
                typer.echo(f"[{chunk.cut_bytes} bytes were removed here: the log exceeded its limit]", err=True)
            typer.echo(chunk.data, nl=False)
            sys.stdout.flush()
            self.offset = chunk.next_offset


def _follow(log: _Log, only: bool) -> None:
    """Print every attempt from the newest on until the job has ended, or with ``only`` that of ``log`` until it has ended."""
    outages = Outages()
    while not outages.answer(lambda: _catch_up(log, only)):
        pause(LOG_POLL_S)


def _catch_up(log: _Log, only: bool) -> bool:
    """Print what there is; whether that was all."""
    while True:
        # Asked before the log is read: what it printed before it ended is then read in this pass.
        job = log.client.jobs.show(log.job_id)
        log.attempt = log.attempt or job["attempts"] or None
        if log.attempt is not None:
            log.copy()
            later = job["attempts"] > log.attempt
            if only:
                # The attempt of a queued job is one that has ended.
                return later or job["state"] == "queued" or job["state"] in TERMINAL_STATES
            if later:
                log.attempt, log.offset = log.attempt + 1, 0
                continue
        return job["state"] in TERMINAL_STATES


def spec_command(jobs: SelectorArgument, as_json: JsonFlag = False) -> None:
    """Print jobs as job files that can be submitted again. Values of env that you may not see are null."""
    import yaml

    with connect() as client:
        specs = {number: client.jobs.spec(number) for number in select(client, jobs)}
    if as_json:
        print_json({"schema": "sooner.specs/1", "specs": list(specs.values())})
        return
    for number, spec in specs.items():
        typer.echo(f"--- # job {number}")
        for line in yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).splitlines():
            typer.echo(printable(line))
