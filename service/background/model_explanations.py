"""Feature contributions to a prediction, by the model that made it. The files of retired models are kept."""

import logging
import threading
from collections.abc import Sequence

from policies.model.estimate import Unit
from predictor.artifacts import load_version
from predictor.errors import ArtifactError
from predictor.explain import Contributions, contributions
from predictor.serving import LivePredictor
from predictor.training import TrainedModel
from service.db.models import find_version
from service.db.session import Database

logger = logging.getLogger(__name__)


class Explainer:
    """Explains predictions by the model that made them. Any thread may call the methods.

    The retired model that was used last stays in memory. Loading one takes about 1 s.
    """

    def __init__(self, database: Database, predictor: LivePredictor) -> None:
        self._database = database
        self._predictor = predictor
        self._lock = threading.Lock()
        self._loaded: tuple[str, TrainedModel | None] = ("", None)

    def contributions(self, version: str, unit: Unit, vector: Sequence[float | None]) -> Contributions | None:
        """Contributions to a prediction of ``version`` (``<model>/<kind>``), from a feature vector of this version of Sooner.

        None if the model has no record or cannot be explained.
        """
        model_id = version.partition("/")[0]
        model = self._predictor.model(model_id) or self._stored(model_id)
        return None if model is None else contributions(model, unit, vector)

    def _stored(self, model_id: str) -> TrainedModel | None:
        # The lock prevents a second load of the same model by a concurrent call.
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
            logger.warning("model %s cannot be loaded for an explanation: %s", model_id, error)
            return None
