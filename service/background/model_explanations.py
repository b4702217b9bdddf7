"""What moved a model, whether it serves or served once: its files outlast it."""

import logging
import threading
from collections.abc import Sequence

from policies.model.estimate import Unit
from predictor.errors import ArtifactError
from predictor.explain import Contributions, contributions
from predictor.registry import load_version
from predictor.serving import LivePredictor
from predictor.training import TrainedModel
from service.db.models import find_version
from service.db.session import Database

logger = logging.getLogger(__name__)


class Explainer:
    """Explains predictions by the model that made them. Methods may be called from any thread.

    Of the models that serve no more the one that was asked for last stays in memory; loading one takes about a second.
    """

    def __init__(self, database: Database, predictor: LivePredictor) -> None:
        self._database = database
        self._predictor = predictor
        self._lock = threading.Lock()
        self._loaded: tuple[str, TrainedModel | None] = ("", None)

    def contributions(self, version: str, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
        """What moved the model of a prediction (``<model>/<kind>``), from a feature vector of this version of Sooner.

        None where it is not on record any more, or nothing of it can be explained.
        """
        model_id = version.partition("/")[0]
        model = self._predictor.model(model_id) or self._stored(model_id)
        return None if model is None else contributions(model, unit, vector)

    def _stored(self, model_id: str) -> TrainedModel | None:
        # One load at a time: whoever comes meanwhile for the same model finds it loaded.
        with self._lock:
            if self._loaded[0] != model_id:
                self._loaded = (model_id, self._load(model_id))
            return self._loaded[1]

    def _load(self, model_id: str) -> TrainedModel | None:
        record = find_version(self._database, model_id=model_id)
        if record is None:
            return None
        try:
            return load_version(record)
        except ArtifactError as error:
            logger.warning("model %s cannot be explained any more: %s", model_id, error)
            return None
