"""The predictors of a simulation, which know the true totals: exact, noisy, adversarial, recorded, or none."""

import math
from collections.abc import Callable, Mapping, Sequence

from policies.model.estimate import Attained, EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.ids import JobId
from service.engine.ports import Predictor
from service.sim.draws import normal, uniform
from service.sim.jobs import SimJob

ADVERSARIAL_SHARE = 0.1
ADVERSARIAL_FACTOR = 100.0
_SIGMA_MAX = 10.0
"""Larger factors than e^10 are meaningless; the limit keeps every estimate finite."""


class PredictorNameError(ValueError):
    """A predictor that does not exist, or a parameter that it does not take."""


class NoPredictor:
    """Implements :class:`service.engine.ports.Predictor`: never an estimate, so jobs are ranked by attained service."""

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """None for each job."""
        return [None] * len(requests)

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Reported totals change nothing."""
        return [None] * len(reported)

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """Nothing is learnt."""

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Nothing is learnt."""
        return ()


class TruthPredictor(NoPredictor):
    """Implements :class:`service.engine.ports.Predictor`: one point, the true total times ``factor(job)``.

    The unit is iterations where the job has a catalogue model or a count of iterations, else seconds of service.
    """

    def __init__(self, jobs: Mapping[JobId, SimJob], factor: Callable[[str], float], source: str) -> None:
        self._jobs = jobs
        self._factor = factor
        self._source = source

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """One point for each job."""
        return [Prediction(self._estimate(self._jobs[request.job])) for request in requests]

    def _estimate(self, job: SimJob) -> Estimate:
        return true_estimate(job, self._factor(job.row.job_id), self._source)


def true_estimate(job: SimJob, factor: float = 1.0, source: str = "oracle") -> Estimate:
    """The true total times ``factor`` as one point, in iterations where the job has any, else in seconds of service."""
    if job.iterations is None:
        return Estimate((job.row.duration_s * factor,), Unit.SERVICE_S, source, seconds_per_unit=1.0)
    per_iteration_s = job.row.duration_s / job.iterations
    return Estimate((job.iterations * factor,), Unit.ITERATIONS, source, seconds_per_unit=per_iteration_s)


class RecordedPredictor(NoPredictor):
    """Implements :class:`service.engine.ports.Predictor`: the predictions that a service made of its own jobs."""

    def __init__(self, jobs: Mapping[JobId, SimJob]) -> None:
        self._jobs = jobs

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """The recorded estimate; None for a job without one."""
        found = [self._jobs[request.job].predicted for request in requests]
        return [Prediction(estimate) if estimate is not None else None for estimate in found]


Listener = Callable[[JobId, Prediction], None]
"""Called with each prediction of a submitted job."""


class ListenedPredictor:
    """Implements :class:`service.engine.ports.Predictor`: the inner one, whose predictions of new jobs are told to a listener."""

    def __init__(self, inner: Predictor, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """What the inner one predicts."""
        answers = self._inner.predict(now_s, requests)
        for request, answer in zip(requests, answers, strict=True):
            if answer is not None:
                self._listener(request.job, answer)
        return answers

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Passed on."""
        return self._inner.revise(now_s, reported)

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """Passed on."""
        self._inner.watch(attained)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Passed on."""
        return self._inner.ended(label)


def make_predictor(
    name: str, jobs: Sequence[SimJob], seed: int, present: Mapping[JobId, SimJob] | None = None
) -> Predictor:
    """The predictor of this name: ``oracle``, ``noisy:SIGMA``, ``adversarial``, ``trained``, ``recorded`` or ``none``.

    ``noisy`` = n exp(SIGMA z) with z ~ N(0, 1) drawn from (seed, job_id); ``adversarial`` = a tenth of the jobs, by seed,
    off by a factor 100 either way; ``trained`` learns from the jobs that have ended in the simulation;
    ``recorded`` repeats the service's predictions of its own jobs. Raises :class:`PredictorNameError`.
    ``present`` holds each job at least from its submission to its prediction, where the caller does not keep all of them.
    """
    by_id = {job.id: job for job in jobs} if present is None else present
    kind, _, parameter = name.partition(":")
    if kind == "noisy":
        sigma = _sigma(parameter)
        return TruthPredictor(by_id, lambda job_id: math.exp(sigma * normal(seed, job_id, "noisy")), name)
    if parameter:
        raise PredictorNameError(f"predictor {kind!r} takes no parameter, got {name!r}")
    if kind == "oracle":
        return TruthPredictor(by_id, lambda job_id: 1.0, name)
    if kind == "adversarial":
        return TruthPredictor(by_id, lambda job_id: adversarial_factor(seed, job_id), name)
    if kind == "none":
        return NoPredictor()
    if kind == "recorded":
        if jobs and all(job.predicted is None for job in jobs):
            raise PredictorNameError(
                "predictor 'recorded' needs jobs that a service has predicted: its own history, which sooner sim what-if replays"
            )
        return RecordedPredictor(by_id)
    if kind == "trained":
        # Only this predictor needs the learning libraries, which take a second to load.
        from predictor.retraining import RetrainingPredictor

        return RetrainingPredictor(seed)
    known = "oracle, noisy:SIGMA, adversarial, trained or none, or recorded for the service's own history"
    raise PredictorNameError(f"unknown predictor {name!r}; use {known}")


def adversarial_factor(seed: int, job_id: str) -> float:
    """100 or 1/100 for a tenth of the jobs, 1 for the others."""
    draw = uniform(seed, job_id, "adversarial")
    if draw >= ADVERSARIAL_SHARE:
        return 1.0
    return ADVERSARIAL_FACTOR if draw < ADVERSARIAL_SHARE / 2 else 1.0 / ADVERSARIAL_FACTOR


def _sigma(text: str) -> float:
    try:
        sigma = float(text)
    except ValueError:
        sigma = math.nan
    if not 0.0 <= sigma <= _SIGMA_MAX:
        raise PredictorNameError(
            f"predictor 'noisy' needs a SIGMA from 0 to {_SIGMA_MAX:g}, as in noisy:0.5; got {text!r}"
        )
    return sigma
