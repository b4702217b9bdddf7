"""A predictor whose estimates say what is known of the hidden slowdowns: nothing, what ended jobs have shown, or the truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from policies.model.estimate import Attained, EndedJob, Prediction, PredictionRequest, Reported
from policies.model.ids import JobId
from policies.model.placement import Slowdown
from predictor.locality import SlowdownLearner
from service.engine.ports import Predictor
from service.sim.jobs import SimJob
from service.sim.sensitivity import Sensitivity


class LocatingPredictor:
    """Implements :class:`service.engine.ports.Predictor`: another one's estimates, with the slowdowns that are known."""

    def __init__(self, inner: Predictor, jobs: Mapping[JobId, SimJob], sensitivity: Sensitivity) -> None:
        self._inner = inner
        self._jobs = jobs
        self._sensitivity = sensitivity
        self._learner = SlowdownLearner() if sensitivity is Sensitivity.LEARNT else None

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        """The other predictor's estimates."""
        answers = self._inner.predict(now_s, requests)
        return [
            None
            if answer is None
            else replace(answer, estimate=replace(answer.estimate, slowdown=self._known(request)))
            for request, answer in zip(requests, answers, strict=True)
        ]

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        """Those of the other one; with what is learnt of the job's slowdown."""
        answers = self._inner.revise(now_s, reported)
        if self._learner is None:
            return answers
        return [self._learner.revise(each, answer) for each, answer in zip(reported, answers, strict=True)]

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        """Passed on."""
        self._inner.watch(attained)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        """Both learn."""
        if self._learner is not None:
            self._learner.observe(label)
        return self._inner.ended(label)

    def _known(self, request: PredictionRequest) -> Slowdown | None:
        if request.spec.stage_graph is not None or request.spec.gpus == 1:
            return None
        if self._learner is not None:
            return self._learner.slowdown(request.spec)
        return self._jobs[request.job].slowdown if self._sensitivity is Sensitivity.KNOWN else None
