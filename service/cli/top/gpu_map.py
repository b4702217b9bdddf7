"""The GPUs as a map: a cell a GPU, by server. A letter and a colour mark a job, so that the colour is not needed."""

import string
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.text import Text

from service.cli.output import printable
from service.cli.top.fields import Row

LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red", "bright_cyan", "bright_yellow")
FREE, UNUSABLE, HIDDEN = "·", "x", "#"
LEGEND = f"{FREE} free  {UNUSABLE} unusable  {HIDDEN} job of others"
_STATES = {"drained": "drained", "down": "DOWN"}
_NAME_CELLS = 20


class Letters:
    """Gives each job a letter for as long as it holds GPUs. With more jobs than letters, several share one."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def keep(self, jobs: Sequence[int]) -> None:
        """Forget the jobs that are not among these, and give the new ones the letters used least."""
        held = set(jobs)
        self._of = {job: place for job, place in self._of.items() if job in held}
        used = dict.fromkeys(range(len(LETTERS)), 0)
        for place in self._of.values():
            used[place] += 1
        for job in sorted(held - self._of.keys()):
            place = min(used, key=lambda each: (used[each], each))
            used[place] += 1
            self._of[job] = place

    def mark(self, job: int) -> tuple[str, str]:
        """The letter and the colour of a job."""
        place = self._of.get(job)
        return (HIDDEN, "") if place is None else (LETTERS[place], COLOURS[place % len(COLOURS)])


def jobs_of(servers: Sequence[Row]) -> list[int]:
    """The jobs on the map that the caller sees."""
    return list({gpu["job_id"]: None for server in servers for gpu in server["gpus"] if gpu["job_id"] is not None})


def map_text(servers: Sequence[Row], letters: Letters, width: int, chosen: int | None = None) -> Text:
    """The map in lines of at most ``width`` cells; the GPUs of the ``chosen`` job are shown in reverse.

    Servers stand in columns. One with more GPUs than a line has room for goes on in the next line.
    """
    blocks = [_block(server, letters, chosen) for server in servers]
    names = max((block[0].cell_len for block in blocks), default=0)
    room = max(1, width - names - 1)
    cells = min(room, max((len(block[1]) for block in blocks), default=0))
    across = max(1, (width + 2) // (names + 1 + cells + 2))
    text = Text(no_wrap=True, end="")
    column = 0
    for name, gpus in blocks:
        for start in range(0, max(1, len(gpus)), room):
            if column == across:
                column = 0
                text.append("\n")
            elif column:
                text.append("  ")
            part = gpus[start : start + room]
            head = name.copy() if start == 0 else Text()
            head.pad_right(names + 1 - head.cell_len)
            text.append_text(head).append_text(part)
            column += 1
            if column < across:
                text.append(" " * (cells - len(part)))
    return text


def _block(server: Row, letters: Letters, chosen: int | None) -> tuple[Text, Text]:
    """The name of a server and its cells."""
    state = _STATES.get(server.get("state", "up"), "")
    name = Text(printable(server["server"]), style="bold" if not state else "red")
    name.truncate(_NAME_CELLS, overflow="ellipsis")
    if state:
        name.append(f" {state}", style="red")
    cells = Text()
    for (sign, style), run in groupby(_cell(gpu, letters, chosen) for gpu in server["gpus"]):
        cells.append(sign * sum(1 for _ in run), style)
    return name, cells


def _cell(gpu: Mapping[str, object], letters: Letters, chosen: int | None) -> tuple[str, str]:
    if gpu["state"] == "free":
        return FREE, "dim"
    if gpu["state"] == "unusable":
        return UNUSABLE, "red"
    job = gpu["job_id"]
    if not isinstance(job, int):
        return HIDDEN, "dim"
    letter, colour = letters.mark(job)
    return letter, f"{colour} bold reverse" if job == chosen else colour
