"""The live predictor, with and without history and models, under the contract of every predictor."""

from functools import cache

from predictor.serving import LivePredictor
from service.engine.ports import Predictor
from tests.conformance.predictor_suite import PredictorSuite
from tests.unit.predictor.predictor_history import recurring_history, small_model


@cache
def _history(reports: bool) -> tuple:
    return tuple(recurring_history(240, reports=reports))


class TestCold(PredictorSuite):
    def make(self) -> Predictor:
        return LivePredictor()


class TestFromHistory(PredictorSuite):
    def make(self) -> Predictor:
        predictor = LivePredictor()
        predictor.warm(_history(True))
        return predictor


class TestWithAModel(PredictorSuite):
    def make(self) -> Predictor:
        predictor = LivePredictor()
        predictor.warm(_history(False))
        predictor.use(small_model())
        return predictor
