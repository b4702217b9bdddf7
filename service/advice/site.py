"""Advice beside one Slurm cluster: what is read, what is learnt from its past, and what is kept between two runs."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from service.advice.advice import Advice, advise
from service.advice.calibration import Calibration, Checked, Kind, end_kind, start_kind
from service.advice.learner import Learner
from service.advice.live import ended_jobs, seen
from service.advice.mirror import Mirrored, Seen, mirror
from service.advice.past import PastJob, name_of, unfinished
from service.advice.rehearsal import rehearse
from service.forecast.forecast import ForecastOptions, Spread
from service.slurm.cluster import Slurm
from service.slurm.jobs import SlurmJob

CALIBRATION_AGE_S: Final = 86_400.0
"""A calibration is made anew after a day."""

GROWTH: Final = 1.5
GROWTH_LEAST: Final = 20
SCORES_ENOUGH: Final = 100
"""Or when so many times the jobs of the last calibration have ended, and a few more, as long as fewer forecasts of waiting jobs
than enough were checked: the first days of a new cluster."""

OPEN_MAX: Final = 20_000
"""Newest forecasts whose outcome is awaited."""

REPLAYED_MAX: Final = 2_000
"""Newest jobs of the past that are predicted one by one for a calibration; the predictor learns the others at once."""

REHEARSAL_S: Final = 120.0
"""Longest time for the forecasts of a calibration."""

FORECAST_S: Final = 60.0
"""Longest time for the forecast of a queue, all policies together."""


class _Open(NamedTuple):
    """A forecast that has not come true yet."""

    name: str
    of_start: bool
    kind: Kind
    at_s: float
    raw: Spread
    shown: Spread


class NoGpus(Exception):
    """The cluster has no node with GPUs that Slurm knows. The message is a sentence."""


class Site:
    """One Slurm cluster, its past and its calibration. It only reads from Slurm; ``folder`` keeps what a later run needs again.

    ``past``: reads the jobs that have ended so far, in order of submission; it may raise
    :class:`service.advice.accounting.AccountingError`.
    """

    def __init__(
        self,
        slurm: Slurm,
        folder: Path,
        past: Callable[[float], Sequence[PastJob]],
        options: ForecastOptions | None = None,
    ) -> None:
        self._slurm = slurm
        self._file = folder / "calibration.json"
        self._past = past
        self._options = options or ForecastOptions()
        self._watched: dict[str, PastJob] = {}
        self._known: set[str] = set()
        self._ready = False
        self._open: deque[_Open] = deque(maxlen=OPEN_MAX)
        self.learner = Learner()
        self.calibration = Calibration()

    def look(self, now_s: float) -> Seen:
        """The cluster now. Raises :class:`service.slurm.commands.SlurmError` or :class:`NoGpus`."""
        nodes, jobs = self._slurm.nodes(), self._slurm.jobs()
        found = seen(now_s, nodes, jobs)
        if not any(node.gpus for node in found.nodes):
            raise NoGpus(
                "no node of this Slurm has GPUs as a generic resource (Gres=gpu:...); advice is about jobs with GPUs"
            )
        self._check(found, jobs)
        self._watched |= {name_of(past.asked): past for past in ended_jobs(jobs)}
        return found

    def learn(self, found: Seen, now_s: float) -> None:
        """Learn from what has ended since the last call; the first call also calibrates, if the last calibration is old."""
        # Slurm itself remembers ended jobs for a few minutes: all the past there is without accounting.
        past = {name_of(each.asked): each for each in self._past(now_s)} | self._watched
        new = [each for name, each in past.items() if name not in self._known]
        new.sort(key=lambda each: (each.ended_at_s or 0.0, each.asked.serial))
        self._known.update(past)
        if self._ready and self._holds(self.calibration, len(past), now_s):
            for each in new:
                self.learner.end(each)
            return
        self.learner = Learner()
        self._ready = True
        stored = self._stored()
        if stored is not None and self._holds(stored, len(past), now_s):
            self.calibration = stored
            self.learner.warm(past.values())
            return
        self._calibrate(sorted(past.values(), key=lambda each: each.asked.submitted_at_s), found, now_s)

    def advise(self, found: Seen) -> Advice:
        """Advice on the queue."""
        mirrored = self.mirrored(found)
        deadline_s = time.monotonic() + FORECAST_S
        made = advise(
            mirrored,
            self.learner.of_queue(mirrored),
            self.calibration,
            self._options,
            lambda: time.monotonic() < deadline_s,
        )
        self._open.extend(_shown(made))
        return made

    def mirrored(self, found: Seen) -> Mirrored:
        """The queue as the engine's world."""
        return mirror(found, self._options.jobs_max)

    def _check(self, found: Seen, jobs: Sequence[SlurmJob]) -> None:
        """Learn from the forecasts of earlier calls that have come true since."""
        starts = {name_of(job): job.started_at_s for job in found.jobs if job.started_at_s is not None}
        ended = {name_of(past.asked): past for past in ended_jobs(jobs)}
        waiting = {name_of(job) for job in found.jobs if job.started_at_s is None}
        still: list[_Open] = []
        for each in self._open:
            past = ended.get(each.name)
            actual_s = past.ended_at_s if past is not None and past.started_at_s is not None else None
            if each.of_start:
                actual_s = past.started_at_s if past is not None else starts.get(each.name)
            if actual_s is not None:
                checked = Checked(each.kind, each.at_s, each.name, each.raw, actual_s)
                self.calibration.observe(checked, each.shown)
            elif each.name in waiting or (not each.of_start and each.name in starts):
                still.append(each)
        self._open = deque(still, OPEN_MAX)

    def _calibrate(self, past: Sequence[PastJob], found: Seen, now_s: float) -> None:
        old, new = past[:-REPLAYED_MAX], past[-REPLAYED_MAX:]
        self.learner.warm(old)
        submitted = self.learner.replay([*new, *map(unfinished, found.jobs)])
        deadline_s = time.monotonic() + REHEARSAL_S
        checked = rehearse(submitted, found.nodes, until_s=now_s, keep_going=lambda: time.monotonic() < deadline_s)
        self.calibration = Calibration(now_s, len(past))
        self.calibration.learn(checked)
        self._store()

    @staticmethod
    def _holds(made: Calibration, jobs: int, now_s: float) -> bool:
        """Whether a calibration is young, and rests on enough or the past has not grown much since."""
        enough = made.count(Kind.START_LATER) >= SCORES_ENOUGH or jobs < GROWTH * made.jobs + GROWTH_LEAST
        return 0.0 <= now_s - made.made_at_s < CALIBRATION_AGE_S and enough

    def _stored(self) -> Calibration | None:
        """The calibration of an earlier run, if there is a readable one."""
        try:
            return Calibration.from_dict(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _store(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(self.calibration.to_dict()), encoding="utf-8")
        draft.replace(self._file)


def _shown(made: Advice) -> Iterator[_Open]:
    """The forecasts of an advice."""
    for each in made.jobs:
        name = name_of(each.job)
        if each.raw_start is not None and each.start is not None:
            yield _Open(name, True, start_kind(each.raw_start, made.now_s), made.now_s, each.raw_start, each.start)
        if each.raw_finish is not None and each.finish is not None:
            kind = end_kind(running=each.job.started_at_s is not None)
            yield _Open(name, False, kind, made.now_s, each.raw_finish, each.finish)
