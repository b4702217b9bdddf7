"""The replay sheet: predictions by models that had not seen the job, equal after reading."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from policies.model.estimate import Unit
from predictor.experts import BASIC
from predictor.intervals import estimate_points
from predictor.prequential import HeadTest, serve
from predictor.replay_sheet import BASELINES, CHAMPION, NEW, read_sheet, write_sheet
from predictor.rows import ended_row
from predictor.training import TrainedModel, train
from tests.unit.predictor.predictor_history import recurring_history

HISTORY = recurring_history(240, reports=False)
OLD_ROWS = 190


@cache
def _trained() -> tuple[Mapping[Unit, HeadTest], TrainedModel]:
    """The test of a model, and the champion of 50 jobs ago."""
    tested: dict[Unit, HeadTest] = {}

    def keep(unit: Unit, test: HeadTest) -> None:
        tested[unit] = test

    train(map(ended_row, HISTORY), seed=3, on_tested=keep)
    return tested, train(map(ended_row, HISTORY[:OLD_ROWS]), seed=4)


def test_the_new_model_answers_as_in_its_test_and_the_baselines_without_any(tmp_path: Path) -> None:
    tested, _ = _trained()
    ((run, served, _),) = tested.values()
    write_sheet(tmp_path / "sheet.jsonl", tested, None, 10)
    sheet = list(read_sheet(tmp_path / "sheet.jsonl"))
    newest = sorted(run.examples[run.test_start :], key=lambda each: each.ended_at_s)[-10:]
    assert {job.row.submission.job for job in sheet} == {each.submission.job for each in newest}
    rows = {each.submission.job: row for row, each in enumerate(run.examples[run.test_start :])}
    alone = serve(run, BASIC)
    for job in sheet:
        assert set(job.points) == {BASELINES, NEW}
        row = rows[job.row.submission.job]
        for arm, own in ((NEW, served), (BASELINES, alone)):
            assert np.log(job.points[arm]) == pytest.approx(estimate_points(own.tested(run)[row]), abs=1e-4)
        assert job.row.service_s == pytest.approx(np.exp(run.labels[row]))
        assert job.unit is Unit.SERVICE_S


def test_the_champion_answers_itself_only_for_what_it_had_not_seen(tmp_path: Path) -> None:
    tested, champion = _trained()
    ((run, _, _),) = tested.values()
    path = tmp_path / "sheet.jsonl.gz"
    assert write_sheet(path, tested, champion, 1000) == 96
    sheet = list(read_sheet(path))
    jobs = run.examples[run.test_start :]
    assert [job.row.submission for job in sheet] == [example.submission for example in jobs]
    fresh = [row for row, each in enumerate(jobs) if each.submission.submitted_at_s > champion.trained_until_s]
    assert 0 < len(fresh) < len(jobs)
    differ = [job.points[CHAMPION] != job.points[NEW] for job in sheet]
    assert not any(differ[: fresh[0]]), "what it was trained on, models fitted before predict in its place"
    assert any(differ[fresh[0] :]), "the two models predict otherwise"
