"""Predictions, models, forecasts, and what another policy would do."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from service.client.flow import Flow, Many
from service.client.noun import C, Noun, call, segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.wire.jobs import PredictionDocument
    from service.wire.predictions import (
        AccuracyDocument,
        CalibrationDocument,
        ForecastsDocument,
        ModelDocument,
        PredictorDocument,
        ThroughputDocument,
        TrainingRunDocument,
    )
    from service.wire.shadow import ShadowDocument


class Predictions(Noun[C]):
    """``client.predictions``."""

    @call
    def list(
        self, job_id: int | None = None, *, limit: int | None = None, since: datetime | None = None
    ) -> Many[PredictionDocument]:
        """Predictions, newest first; of one job if given; all pages, or at most ``limit``, and only those made ``since`` then."""
        older = None if since is None else lambda each: datetime.fromisoformat(each["made_at"]) < since
        return self._pages("/v1/predictions", {"job": job_id}, limit, older)

    @call
    def predictor(self) -> Flow[PredictorDocument]:
        """What predicts now, and how far it is trusted."""
        return self._get("/v1/predictor")

    @call
    def calibration(self) -> Flow[CalibrationDocument]:
        """How often the totals of the newest ended jobs were at most each quantile."""
        return self._get("/v1/predictions/calibration")

    @call
    def throughput(self, *, limit: int | None = None) -> Many[ThroughputDocument]:
        """Measured seconds per iteration; all pages, or at most ``limit``."""
        return self._pages("/v1/throughput", limit=limit)


class Models(Noun[C]):
    """``client.models``."""

    @call
    def list(self, *, limit: int | None = None) -> Many[ModelDocument]:
        """Models, newest first; all pages, or at most ``limit``."""
        return self._pages("/v1/models", limit=limit)

    @call
    def show(self, model_id: str) -> Flow[ModelDocument]:
        """One model with its metrics."""
        return self._get(f"/v1/models/{segment(model_id)}")

    @call
    def train(self) -> Flow[int]:
        """Start a retraining; the number of its run."""
        answer = yield from self._post("/v1/models/train")
        return int(answer["training_run"])

    @call
    def training_run(self, run: int) -> Flow[TrainingRunDocument]:
        """One retraining; its ``outcome`` is None while it runs."""
        return self._get(f"/v1/training-runs/{run}")

    @call
    def promote(self, model_id: str) -> Flow[str]:
        """Make a model the champion; its id."""
        answer = yield from self._post(f"/v1/models/{segment(model_id)}/promote")
        return str(answer["champion"])


class Forecasts(Noun[C]):
    """``client.forecasts``: when jobs will start and end. One job's: ``client.jobs.forecast``."""

    @call
    def show(self, jobs: Sequence[int] | None = None) -> Flow[ForecastsDocument]:
        """Those of the unfinished jobs (of ``jobs``, at most 500, if given).

        :class:`ApiError` of status 409 says why there is no forecast.
        """
        return self._get("/v1/forecasts", None if jobs is None else {"job": list(jobs)})

    @call
    def accuracy(self, days: int = 30) -> Flow[AccuracyDocument]:
        """The accuracy of the forecasts of the last ``days``."""
        return self._get("/v1/forecasts/accuracy", {"days": days})


class Shadow(Noun[C]):
    """``client.shadow``: a second policy that has no effect."""

    @call
    def show(self) -> Flow[ShadowDocument]:
        """What the shadow policy would have done. :class:`ApiError` of status 404 without a shadow policy."""
        return self._get("/v1/shadow")
