"""The lines at the top: utilisation, queue, cycle, leader, model, the state of the connection, and what needs attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.text import Text

from service.cli.output import printable
from service.cli.top.fields import Row, bar
from service.domain.duration import words_of

SEPARATOR = "  "
ATTENTION_MAX = 2
"""Texts of what needs attention; the number of the others follows. A low terminal has one."""
_BAR_CELLS = 24
_NARROW = 100
_NAME_CELLS = 24


@dataclass(frozen=True)
class Link:
    """The state of the connection. ``broken`` is why there is none; the times are seconds of a monotonic clock."""

    address: str
    read_s: float
    broken: str | None = None
    retry_s: float = 0.0


def strip_lines(overview: Row, link: Link, now_s: float, width: int, *, low: bool = False) -> list[Text]:
    """The lines, for a terminal of so many columns. ``now_s`` is of the clock of ``link``."""
    age_s = max(0.0, now_s - link.read_s)
    fragments = [*_gpus(overview["gpus"], width), *_queue(overview["queue"]), *_running(overview, age_s)]
    broken = link_line(link, now_s, width)
    lines = ([broken] if broken is not None else []) + _flowed(fragments, width)
    attention, most = overview["attention"], 1 if low else ATTENTION_MAX
    texts = [each["text"] for each in attention[:most]]
    if len(attention) > most:
        texts[-1] = f"{texts[-1]} (and {len(attention) - most} more)"
    lines += [_one(f"! {text}", width, "yellow bold") for text in texts]
    return lines


def link_line(link: Link, now_s: float, width: int) -> Text | None:
    """Why the data are stale and how old they are; None while they are read as they should be."""
    if link.broken is None:
        return None
    age = words_of(max(0.0, now_s - link.read_s))
    return _one(f"{link.broken}. Data of {age} ago; trying again every {link.retry_s:g} s.", width, "reverse bold red")


def _one(text: str, width: int, style: str) -> Text:
    line = Text(printable(text), style=style, no_wrap=True)
    line.truncate(width, overflow="ellipsis")
    return line


def _gpus(gpus: Row, width: int) -> Iterator[Text]:
    total, busy = gpus["total"], gpus["busy"]
    share = busy / total if total else 0.0
    cells = _BAR_CELLS if width >= _NARROW else _BAR_CELLS // 2
    yield Text.assemble(("GPUs ", "bold"), (bar(share, cells), "green"), f" {busy:,}/{total:,} busy {share:.0%}")
    for word in ("free", "reserved", "drained", "down"):
        if gpus[word] or (word == "free" and gpus[word] is not None):
            yield Text(f"{gpus[word]:,} {word}", style="red" if word == "down" else "")


def _queue(queue: Row) -> Iterator[Text]:
    yield Text.assemble(("Queue ", "bold"), f"{queue['queued']:,} waiting")
    for word in ("starting", "running", "stopping", "held"):
        if queue[word] or word == "running":
            yield Text(f"{queue[word]:,} {word}")
    if queue["oldest_wait_s"] is not None:
        job = "" if queue["oldest_job_id"] is None else f" (job {queue['oldest_job_id']})"
        yield Text(f"oldest waits {words_of(queue['oldest_wait_s'])}{job}")


def _running(overview: Row, age_s: float) -> Iterator[Text]:
    cycle, leader, model = overview["cycle"], overview["leader"], overview["model"]
    age = "" if cycle["age_s"] is None else f", {words_of(cycle['age_s'] + age_s)} ago"
    health = "" if cycle["healthy"] else ", NOT HEALTHY"
    yield Text.assemble(("Cycle ", "bold"), f"{cycle['number']:,}{age}", (health, "red bold"))
    yield Text.assemble(("Policy ", "bold"), printable(overview["policy"] or "-"))
    name = ("none", "red bold") if leader is None else _one(leader["name"], _NAME_CELLS, "")
    yield Text.assemble(("Leader ", "bold"), name)
    yield Text.assemble(("Model ", "bold"), _model(model))


def _model(model: Row | None) -> str:
    if model is None:
        return "unknown"
    words = [model["version"] or f"none yet, history of {model['known_jobs']:,} jobs"]
    if model["trained_at"] is not None:
        age = datetime.now(UTC) - datetime.fromisoformat(model["trained_at"])
        words.append(f"{words_of(max(0.0, age.total_seconds()))} old")
    if model["drifting"]:
        words.append("DRIFTING")
    return printable(", ".join(words))


def _flowed(fragments: Sequence[Text], width: int) -> list[Text]:
    """The fragments in lines of at most ``width`` cells."""
    lines: list[Text] = []
    for fragment in fragments:
        if lines and lines[-1].cell_len + len(SEPARATOR) + fragment.cell_len <= width:
            lines[-1].append(SEPARATOR).append_text(fragment)
        else:
            fragment.truncate(width, overflow="ellipsis")
            lines.append(fragment)
    return lines
