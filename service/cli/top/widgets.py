"""The table of jobs, and the pane of the GPUs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Static

from service.cli.top.fields import Field, Row, cell, fitted, job_number, matches
from service.cli.top.gpu_map import Letters, map_text
from service.domain.counts import count_of

Mark = Callable[[int], tuple[str, str]]


@dataclass
class Order:
    """How a table is ordered: by a field (None: as the service gives the rows), inverted, and grouped by user."""

    by: Field | None = None
    inverted: bool = False
    tree: bool = False

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows in this order."""
        found = list(rows)
        if self.by is not None and self.by.sort is not None:
            found.sort(key=self.by.sort)
        if self.inverted:
            found.reverse()
        if self.tree:
            found.sort(key=lambda row: row["user"] or "")
        return found


@dataclass(frozen=True)
class _Line:
    """One line of the table: a job, or the head of a user's jobs."""

    row: Row | None
    cells: list[Text] = field(default_factory=list)


class JobTable(DataTable[Text]):
    """Jobs, a line each. The cursor stays on its job when the rows change."""

    class PastEnd(Message):
        """The cursor was moved beyond the last line, or before the first one."""

        def __init__(self, table: "JobTable", down: bool) -> None:
            super().__init__()
            self.table = table
            self.down = down

    BINDINGS: ClassVar = []

    def __init__(self, fields: Sequence[Field], mark: Mark | None = None, *, id: str) -> None:
        super().__init__(cursor_type="row", cell_padding=0, zebra_stripes=False, id=id)
        self.fields = fields
        self.order = Order()
        self._mark = mark
        self._rows: Sequence[Row] = ()
        self._lines: list[_Line] = []
        self._layout_of: list[tuple[Field, int]] = []

    @property
    def chosen(self) -> Row | None:
        """The job under the cursor; None on the head of a user, and in an empty table."""
        at = self.cursor_row
        return self._lines[at].row if 0 <= at < len(self._lines) else None

    @property
    def jobs(self) -> list[int]:
        """The jobs in the order of their lines."""
        return [job_number(line.row) for line in self._lines if line.row is not None]

    def show(self, rows: Sequence[Row]) -> None:
        """Show these jobs."""
        self._rows = rows
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self._draw()

    def find(self, wanted: str) -> bool:
        """Move the cursor to the next job that matches, from the top again after the last one; False if there is none."""
        count = len(self._lines)
        for step in range(1, count + 1):
            at = (self.cursor_row + step) % count
            row = self._lines[at].row
            if row is not None and matches(row, wanted):
                self.move_cursor(row=at)
                return True
        return False

    def action_cursor_down(self) -> None:
        """One line down, or beyond the end."""
        if self.cursor_row >= len(self._lines) - 1:
            self.post_message(self.PastEnd(self, down=True))
        else:
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """One line up, or before the start."""
        if self.cursor_row <= 0:
            self.post_message(self.PastEnd(self, down=False))
        else:
            super().action_cursor_up()

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width <= 0:
            return
        chosen = self.chosen
        layout = fitted(self.fields, width - (2 if self._mark is not None else 0))
        if layout != self._layout_of:
            self._layout_of = layout
            self._lines = []
            self.clear(columns=True)
            if self._mark is not None:
                self.add_column("", width=2, key="mark")
            for each, cells in layout:
                self.add_column(cell(each.header, cells, each.right), width=cells + 1, key=each.header)
        self._fill(list(self._new_lines()))
        if chosen is not None:
            self._return_to(job_number(chosen))

    def _fill(self, lines: list[_Line]) -> None:
        """Change only the cells that are different: lines keep their places, so the view does not jump."""
        for at, line in enumerate(lines[: len(self._lines)]):
            for column, (old, new) in enumerate(zip(self._lines[at].cells, line.cells, strict=True)):
                if old != new or old.style != new.style or old.spans != new.spans:
                    self.update_cell_at((at, column), new)  # type: ignore[arg-type]
        for line in lines[len(self._lines) :]:
            self.add_row(*line.cells)
        for at in range(len(self._lines) - 1, len(lines) - 1, -1):
            self.remove_row(self.coordinate_to_cell_key((at, 0)).row_key)  # type: ignore[arg-type]
        self._lines = lines

    def _return_to(self, job: int) -> None:
        for at, line in enumerate(self._lines):
            if line.row is not None and job_number(line.row) == job:
                if at != self.cursor_row:
                    self.move_cursor(row=at)
                return

    def _new_lines(self) -> Iterator[_Line]:
        rows = self.order.of(self._rows)
        if not self.order.tree:
            yield from (self._line(row) for row in rows)
            return
        for user, group in groupby(rows, key=lambda row: row["user"] or "-"):
            of_user = list(group)
            yield self._head(user, of_user)
            yield from (self._line(row, "  ") for row in of_user)

    def _line(self, row: Row, indent: str = "") -> _Line:
        cells = [
            cell(indent + each.text(row) if each.header == "NAME" else each.text(row), width, each.right)
            for each, width in self._layout_of
        ]
        if self._mark is not None:
            letter, colour = self._mark(job_number(row))
            cells.insert(0, Text(letter, style=f"{colour} bold"))
        return _Line(row, cells)

    def _head(self, user: str, rows: Sequence[Row]) -> _Line:
        gpus = sum(row["gpus"] for row in rows)
        texts = {"NAME": f"{user}: {count_of(len(rows))}", "GPUS": str(gpus)}
        cells = [cell(texts.get(each.header, ""), width, each.right, "bold") for each, width in self._layout_of]
        return _Line(None, [Text(""), *cells] if self._mark is not None else cells)


class GpuPane(VerticalScroll):
    """The map of the GPUs. It scrolls where it is higher than its pane."""

    def __init__(self, letters: Letters, *, id: str) -> None:
        super().__init__(id=id, can_focus=True)
        self._letters = letters
        self._map = Static(markup=False)
        self._servers: Sequence[Row] = ()
        self._chosen: int | None = None

    def compose(self) -> Iterator[Static]:
        """The map is one text."""
        yield self._map

    def show(self, servers: Sequence[Row]) -> None:
        """Show these servers."""
        self._servers = servers
        self._draw()

    def choose(self, job: int | None) -> None:
        """Mark the GPUs of a job."""
        if job != self._chosen:
            self._chosen = job
            self._draw()

    def on_resize(self, event: Resize) -> None:
        """Lay the map out again."""
        self._draw()

    def _draw(self) -> None:
        width = self.scrollable_content_region.width
        if width > 0:
            self._map.update(map_text(self._servers, self._letters, width, self._chosen))
