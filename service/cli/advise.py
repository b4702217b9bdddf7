"""``sooner advise``: what a running Slurm will do with its queue, and what A-SRPT would do instead. It changes nothing."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.cli.forecast import spread
from service.cli.job_tables import duration
from service.cli.options import seconds_option
from service.cli.output import CLEAR_SCREEN, Answer, Column, OnceStyle, Style, Table, chosen, pause, show
from service.config.environment import default_data_dir
from service.domain.counts import count_of
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.advice.advice import Advice
    from service.advice.nice import NiceOrder
    from service.advice.page import AdvicePage
    from service.advice.past import PastJob
    from service.advice.site import Site
    from service.slurm.cluster import Slurm

EVERY_LEAST_S = 5.0

Document = Mapping[str, Any]


def advise_command(
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Advise on the Slurm cluster of this machine's commands.")
    ] = False,
    every: Annotated[
        float | None,
        seconds_option("--every", "Repeat after this time until Ctrl-C, for example 60s.", EVERY_LEAST_S),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            dir_okay=False,
            help="Learn from this file with the output of sacct, where Slurm has no accounting database.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            file_okay=False,
            help="Folder for what is kept between two runs. Default: the folder 'advice' in the usual data folder.",
        ),
    ] = None,
    listen: Annotated[
        int | None,
        typer.Option(
            "--listen",
            metavar="PORT",
            min=0,
            max=65535,
            help="Needs --every. Also serve the newest advice on this port of 127.0.0.1, as a page and as /advice.json.",
        ),
    ] = None,
    set_: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="nice",
            help="Needs --every. Bring the waiting jobs into A-SRPT's order by their nice values; undone at the end.",
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the nice values that an interrupted --set nice has left, and end.")
    ] = False,
    *,
    how: OnceStyle,
) -> None:
    """Forecast the queue of a running Slurm, and show what A-SRPT would do instead.

    For each job: its predicted run time, and its start and end under Slurm's own order, as p50 [p10-p90]. Without --set and
    --undo nothing in Slurm is changed.
    """
    if not slurm:
        fail("name the cluster to advise on: --slurm")
    if set_ not in (None, "nice"):
        fail(f"--set {set_!r}: the only thing that can be set is nice")
    if set_ is not None and every is None:
        fail("--set needs --every: the order is kept up to date, and undone when the command ends")
    if listen is not None and every is None:
        fail("--listen needs --every: a page shows the newest advice")
    if undo and (set_ is not None or every is not None):
        fail("--undo cannot be combined with --set or --every")
    chosen(ADVICE, how)
    folder = state or default_data_dir() / "advice"
    client = _slurm(folder)
    if undo:
        _undo(client, folder)
        return
    site = _site(client, folder, history)
    with _page(listen) as page:
        if set_ is None:
            _note_left(folder)
            _show(_Loop(site, every, how, page))
        else:
            _set(client, folder, _Loop(site, every, how, page))


class _Loop(NamedTuple):
    """What is repeated, how often, and where it is shown."""

    site: "Site"
    every: float | None
    how: Style
    page: "AdvicePage | None"


@contextmanager
def _page(port: int | None) -> "Iterator[AdvicePage | None]":
    if port is None:
        yield None
        return
    from service.advice.page import HOST, AdvicePage

    try:
        page = AdvicePage(port)
    except OSError as error:
        fail(f"--listen {port}: cannot listen on {HOST}:{port}: {error.strerror or error}")
    typer.echo(f"advice on {page.url}", err=True)
    try:
        yield page
    finally:
        page.close()


def _set(slurm: "Slurm", folder: Path, loop: _Loop) -> None:
    """Advise with the order set, and undo it at the end: after Ctrl-C, SIGTERM or SIGHUP."""
    from service.advice.nice import NiceError, NiceOrder, locked, rights
    from service.slurm.commands import SlurmError

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with locked(folder):
            nice = NiceOrder(slurm, folder, rights(slurm))
            if nice.kept:
                typer.echo(
                    f"took over {count_of(nice.kept)} with a nice value that an interrupted run has set", err=True
                )
            try:
                _show(loop, nice)
            finally:
                _restore(nice)
    except (NiceError, SlurmError) as error:
        fail(str(error), EXIT_FAILED)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _undo(slurm: "Slurm", folder: Path) -> None:
    from service.advice.nice import NiceError, NiceOrder, locked, rights
    from service.slurm.commands import SlurmError

    try:
        with locked(folder):
            _restore(NiceOrder(slurm, folder, rights(slurm)))
    except (NiceError, SlurmError) as error:
        fail(str(error), EXIT_FAILED)


def _restore(nice: "NiceOrder") -> None:
    from service.slurm.commands import SlurmError

    try:
        done = nice.undo()
    except (SlurmError, OSError) as error:
        fail(f"nothing was restored: {error}; run `sooner advise --slurm --undo` later", EXIT_FAILED)
    notes = [f"restored the nice value of {count_of(done.changed)}"]
    if done.foreign:
        notes.append(f"left {count_of(done.foreign)} alone, because the value was changed by others")
    typer.echo("; ".join(notes), err=True)
    why = [f"Slurm refused {count_of(done.refused)}"] if done.refused else []
    if done.unreachable:
        why.append(done.unreachable)
    if why:
        fail(f"not all were restored: {'; '.join(why)}; run `sooner advise --slurm --undo` later", EXIT_FAILED)


def _note_left(folder: Path) -> None:
    """Say that values of an interrupted run are still set; nothing is changed without being asked for."""
    from service.advice.nice import NiceError, kept_values

    try:
        count = kept_values(folder)
    except NiceError as error:
        typer.echo(f"note: {error}", err=True)
        return
    if count:
        typer.echo(
            f"note: {count_of(count)} may still have a nice value that `--set nice` has set;"
            " unless it runs now, `sooner advise --slurm --undo` restores them",
            err=True,
        )


def _slurm(folder: Path) -> "Slurm":
    """The cluster of this machine's commands; the folder is there afterwards."""
    from service.slurm.cluster import Slurm

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--state {folder}: {error.strerror or error}")
    return Slurm()


