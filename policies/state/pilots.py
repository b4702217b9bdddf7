"""Of each program with several runs in the queue the *pilot*: the run from whose end the estimates of the others are made again.

The runs of a new sweep have one estimate, which may be wrong for all of them, and what is wrong shows when one has ended. So the
first one is worth more than its own end (:func:`policies.rank.gittins_units`). Our construction.
"""

from collections.abc import Sequence

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
        return 1 << (len(runs).bit_length() - 1) if runs[0] == job else 1

    def note(self, job: JobView) -> None:
        """The job has arrived, has left, or has another estimate."""
        known, program = self._programs.get(job.id), _program(job)
        if program == known:
            return
        for each in (known, program):
            if each is None:
                continue
            runs = self._runs.get(each)
            pilot = runs[0] if runs else None
            alike = 1 if pilot is None else self.alike(pilot)
            if each is known:
                self._leave(job.id, each)
            else:
                self._join(job.id, each)
            runs = self._runs.get(each)
            if runs and (runs[0] != pilot or self.alike(runs[0]) != alike):
                self._changed[runs[0]] = None
                if pilot is not None:
                    self._changed[pilot] = None

    def changed(self) -> Sequence[JobId]:
        """The jobs whose number of alike runs has changed since the last call, ascending; some may have ended."""
        found = sorted(self._changed)
        self._changed.clear()
        return found

    def _join(self, job: JobId, program: Program) -> None:
        self._programs[job] = program
        self._runs.setdefault(program, SortedList()).add(job)

    def _leave(self, job: JobId, program: Program) -> None:
        del self._programs[job]
        runs = self._runs[program]
        runs.remove(job)
        if not runs:
            del self._runs[program]


def _program(job: JobView) -> Program | None:
    """The program among whose runs the job counts; None for none."""
    estimate, spec = job.estimate, job.spec
    if estimate is None or not estimate.trusted or len(estimate.points) == 1 or not (spec.recurrence_key or spec.name):
        return None
    return spec.recurrence if job.waiting or job.placement is not None else None
