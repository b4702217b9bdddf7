"""``--set nice``: the only thing that advice mode ever changes in Slurm, and how it is undone.

The priorities that a partition's waiting jobs have are dealt out anew among these jobs, in A-SRPT's order, by each job's nice
value. So no more jobs are ahead of an untouched one than before; single ones may pass it. Before a value is written, the file
says what it was and what it will be, so that it is undone after a crash at any instant. A value that anyone else has changed
since is left alone.
"""

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from policies.model.ids import JobId
from service.advice.mirror import Mirrored
from service.runtime.signals import signals_later
from service.slurm.cluster import Slurm
from service.slurm.commands import SlurmAway, SlurmError, SlurmMissing, SlurmRefused, SlurmTimeout, own_user
from service.slurm.jobs import SlurmJob

NICE_MAX: Final = 100_000
"""Nice values that are set lie within this of zero. Slurm's own limit is about 2,000,000,000."""

CHANGES_MAX: Final = 200
"""Values that are changed at a time, those of the first jobs of the order. One change takes Slurm a few milliseconds."""

FILE: Final = "nice.json"

_SCHEMA: Final = "sooner.advice.nice/1"
_OPERATORS: Final = frozenset({"operator", "administrator"})


class NiceError(Exception):
    """The order cannot be set or undone: one line that says why and what helps."""


class Rights(NamedTuple):
    """What this user may change: ``operator`` any job and negative values, else the own jobs and values from 0 on."""

    user: str
    operator: bool


