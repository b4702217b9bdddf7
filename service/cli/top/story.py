"""One job's story as sections of text: now, forecast, prediction, attempts, events, the end of its log."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from rich.text import Text

from service.cli.forecast import spread
from service.cli.job_tables import amount, elapsed_s, gpus, prediction_lines
from service.cli.output import printable
from service.cli.top.data import Story
from service.cli.top.fields import bar, share_done
from service.domain.counts import count_of
from service.domain.duration import words_of
from service.wire.jobs import AttemptDocument, EventDocument, JobDocument

LOG_LINES = 60
LINE_MAX = 2000
"""Characters of a line of a log that are shown."""
_BAR_CELLS = 30


class Section(NamedTuple):
    """A part of the story. A part that is a table is cut at the right side instead of being wrapped."""

    title: str
    text: Text
    cut: bool = False


def sections(story: Story) -> Iterator[Section]:
    """The parts from top to bottom."""
    yield Section("Now", Text("\n").join(Text(line) for line in _now(story)))
    yield Section("Forecast", Text("\n".join(_forecast(story))))
    yield Section("Prediction", Text("\n".join(map(printable, prediction_lines(story.prediction)))))
    yield Section("Attempts", Text("\n".join(map(_attempt, story.attempts)) or "It has not started."), cut=True)
    yield Section("Events", Text("\n".join(map(_event, story.events))), cut=True)
    yield Section("Log, last lines", Text("\n".join(log_lines(story.log)) or "The log is empty."), cut=True)


def headline(job: JobDocument) -> str:
    """Number, name and state."""
    held = ", held" if job["held"] else ""
    return printable(f"Job {job['id']}  {job['name']}  {job['state']}{held}")


def _now(story: Story) -> Iterator[str]:
    job, explained = story.job, story.explanation
    of = [f"user {job['user'] or '-'}", f"project {job['project'] or '-'}", f"priority {job['priority']}"]
    servers = f" on {', '.join(job['servers'])}" if job["servers"] else ""
    yield printable(f"{', '.join(of)}; {count_of(job['gpus'], 'GPU')}{servers}")
    yield f"submitted {_at(job['submitted_at'])}, {words_of(elapsed_s(job['submitted_at'], None) or 0.0)} ago" + _ended(
        job
    )
    share = share_done(job)
    if share is not None:
        beyond = "  longer than predicted" if share > 1.0 else ""
        yield f"{bar(share, _BAR_CELLS)} {share:.0%} of the predicted total{_iterations(job)}{beyond}"
    yield printable(explained["sentence"])
    if explained["will_preempt"]:
        others = ", ".join(map(str, explained["will_preempt"]))
        yield f"Will preempt job {others}{_when(explained['preemption_at'])}, unless something changes before."
    if explained["will_be_preempted_by"] is not None:
        other = explained["will_be_preempted_by"]
        yield f"Will be preempted by job {other}{_when(explained['preemption_at'])}, unless something changes before."


def _ended(job: JobDocument) -> str:
    if job["finished_at"] is None:
        return ""
    code = "" if job["exit_code"] is None else f", exit code {job['exit_code']}"
    return f"; ended {_at(job['finished_at'])}{code}"


def _iterations(job: JobDocument) -> str:
    prediction = job["prediction"]
    if job["iterations_done"] is None or prediction is None or prediction["unit"] != "iterations":
        return ""
    return f", {amount(job['iterations_done'])} of {amount(prediction['p50'])} iterations"


def _forecast(story: Story) -> Iterator[str]:
    found = story.forecast
    if isinstance(found, str):
        yield printable(found)
        return
    for word, of in (("Starts", found["start_at"]), ("Ends", found["finish_at"])):
        if of is not None:
            yield f"{word} {spread(of, found['made_at'])}"
    if found["reason"]:
        yield printable(found["reason"])
    yield printable(f"from {found['samples']} sampled futures; totals from: {found['source']}")


def _attempt(attempt: AttemptDocument) -> str:
    ran = words_of(elapsed_s(attempt["started_at"], attempt["ended_at"]) or 0.0)
    last = "" if attempt["last_iteration"] is None else amount(attempt["last_iteration"])
    code = "" if attempt["exit_code"] is None else f"  exit {attempt['exit_code']}"
    why = str(attempt["reason"] or "")
    reason = f" ({why})" if why not in ("", str(attempt["state"])) else ""
    return printable(
        f"{attempt['number']:>3}  {attempt['state']}{reason}  from {_at(attempt['opened_at'])}  ran {ran}"
        f"  iterations {amount(attempt['resume_iteration'])} to {last or '?'}{code}  {gpus(attempt)}"
    )


def _event(event: EventDocument) -> str:
    source = event["source"] or "(new)"
    why = ", ".join(dict.fromkeys((str(event["cause"]), str(event["reason"]))))
    detail = f": {event['detail']}" if event["detail"] else ""
    return printable(f"{_at(event['at']):<15}  {source:>10} -> {event['target']:<10}  {why}{detail}")


def log_lines(log: bytes | str) -> list[str]:
    """The last lines of a log as a terminal would show them, without what controls a terminal."""
    if isinstance(log, str):
        return [printable(log)]
    lines = log.decode("utf-8", errors="replace").split("\n")
    while lines and not lines[-1]:
        lines.pop()
    # Progress bars write over their line: what follows the last carriage return is what remains.
    return [printable(line.rstrip("\r").rpartition("\r")[2][:LINE_MAX].expandtabs()) for line in lines[-LOG_LINES:]]


def _when(text: str | None) -> str:
    return "" if text is None else f" at {_at(text)}"


def _at(text: str) -> str:
    """A time in this machine's zone: ``14:20:07`` today, ``Nov 23 14:20:07`` on another day."""
    at = datetime.fromisoformat(text).astimezone()
    today = at.date() == datetime.now(UTC).astimezone().date()
    return at.strftime("%H:%M:%S" if today else "%b %d %H:%M:%S")