def _site(slurm: "Slurm", folder: Path, history: Path | None) -> "Site":
    from service.advice.site import Site

    return Site(slurm, folder, _past(slurm, folder, history))


def _past(slurm: "Slurm", folder: Path, history: Path | None) -> "Callable[[float], Sequence[PastJob]]":
    """Reads the jobs of the past: from a file, or from what sacct has had until now."""
    from service.advice.accounting import AccountingError, AccountingStore, read_file
    from service.advice.past import past_of

    if history is not None:
        try:
            jobs = [past_of(job) for job in read_file(history)[0]]
        except AccountingError as error:
            fail(str(error))
        return lambda now_s: jobs
    try:
        store = AccountingStore(folder / "accounting.sqlite")
    except AccountingError as error:
        fail(str(error), EXIT_FAILED)
    noted = ""

    def read(now_s: float) -> "Sequence[PastJob]":
        nonlocal noted
        try:
            store.update(slurm.commands, now_s)
        except AccountingError as error:
            if noted != str(error):
                noted = str(error)
                typer.echo(f"note: {noted}", err=True)
        return [past_of(job) for job in store.jobs()]

    return read


def _show(loop: _Loop, nice: "NiceOrder | None" = None) -> None:
    """Advise once, or until Ctrl-C; with ``nice`` the order is set each time."""
    from service.advice.site import NoGpus
    from service.slurm.commands import SlurmError

    try:
        while True:
            try:
                answer = _ask(loop.site, nice)
            except (SlurmError, NoGpus) as error:
                if loop.every is None:
                    fail(str(error), EXIT_FAILED)
                typer.echo(f"error: {error}", err=True)
            else:
                _print(answer, loop)
            if loop.every is None:
                return
            pause(loop.every)
    except KeyboardInterrupt:
        return


def _ask(site: "Site", nice: "NiceOrder | None") -> Answer[Document]:
    from service.advice.document import document

    now_s = time.time()
    seen = site.look(now_s)
    site.learn(seen, now_s)
    advice = site.advise(seen)
    note = _apply(nice, advice) if nice is not None else ""
    made = document(advice, site)
    return Answer(
        [{**job, "made_at": made["made_at"]} for job in made["jobs"]], made, lead=_lead(made), tail=_tail(made) + note
    )


