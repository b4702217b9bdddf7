"""The replay sheet: predictions by models that had not seen the job, equal after reading."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from policies.model.estimate import Unit
from predictor import replay_sheet
from predictor.prequential import Run
from predictor.replay_sheet import BASELINES, CHAMPION, arms_of, read_sheet, write_sheet
from predictor.rows import ended_row
from predictor.training import TrainedModel, train
from tests.unit.predictor.predictor_history import recurring_history

HISTORY = recurring_history(240, reports=False)
OLD_ROWS = 190
KIND = "xgboost"


def _won_by(model: TrainedModel, kind: str, *, passed: bool) -> TrainedModel:
    """The model with this kind as its champion."""
    (head,) = model.heads.values()
    verdicts = tuple(replace(v, passed=passed and v.kind == kind) for v in head.verdicts)
    return replace(model, heads={head.unit: replace(head, champion=kind, verdicts=verdicts)})


@cache
def _trained() -> tuple[TrainedModel, Mapping[Unit, Run], TrainedModel]:
    """A model, its test, and the champion of 50 jobs ago."""
    runs: dict[Unit, Run] = {}
    model = train(map(ended_row, HISTORY), seed=3, on_tested=runs.__setitem__)
    return model, runs, train(map(ended_row, HISTORY[:OLD_ROWS]), seed=4)


def _wins_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.training.TrainedHead.beats_baselines", lambda *_: True)


def test_the_champion_answers_itself_only_for_what_it_had_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wins_all(monkeypatch)
    model, runs, champion = _trained()
    champion = _won_by(champion, KIND, passed=True)
    (run,) = runs.values()
    (head,) = champion.heads.values()
    path = tmp_path / "sheet.jsonl.gz"
    assert write_sheet(path, model, runs, champion, 1000) == 96
    sheet = list(read_sheet(path))
    tested = run.examples[run.test_start :]
    assert [job.row.submission for job in sheet] == [example.submission for example in tested]
    fresh = [row for row, each in enumerate(tested) if each.submission.submitted_at_s > champion.trained_until_s]
    assert 0 < len(fresh) < len(tested)
    for row, job in enumerate(sheet):
        if row not in fresh:
            assert np.log(job.points[CHAMPION]) == pytest.approx(run.points[KIND][row], abs=1e-4)
    first = tested[fresh[0]]
    raw = first.base + head.estimators[KIND].predict_points(np.array([first.features]))[0]
    own = head.calibrators[KIND].calibrate(first.bucket, raw)
    assert np.log(sheet[fresh[0]].points[CHAMPION]) == pytest.approx(own, abs=1e-4)
    assert np.abs(own - run.points[KIND][fresh[0]]).max() > 1e-3, "the two would have answered differently"


def test_a_kind_that_passed_answers_as_in_the_test_and_the_others_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wins_all(monkeypatch)
    model, runs, _ = _trained()
    (run,) = runs.values()
    model = _won_by(model, KIND, passed=True)
    assert arms_of(model) == {KIND: {Unit.SERVICE_S: KIND}}
    write_sheet(tmp_path / "sheet.jsonl", model, runs, None, 10)
    sheet = list(read_sheet(tmp_path / "sheet.jsonl"))
    newest = sorted(run.examples[run.test_start :], key=lambda each: each.ended_at_s)[-10:]
    assert {job.row.submission.job for job in sheet} == {each.submission.job for each in newest}
    rows = {each.submission.job: row for row, each in enumerate(run.examples[run.test_start :])}
    for job in sheet:
        assert set(job.points) == {BASELINES, KIND}
        row = rows[job.row.submission.job]
        assert np.log(job.points[KIND]) == pytest.approx(run.points[KIND][row], abs=1e-4)
        assert np.log(job.points[BASELINES]) == pytest.approx(run.points["recurrence_median20"][row], abs=1e-4)
        assert job.row.service_s == pytest.approx(np.exp(run.labels[row]))
        assert job.unit is Unit.SERVICE_S


def test_where_a_kind_does_not_serve_the_recurrence_median_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runs, _ = _trained()
    (run,) = runs.values()
    monkeypatch.setattr("predictor.training.TrainedHead.beats_baselines", lambda _self, _kind, bucket: bucket == 2)
    write_sheet(tmp_path / "sheet.jsonl", _won_by(model, KIND, passed=True), runs, None, 1000)
    differ = [job.points[KIND] != job.points[BASELINES] for job in read_sheet(tmp_path / "sheet.jsonl")]
    assert differ == [bucket == 2 for bucket in run.buckets]
    assert any(differ)
    assert not all(differ)


def test_no_kind_that_failed_everywhere_has_an_arm() -> None:
    model, _, _ = _trained()
    assert replay_sheet.arms_of(_won_by(model, KIND, passed=False)) == {}
