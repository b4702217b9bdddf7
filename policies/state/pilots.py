"""Of each program with several runs in the queue the *pilot*: the run from whose end the estimates of the others are made again.

The runs of a new sweep have one estimate, which may be wrong for all of them, and what is wrong shows when one has ended. So the
first one is worth more than its own end (:func:`policies.rank.gittins_units`). Our construction.
"""

from collections.abc import Iterable, Sequence

from policies.model.ids import JobId
from policies.model.view import JobView
from policies.state.sorted_list import SortedList

Program = tuple[str, str, str]
"""The recurrence key of a job."""


class Pilots:
    """The unfinished runs of each program that compete for GPUs or hold some, as far as they have distributions and a name.

    What it holds follows from the jobs alone: after a restart it is the same. O(log n) for each change.
    """

    __slots__ = ("_changed", "_programs", "_runs")

    def __init__(self) -> None:
        self._programs: dict[JobId, Program] = {}
        self._runs: dict[Program, SortedList[JobId]] = {}
        self._changed: dict[JobId, None] = {}

    def alike(self, job: JobId) -> int:
        """How many runs learn from the end of this job, itself included: the greatest power of two up to the number of its
        program's runs if it is the pilot, which is the first one submitted; else 1.
        """
        program = self._programs.get(job)
        if program is None:
            return 1
        runs = self._runs[program]
        return _alike(runs) if runs[0] == job else 1

    def note_all(self, jobs: Iterable[JobView]) -> None:
        """Note many jobs before any is known, and before their ranks are computed: nothing has changed then."""
        found: dict[Program, tuple[Program, list[JobId]]] = {}
        for job in jobs:
            program = _program(job)
            if program is not None:
                shared, runs = found.setdefault(program, (program, []))
                self._programs[job.id] = shared
                runs.append(job.id)
        self._runs = {program: SortedList(runs) for program, runs in found.values()}

    def note(self, job: JobView) -> None:
        """The job has arrived, has left, or has another estimate."""
        known, program = self._programs.get(job.id), _program(job)
        if program == known:
            return
        if known is not None:
            runs = self._runs[known]
            before = _pilot(runs)
            del self._programs[job.id]
            runs.remove(job.id)
            if len(runs) == 0:
                del self._runs[known]
            self._compare(before, _pilot(runs))
        if program is not None:
            runs = self._runs.setdefault(program, SortedList())
            before = _pilot(runs)
            self._programs[job.id] = program
            runs.add(job.id)
            self._compare(before, _pilot(runs))

    def changed(self) -> Sequence[JobId]:
        """The jobs whose number of alike runs has changed since the last call, ascending; some may have ended."""
        found = sorted(self._changed)
        self._changed.clear()
        return found

    def _compare(self, before: tuple[JobId, int] | None, now: tuple[JobId, int] | None) -> None:
        if now != before:
            for each in (before, now):
                if each is not None:
                    self._changed[each[0]] = None


def _pilot(runs: SortedList[JobId]) -> tuple[JobId, int] | None:
    """The pilot of these runs, and how many learn from it; None without runs."""
    return (runs[0], _alike(runs)) if len(runs) else None


def _alike(runs: SortedList[JobId]) -> int:
    return 1 << (len(runs).bit_length() - 1)


def _program(job: JobView) -> Program | None:
    """The program among whose runs the job counts; None for none."""
    estimate, spec = job.estimate, job.spec
    if estimate is None or not estimate.trusted or len(estimate.points) == 1 or not (spec.recurrence_key or spec.name):
        return None
    return spec.recurrence if job.waiting or job.placement is not None else None