def _print(answer: Answer[Document], loop: _Loop) -> None:
    how = loop.how
    if loop.page is not None:
        loop.page.publish(
            answer.document,
            lead=answer.lead,
            columns=[column.header for column in ADVICE.columns],
            rows=[[column.text(job) for column in ADVICE.columns] for job in answer.rows],
            tail=answer.tail,
        )
    if loop.every is not None and sys.stdout.isatty() and not how.as_json and not how.quiet:
        typer.echo(CLEAR_SCREEN, nl=False)
    show(ADVICE, lambda: answer, how)
    sys.stdout.flush()


def _apply(nice: "NiceOrder", advice: "Advice") -> str:
    """Set the order, and say what was changed."""
    done = nice.apply(advice.mirrored, advice.order)
    text = (
        f"\nSet the nice value of {count_of(done.changed)}; {count_of(nice.kept)} in all will be restored at the end."
    )
    if done.refused:
        text += f" Slurm refused {count_of(done.refused)}."
    return text + (f" Slurm did not answer: {done.unreachable}." if done.unreachable else "")


def _lead(made: Document) -> str:
    states = Counter(job["state"] for job in made["jobs"])
    counts = ", ".join(f"{states[state]} {state}" for state in ("pending", "running", "held") if states[state])
    at = datetime.fromisoformat(made["made_at"]).astimezone().strftime("%H:%M:%S")
    return f"{at}: {made['gpus_free']} of {count_of(made['gpus'], 'GPU')} free; jobs with GPUs: {counts or 'none'}\n"


def _tail(made: Document) -> str:
    lines = [""]
    if made["problem"]:
        lines.append(f"No forecast: {made['problem']}")
    worth = made["mean_time_to_completion"]
    if worth is not None:
        plain, nice, asrpt = (worth["schedules"][name] for name in ("slurm", "slurm_by_asrpt", "asrpt"))
        lines += [
            f"Mean time to completion of {count_of(worth['jobs'])}: {words_of(plain['mean_s'])} in Slurm's order,"
            f" {words_of(nice['mean_s'])} ({-nice['saved_ratio']:+.0%}) if Slurm took them in A-SRPT's order"
            f" (--set nice), {words_of(asrpt['mean_s'])} ({-asrpt['saved_ratio']:+.0%}) if Sooner scheduled them."
        ]
    if made["left_out"]:
        parts = (f"{count} {why}" for why, count in sorted(made["left_out"].items()))
        lines.append(f"Left out, by reason (jobs): {'; '.join(parts)}.")
    history = made["history"]
    checked = sum(history["checked_forecasts"].values())
    lines.append(
        f"Learnt from {count_of(history['ended_jobs'])} that ended here. Intervals: "
        + (
            f"calibrated by {checked:,} forecasts of the past."
            if checked
            else "not calibrated yet, for want of a past."
        )
    )
    return "\n".join(lines)


def _run(job: Document) -> str:
    found = job["run_s"]
    if found is None:
        return ""
    p10, p50, p90 = (words_of(found[point]) for point in ("p10", "p50", "p90"))
    return f"{p50} [{p10}-{p90}]"


def _places(job: Document) -> str:
    """The place in Slurm's order, and the one in A-SRPT's."""
    return "" if job["place"] is None else f"{job['place']} -> {job['asrpt_place']}"


ADVICE: Table[Document] = Table(
    columns=(
        Column("JOB", lambda job: job["job"], right=True),
        Column("NAME", lambda job: job["name"], long=True),
        Column("USER", lambda job: job["user"], long=True),
        Column("STATE", lambda job: job["state"]),
        Column("GPUS", lambda job: str(job["gpus"]), right=True),
        Column("RUNS FOR", _run, right=True),
        Column("START", lambda job: spread(job["start_at"], job["made_at"])),
        Column("END", lambda job: spread(job["end_at"], job["made_at"])),
        Column("PLACE", _places, right=True),
        Column("A-SRPT START", lambda job: spread(job["asrpt_start_at"], job["made_at"])),
        Column("WHY NOT", lambda job: job["reason"] or "", long=True),
    ),
    key=lambda job: job["job"],
    hidden=(
        Column("SOURCE", lambda job: job["source"], long=True),
        Column("LIMIT", lambda job: duration(job["time_limit_s"]), right=True),
        Column("A-SRPT END", lambda job: spread(job["asrpt_end_at"], job["made_at"])),
    ),
    name="advice",
)