class Waiting(NamedTuple):
    """A waiting job, or all waiting tasks of an array. ``before``: the nice value without this program."""

    id: int
    group: str
    priority: int
    nice: int
    before: int

    @property
    def base(self) -> int:
        """The priority that it would have without this program."""
        return self.priority + self.nice - self.before


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call did. ``refused`` by Slurm; ``foreign``: left alone, because another has changed the value since;
    ``unreachable``: why Slurm did not answer, if so."""

    changed: int = 0
    refused: int = 0
    foreign: int = 0
    unreachable: str = ""


@dataclass(slots=True)
class Kept:
    """What the file says of one job: the value before, and those that this program has written or was about to write."""

    submitted_at_s: float
    before: int
    written: list[int] = field(default_factory=list)

    def wrote(self, nice: int) -> bool:
        """Whether this program may have set the value."""
        return nice != self.before and nice in self.written

    def is_of(self, job: SlurmJob) -> bool:
        """Whether the job is the one that was changed, or that one requeued, and not a new one with its number."""
        submitted_at_s = job.submit_s or 0.0
        if submitted_at_s == self.submitted_at_s:
            return True
        return submitted_at_s > self.submitted_at_s and (job.nice == self.before or self.wrote(job.nice))


def rights(slurm: Slurm) -> Rights:
    """The rights of the user of this process. Raises :class:`service.slurm.commands.SlurmError`."""
    user = own_user()
    owner = slurm.config().get("SlurmUser", "").partition("(")[0]
    if os.geteuid() == 0 or user == owner:
        return Rights(user, operator=True)
    try:
        level = slurm.commands.run("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel")
    except (SlurmMissing, SlurmRefused, SlurmAway, SlurmTimeout):
        return Rights(user, operator=False)
    return Rights(user, level.strip().lower() in _OPERATORS)


def values(waiting: Sequence[Waiting], operator: bool, nice_max: int = NICE_MAX) -> dict[int, int]:
    """The nice values that bring the jobs, which come in the wanted order, into it; only those that differ from the present.

    An operator deals the jobs' own priorities out anew. Without that right values are only raised: each job is put behind the
    one before it. Jobs of different groups keep their priorities towards each other. O(n log n).
    """
    groups: dict[str, list[Waiting]] = {}
    for job in waiting:
        groups.setdefault(job.group, []).append(job)
    found: dict[int, int] = {}
    for jobs in groups.values():
        if all(one.priority > other.priority for one, other in pairwise(jobs)):
            continue  # The order is right: no value needs to change.
        dealt = sorted((job.base for job in jobs), reverse=True)
        ceiling = 2**32
        for job, priority in zip(jobs, dealt, strict=True):
            wanted = max(1, min(ceiling - 1, priority if operator else job.base))
            nice = job.before + job.base - wanted
            nice = min(nice_max, max(-nice_max if operator else 0, nice))
            ceiling = job.base + job.before - nice
            if nice != job.nice:
                found[job.id] = nice
    return dict(list(found.items())[:CHANGES_MAX])


class NiceOrder:
    """Sets the order of waiting jobs. One process at a time has the file; see :func:`locked`."""

    def __init__(self, slurm: Slurm, folder: Path, allowed: Rights, nice_max: int = NICE_MAX) -> None:
        """Read what an earlier run left. Raises :class:`NiceError`."""
        self._slurm = slurm
        self._file = folder / FILE
        self._allowed = allowed
        self._nice_max = nice_max
        self._refused: set[int] = set()
        self._kept = _read(self._file)

    @property
    def kept(self) -> int:
        """Jobs whose values are to be restored."""
        return len(self._kept)

    def apply(self, mirrored: Mirrored, order: Sequence[JobId]) -> Outcome:
        """Bring the waiting jobs into this order, as far as this user may. Raises :class:`SlurmError` and OSError."""
        present = self._present()
        wanted = values(list(self._waiting(mirrored, order, present)), self._allowed.operator, self._nice_max)
        for number, nice in wanted.items():
            job = present[number]
            self._kept.setdefault(number, Kept(job.submit_s or 0.0, job.nice)).written.append(nice)
        if wanted:
            self._write()
        return self._change(wanted)

    def undo(self) -> Outcome:
        """Restore every value that this program has set and that no other has changed since.

        Raises :class:`SlurmError` and OSError.
        """
        present = self._present()
        ours = {number: kept for number, kept in self._kept.items() if kept.wrote(present[number].nice)}
        foreign = sum(present[number].nice != kept.before for number, kept in self._kept.items() if number not in ours)
        done = self._change({number: kept.before for number, kept in ours.items()})
        if not done.unreachable:
            # What Slurm refused still has a value of this program.
            self._kept = {number: kept for number, kept in ours.items() if kept.wrote(present[number].nice)}
            self._write()
        return replace(done, foreign=foreign)

    def _present(self) -> dict[int, SlurmJob]:
        """The unfinished jobs, one for an array: a waiting task if there is one. The kept values of others are forgotten.

        A requeue gives a job a new time of submission and leaves its nice value. A new job with an old number comes with a
        value of its own.
        """
        found: dict[int, SlurmJob] = {}
        for job in self._slurm.jobs():
            number = job.array_job_id or job.id
            if not job.ended and (number not in found or job.state == "PENDING"):
                found[number] = job
        self._kept = {
            number: replace(kept, submitted_at_s=found[number].submit_s or 0.0)
            for number, kept in self._kept.items()
            if number in found and kept.is_of(found[number])
        }
        return found

    def _waiting(
        self, mirrored: Mirrored, order: Sequence[JobId], present: Mapping[int, SlurmJob]
    ) -> Iterator[Waiting]:
        """The jobs that may be touched, in the wanted order; an array stands where the first of its tasks does."""
        seen: set[int] = set()
        for each in order:
            job = mirrored.jobs[each]
            number = job.serial[0]
            found = present.get(number)
            if found is None or found.state != "PENDING" or not found.priority or job.held or number in seen:
                continue
            seen.add(number)
            if number in self._refused or (not self._allowed.operator and found.user != self._allowed.user):
                continue
            kept = self._kept.get(number)
            if kept is not None and found.nice != kept.before and not kept.wrote(found.nice):
                continue
            yield Waiting(number, job.group, found.priority, found.nice, found.nice if kept is None else kept.before)

    def _change(self, wanted: Mapping[int, int]) -> Outcome:
        """Write the values one by one, each whole: a signal is handled after it. Where Slurm does not answer, the others are left
        for the next time.
        """
        changed = refused = 0
        for number, nice in wanted.items():
            try:
                # Of a write that is broken off, Slurm may carry out the rest after the undoing.
                with signals_later(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    self._slurm.update_job(number, {"Nice": str(nice)})
            except SlurmRefused:
                refused += 1
                self._refused.add(number)
            except SlurmError as error:
                return Outcome(changed, refused, unreachable=str(error))
            else:
                changed += 1
                # An earlier value cannot come back; this one, or one that a call of unknown effect sets, is undone.
                self._kept[number].written = [nice]
        return Outcome(changed, refused)

    def _write(self) -> None:
        """Replace the file; after a crash either the old or the new one is there."""
        jobs = {
            str(number): {"submitted_at_s": kept.submitted_at_s, "before": kept.before, "written": kept.written}
            for number, kept in self._kept.items()
        }
        draft = self._file.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as stream:
            json.dump({"schema": _SCHEMA, "jobs": jobs}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def kept_values(folder: Path) -> int:
    """How many jobs carry values of an earlier run, by its file. Raises :class:`NiceError`."""
    return len(_read(folder / FILE))


def _read(file: Path) -> dict[int, Kept]:
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        if given["schema"] != _SCHEMA:
            raise NiceError(f"{file}: schema {given['schema']!r} is unknown, this version reads {_SCHEMA!r}")
        return {
            int(number): Kept(
                float(each["submitted_at_s"]), int(each["before"]), [int(nice) for nice in each["written"]]
            )
            for number, each in given["jobs"].items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NiceError(f"{file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NiceError(
            f"{file} is damaged ({error!r}): the nice values that it named are not known any more;"
            " compare `squeue -o '%i %y'` with what you expect, and remove the file"
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep all other processes from setting or undoing values. Raises :class:`NiceError` if one does now."""
    file = folder / "nice.lock"
    try:
        with file.open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NiceError(
                    f"another `sooner advise --set nice` runs with the folder {folder}; end it first"
                ) from None
            yield
    except OSError as error:
        raise NiceError(f"{file}: {error.strerror or error}") from error
