"""Predicted run times of Slurm's jobs: the project's predictor, fed with the cluster's accounting."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from policies.model.estimate import Estimate, PredictionRequest, Unit
from policies.model.ids import JobId
from predictor.serving import LivePredictor
from service.advice.mirror import Mirrored, MirrorJob
from service.advice.past import PastJob, name_of

ENDING_S = 5.0
"""A job that Slurm is completing holds its GPUs about this long."""

GUESS_LEAST = 0.01
GUESS_POINTS = 20
"""A job about which nothing is known runs for 1% to 100% of its time limit, each order of magnitude being as likely."""


class Submitted(NamedTuple):
    """What became of one job at its submission: the estimate that was made of it then."""

    job: PastJob
    estimate: Estimate | None


class Learner:
    """Predicts jobs by what it has learnt. Not thread-safe."""

    def __init__(self) -> None:
        # Slurm ends a job at its limit, with OverTimeLimit later: the ended jobs show it.
        self.predictor = LivePredictor(walltimes_enforced=None)
        self._numbers: dict[str, JobId] = {}
        self._count = itertools.count(1)
        self.learnt = 0

    def warm(self, past: Iterable[PastJob]) -> None:
        """Learn from ended jobs at once. Called before anything else, at most once."""
        labels = [each.label(self._number(name_of(each.asked))) for each in past if each.ran_s > 0.0]
        self.learnt += len(labels)
        self.predictor.warm(labels)

    def replay(self, past: Sequence[PastJob]) -> list[Submitted]:
        """Predict each job at its submission and learn from it at its end, in the order of time.

        The estimates know nothing that came later. They are scored as each job ends, so the predictor is calibrated afterwards.
        """
        events = [(each.asked.submitted_at_s, 1, number, each) for number, each in enumerate(past)]
        events += [
            (each.ended_at_s, 0, number, each) for number, each in enumerate(past) if each.ended_at_s is not None
        ]
        found: list[Submitted] = []
        for at_s, submitted, _, each in sorted(events, key=lambda event: event[:3]):
            if submitted:
                found.append(Submitted(each, self.estimates(at_s, [each.asked])[0]))
            else:
                self.end(each)
        return found

    def end(self, past: PastJob) -> None:
        """Learn from a job that has ended. One that never ran teaches nothing."""
        name = name_of(past.asked)
        self.predictor.ended(past.label(self._number(name)))
        del self._numbers[name]
        self.learnt += past.ran_s > 0.0

    def estimates(self, now_s: float, jobs: Sequence[MirrorJob]) -> list[Estimate | None]:
        """The estimate of each job's total run time; None where nothing is known and the job has no time limit."""
        requests = [PredictionRequest(self._number(name_of(job)), job.spec, job.submitted_at_s) for job in jobs]
        predictions = self.predictor.predict(now_s, requests)
        return [
            prediction.estimate if prediction is not None else _guess(job)
            for job, prediction in zip(jobs, predictions, strict=True)
        ]

    def of_queue(self, mirrored: Mirrored) -> dict[JobId, Estimate]:
        """The estimates of all jobs of a mirrored queue."""
        now_s = mirrored.snapshot.now_s
        found = self.estimates(now_s, list(mirrored.jobs.values()))
        return refined(mirrored, dict(zip(mirrored.jobs, found, strict=True)))

    def _number(self, name: str) -> JobId:
        if name not in self._numbers:
            self._numbers[name] = JobId(next(self._count))
        return self._numbers[name]


def refined(mirrored: Mirrored, estimates: Mapping[JobId, Estimate | None]) -> dict[JobId, Estimate]:
    """The estimates of a queue: a job that Slurm is completing ends at once."""
    now_s = mirrored.snapshot.now_s
    found: dict[JobId, Estimate] = {}
    for number, job in mirrored.jobs.items():
        estimate = estimates[number]
        if job.ending and job.started_at_s is not None:
            found[number] = Estimate((now_s - job.started_at_s + ENDING_S,), Unit.SERVICE_S, "it is completing")
        elif estimate is not None:
            found[number] = estimate
    return found


def _guess(job: MirrorJob) -> Estimate | None:
    if job.limit_s is None or job.limit_s <= 0.0:
        return None
    span = -math.log(GUESS_LEAST)
    points = (job.limit_s * math.exp(span * ((index + 0.5) / GUESS_POINTS - 1.0)) for index in range(GUESS_POINTS))
    return Estimate(
        tuple(points), Unit.SERVICE_S, f"no history: {GUESS_LEAST:.0%} to 100% of the time limit", trusted=False
    )
