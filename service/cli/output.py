"""Output of commands: a table for people, one versioned JSON document for programs, ids alone for pipes; once or repeated.

Standard output holds the answer and nothing else; notes, progress and errors go to standard error.
"""

import json
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from policies.suggestion import did_you_mean
from service.cli import completion
from service.cli.commands import Only
from service.cli.fail import fail

if TYPE_CHECKING:
    from service.client import Client

WATCH_PERIOD_S = 2.0
CLEAR_SCREEN = "\x1b[2J\x1b[H"
_GAP = 2
"""Spaces between two columns."""
_WIDTH_UNLIMITED = 10_000
"""Columns of a table that goes into a file or a pipe: nothing is cut off there."""

Row = TypeVar("Row")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on standard output.")]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its header (also its name for ``-o``, in any case) and the text of a row.

    ``long`` columns are cut on a narrow terminal; the others (ids, states, numbers) stay whole as long as there is room at all.
    """

    header: str
    text: Callable[[Row], str]
    right: bool = False
    long: bool = False


@dataclass(frozen=True)
class Table(Generic[Row]):
    """Columns and what identifies a row; ``hidden`` columns are shown only when asked for.

    ``name`` names the JSON document of the rows, and ``empty`` is the note where there are none: see :meth:`answer`.
    """

    columns: Sequence[Column[Row]]
    key: Callable[[Row], str]
    hidden: Sequence[Column[Row]] = ()
    name: str = ""
    empty: str = ""

    def answer(self, rows: Sequence[Row]) -> "Answer[Row]":
        """The rows with their document ``{"schema": "sooner.NAME/1", NAME: rows}``."""
        document = {"schema": f"sooner.{self.name}/1", self.name: list(rows)}
        return Answer(rows, document, "" if rows else self.empty)


@dataclass(frozen=True)
class Answer(Generic[Row]):
    """The result of a command: rows of the table, the document for programs, lines above and below the table, a last note."""

    rows: Sequence[Row]
    document: Mapping[str, Any]
    note: str = ""
    lead: str = ""
    tail: str = ""


@dataclass(frozen=True)
class Style:
    """The form of the output. ``--json``, ``--quiet`` and ``--output`` exclude each other (exit code 2)."""

    as_json: JsonFlag = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids, one per line.")] = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="COL,COL",
            help="Print only these columns, in this order.",
            autocompletion=completion.columns,
        ),
    ] = None
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Refresh until Ctrl-C; with --json, print one document per line (NDJSON)."),
    ] = False

    def __post_init__(self) -> None:
        if sum((self.as_json, self.quiet, self.output is not None)) > 1:
            fail("--json, --quiet and --output exclude each other")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to show, in capitals; empty for the usual ones."""
        return tuple(name.strip().upper() for name in self.output.split(",")) if self.output is not None else ()


OnceStyle = Annotated[Style, Only(("as_json", "quiet", "output"))]
IdsStyle = Annotated[Style, Only(("as_json", "quiet"))]
ColumnsStyle = Annotated[Style, Only(("as_json", "output"))]
WatchStyle = Annotated[Style, Only(("as_json", "watch"))]


def show(table: Table[Row], ask: Callable[[], Answer[Row]], how: Style) -> None:
    """Ask once and print, or again and again until Ctrl-C (which is then a normal end)."""
    columns = chosen(table, how)
    if not how.watch:
        _print(table, columns, ask(), how)
        return
    try:
        while True:
            answer = ask()
            if sys.stdout.isatty() and not how.as_json and not how.quiet:
                typer.echo(CLEAR_SCREEN, nl=False)
            _print(table, columns, answer, how)
            sys.stdout.flush()
            pause(WATCH_PERIOD_S)
    except KeyboardInterrupt:
        return


def show_rows(table: Table[Row], ask: Callable[[], Sequence[Row]], how: Style) -> None:
    """Show rows that need no document but the one that the table names."""
    show(table, lambda: table.answer(ask()), how)


def show_service(table: Table[Row], ask: "Callable[[Client], Sequence[Row]]", how: Style) -> None:
    """Connect to the service and show the rows that ``ask`` reads from it."""
    # Commands that need no service, such as simulations, do not wait for the HTTP library.
    from service.cli.connect import connect

    with connect() as client:
        show_rows(table, lambda: ask(client), how)


def pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it."""
    threading.Event().wait(seconds)


def print_json(document: Mapping[str, Any]) -> None:
    """One document on one line of standard output."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_result(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """One document for programs, or one text for people."""
    if as_json:
        print_json(document)
    else:
        typer.echo(text)


def _print(table: Table[Row], columns: Sequence[Column[Row]], answer: Answer[Row], how: Style) -> None:
    if how.as_json:
        print_json(answer.document)
    elif how.quiet:
        for row in answer.rows:
            typer.echo(table.key(row))
    else:
        for line in answer.lead.splitlines():
            typer.echo(printable(line))
        if answer.rows or not answer.lead:
            print_table(columns, answer.rows)
        for line in answer.tail.splitlines():
            typer.echo(printable(line))
        if answer.note:
            typer.echo(answer.note, err=True)


def print_accepted(accepted: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    """Requests that the service has accepted, by what they are about; a line each, or one document."""
    if as_json:
        print_json({"schema": "sooner.accepted/1", "accepted": list(accepted.values())})
        return
    for target, each in accepted.items():
        typer.echo(printable(f"{target}: {each['accepted']} accepted"))
        for warning in each.get("warnings", ()):
            typer.echo(printable(f"warning: {warning}"), err=True)


def fitting(columns: Sequence[Column[Row]], rows: Sequence[Row], least: int) -> Sequence[Column[Row]]:
    """The first columns, as many as a terminal has room for, but ``least`` in any case; elsewhere all."""
    if not sys.stdout.isatty():
        return columns
    room = shutil.get_terminal_size().columns + _GAP
    for count, column in enumerate(columns):
        room -= max(map(len, (column.header, *map(column.text, rows)))) + _GAP
        if room < 0 and count >= least:
            return columns[:count]
    return columns


def print_table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    """A plain aligned table; on a terminal it is cut to the window, elsewhere nothing is cut."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(markup=False, highlight=False, width=None if terminal else _WIDTH_UNLIMITED)
    with console.capture() as captured:
        console.print(rich_table(columns, rows))
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def rich_table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Any:
    """The table as a rich renderable."""
    from rich.table import Table as RichTable
    from rich.text import Text

    headed = any(column.header for column in columns)
    table = RichTable(box=None, pad_edge=False, show_header=headed, header_style="bold", padding=(0, _GAP, 0, 0))
    texts = [[printable(column.text(row)) for row in rows] for column in columns]
    for column in columns:
        table.add_column(
            column.header,
            justify="right" if column.right else "left",
            # The columns that may wrap are those that rich makes narrower first; their cells are cut instead.
            no_wrap=not column.long,
            overflow="ellipsis",
        )
    for row in zip(*texts, strict=True):
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def printable(text: str) -> str:
    """The text with each control character replaced by ``?``."""
    return "".join(character if character.isprintable() else "?" for character in text)


def chosen(table: Table[Row], how: Style) -> Sequence[Column[Row]]:
    """The columns to show. Ends the command for one that the table does not have.

    :func:`show` calls it before it asks; a command that changes something or waits before it shows calls it first.
    """
    if not how.columns:
        return table.columns
    known = {column.header.upper(): column for column in (*table.columns, *table.hidden)}
    for name in how.columns:
        if name not in known:
            fail(
                f"--output: there is no column {name!r}{did_you_mean(name, known)}; the columns are {', '.join(known)}"
            )
    return [known[name] for name in how.columns]
