"""The protocol on a real trace: the numbers of plain baselines are reproduced, and the models beat them.

NASA iPSC/860 1993: acknowledge Bill Nitzberg and the Parallel Workloads Archive. Processors stand for GPUs.
"""

import pytest

from policies.model.estimate import Unit
from predictor import prequential
from predictor.dataset import Example, Knowledge, replay
from predictor.evaluation import measure
from predictor.experts import BASIC
from predictor.rows import EndedRow, Submission
from predictor.training import ESTIMATORS
from service.sim.workloads.importers.swf import import_swf
from tests.simulation.traces import trace

pytestmark = pytest.mark.traces


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    rows = [
        EndedRow(
            Submission(number, job.user, job.project, job.name, job.gpus, job.submit_time_s),
            job.end_time_s if job.end_time_s is not None else job.submit_time_s + job.duration_s,
            None,
            job.duration_s,
        )
        for number, job in enumerate(import_swf(trace("nasa-ipsc-1993.swf.gz")).jobs)
    ]
    return [found[Unit.SERVICE_S] for _, found in replay(rows, Knowledge())]


def test_the_recurrence_median_measures_what_others_measured(examples: list[Example]) -> None:
    test_start = int(len(examples) * 0.6)
    outcome = prequential.run(examples, {}, test_start=test_start, chunks=1, seed=0)
    assert len(examples) == 18_066
    known = measure(outcome.labels, outcome.tested["recurrence_median20"])
    assert known.mae == pytest.approx(513, abs=5)
    assert known.median_ape == pytest.approx(0.45, abs=0.01)
    assert known.r2_log == pytest.approx(0.47, abs=0.01)
    assert known.within_2x == pytest.approx(0.626, abs=0.005)
    assert known.kendall_tau == pytest.approx(0.546, abs=0.005)
    assert known.under_4x == pytest.approx(0.093, abs=0.005)
    assert known.pinball_log == pytest.approx(0.277, abs=0.003)
    assert known.coverage_80 == pytest.approx(0.82, abs=0.01)
    assert set(outcome.tested) == set(BASIC)


@pytest.mark.slow
def test_the_quantile_forest_beats_it_by_a_seventh(examples: list[Example]) -> None:
    kinds = {"quantile_forest": ESTIMATORS["quantile_forest"]}
    outcome = prequential.run(examples, kinds, test_start=int(len(examples) * 0.6), chunks=3, seed=0)
    forest = measure(outcome.labels, outcome.tested["quantile_forest"])
    median = measure(outcome.labels, outcome.tested["recurrence_median20"])
    assert forest.pinball_log <= 0.86 * median.pinball_log
    assert forest.mae <= 0.97 * median.mae
    assert forest.kendall_tau >= 0.575
    assert forest.within_2x >= 0.635
    assert 0.75 <= forest.coverage_80 <= 0.87
