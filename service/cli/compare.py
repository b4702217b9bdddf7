"""Many runs with their progress on standard error: bars on a terminal, elsewhere a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from service.domain.counts import count_of
from service.domain.duration import words_of
from service.simulations.course import Course
from service.simulations.runs import Finished, Plan, Setting
from service.simulations.sweep import Failed, Keeping, Show, sweep

LINE_EVERY_S = 30.0
"""Seconds between two lines of progress where standard error is no terminal."""
_DRAW_EVERY_S = 0.2

Clock = Callable[[], float]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while ``made`` runs had a result."""

    def __init__(self, made: int) -> None:
        super().__init__(made)
        self.made = made


def compare(
    setting: Setting,
    plans: Sequence[Plan],
    workers: int | None = None,
    keeping: Keeping | None = None,
    *,
    quiet: bool = False,
) -> list[Finished | Failed]:
    """:func:`service.simulations.sweep.sweep`, with its progress unless ``quiet``. Raises Interrupted at Ctrl-C, too."""
    newest: Course | None = None

    def taken_over(runs: int) -> None:
        if runs and not quiet and keeping is not None:
            typer.echo(f"{runs} of {count_of(len(plans), 'run')} taken over from {keeping.folder}", err=True)

    with progress(plans, len(setting.workload.jobs), quiet=quiet) as draw:

        def show(course: Course) -> None:
            nonlocal newest
            newest = course
            draw(course)

        try:
            return sweep(setting, plans, workers, keeping, show, taken_over)
        except KeyboardInterrupt as error:
            raise Interrupted(newest.made if newest is not None else 0) from error


def name_of(plan: Plan, plans: Sequence[Plan]) -> str:
    """What tells the run from the others."""
    more = []
    if len({each.predictor for each in plans}) > 1:
        more.append(plan.predictor)
    if len({each.seed for each in plans}) > 1:
        more.append(f"seed {plan.seed}")
    return f"{plan.label} ({', '.join(more)})" if more else plan.label


def course_words(course: Course) -> str:
    """How far the runs are, in words."""
    left_s = course.remaining_s()
    words = f"{course.over} of {count_of(len(course.kinds), 'run')} after {words_of(course.elapsed_s)}"
    return words if left_s is None or course.over == len(course.kinds) else f"{words}, about {words_of(left_s)} left"


@contextmanager
def progress(plans: Sequence[Plan], jobs: int, *, quiet: bool = False, clock: Clock = time.monotonic) -> Iterator[Show]:
    """What shows the course of these runs of so many jobs each."""
    if quiet:
        yield lambda course: None
    elif sys.stderr.isatty():
        with _bars(plans, jobs, clock) as show:
            yield show
    else:
        yield lines(clock)


def lines(clock: Clock) -> Show:
    """Writes a line at a moderate pace."""
    next_s = clock() + LINE_EVERY_S

    def show(course: Course) -> None:
        nonlocal next_s
        if clock() >= next_s and course.over < len(course.kinds):
            next_s = clock() + LINE_EVERY_S
            typer.echo(course_words(course), err=True)

    return show


@contextmanager
def _bars(plans: Sequence[Plan], jobs: int, clock: Clock) -> Iterator[Show]:
    """A bar for each run under way, and below them one for all."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    # Its own thread would keep this process from forking.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bars:
        whole = bars.add_task("all", total=len(plans), note="")
        running: dict[int, TaskID] = {}
        next_s = clock()

        def show(course: Course) -> None:
            nonlocal next_s
            if clock() < next_s and course.over < len(plans):
                return
            next_s = clock() + _DRAW_EVERY_S
            shares = course.running
            for run in running.keys() - shares.keys():
                bars.remove_task(running.pop(run))
            for run, share in shares.items():
                if run not in running:
                    running[run] = bars.add_task(name_of(plans[run], plans), total=1.0, note="")
                bars.update(running[run], completed=share, note=f"{round(share * jobs):,} of {count_of(jobs)}")
            bars.update(whole, completed=course.over + sum(shares.values()), note=course_words(course))
            bars.refresh()

        yield show
