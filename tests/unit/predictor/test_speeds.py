"""Corrections of modelled iteration times, learnt from measurements."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from policies.model.estimate import EndedJob, PredictionRequest
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown, Span, SpanSeconds
from predictor.serving import LivePredictor
from predictor.speeds import SpeedLearner

GRAPH = StageGraph((Stage("s0", 1.0, 2.0, 10.0),), ())


def spec(name: str, user: str = "ann", model: str | None = None, **more: Any) -> JobSpec:
    config = ParallelismConfig((4,), (1,))
    return JobSpec(name=name, user=user, gpus=4, stage_graph=GRAPH, parallelism=config, model=model, **more)


def ended(job: JobSpec, gpu_type: str, **ratios: float) -> EndedJob:
    """A run whose measured over modelled seconds are these, by span."""
    return EndedJob(JobId(1), job, 0.0, 1.0, 100.0, 1.0, "succeeded", seconds_by_span=SpanSeconds(gpu_type, **ratios))


def learnt(*labels: EndedJob) -> SpeedLearner:
    learner = SpeedLearner()
    for label in labels:
        learner.observe(label)
    return learner


def correction(learner: SpeedLearner, job: JobSpec) -> Slowdown:
    found = learner.slowdown(job)
    assert found is not None
    return found


def test_nothing_measured_is_no_correction() -> None:
    assert SpeedLearner().slowdown(spec("a")) is None
    bare = JobSpec(name="a", user="ann", gpus=4)
    learner = learnt(ended(bare, "V100", server=3.0))
    assert learner.slowdown(spec("a")) is None
    assert learnt(ended(spec("a"), "V100", server=2.0)).slowdown(bare) is None


def test_a_programs_own_runs_count_most() -> None:
    learner = learnt(*[ended(spec("a"), "V100", server=2.0)] * 5)
    assert correction(learner, spec("a")).at("V100", Span.SERVER) == pytest.approx(2.0, rel=0.1)
    # One program says little of another, more of one of its user, and most of one of its model.
    learner = learnt(*[ended(spec("a", model="bert"), "V100", server=2.0)] * 5)
    other, same_user, same_model = (
        correction(learner, job).at("V100", Span.SERVER)
        for job in (spec("b", "bob"), spec("b"), spec("b", "bob", "bert"))
    )
    assert 1.0 < other < same_user < same_model < 2.0
    assert other < 1.25


def test_what_all_programs_share_is_the_correction_of_a_new_one() -> None:
    learner = learnt(*(ended(spec(f"p{n}", f"u{n}"), "V100", server=1.4) for n in range(20)))
    assert correction(learner, spec("new", "eve")).at("V100", Span.SERVER) == pytest.approx(1.4, rel=0.06)


def test_a_wrong_speed_of_a_type_is_corrected_by_programs_that_ran_on_both() -> None:
    """The model takes an A100 for a V100, but it is 2.5 times as fast."""
    rng = random.Random(3)
    learner = SpeedLearner()
    for n in range(12):
        own = rng.lognormvariate(0.0, 0.3)
        learner.observe(ended(spec(f"p{n}", f"u{n}"), "V100", server=own * rng.lognormvariate(0, 0.05)))
        learner.observe(ended(spec(f"p{n}", f"u{n}"), "A100", server=own / 2.5 * rng.lognormvariate(0, 0.05)))
    learner.observe(ended(spec("new", "eve"), "V100", server=1.7))
    found = correction(learner, spec("new", "eve"))
    assert found.at("V100", Span.SERVER) == pytest.approx(1.7, rel=0.15)
    assert found.at("V100", Span.SERVER) / found.at("A100", Span.SERVER) == pytest.approx(2.5, rel=0.2)


def test_a_span_that_the_model_takes_for_too_fast_is_corrected() -> None:
    runs = [ended(spec(f"p{n}", f"u{n}"), "V100", server=1.0, cluster=1.5) for n in range(12)]
    found = correction(learnt(*runs), spec("new", "eve"))
    assert found.cluster / found.server == pytest.approx(1.5, rel=0.1)
    assert found.rack / found.server == pytest.approx(1.0, rel=0.1)


def test_one_outlier_and_one_large_array_do_not_move_the_others() -> None:
    usual = [ended(spec(f"p{n}", f"u{n}"), "V100", server=1.1) for n in range(10)]
    flood = [ended(spec("flood", "bob"), "V100", server=30.0)] * 500
    found = correction(learnt(*usual, *flood), spec("new", "eve"))
    assert found.at("V100", Span.SERVER) == pytest.approx(1.1, rel=0.1)
    own = correction(learnt(*[ended(spec("a"), "V100", server=s) for s in (1.2, 1.2, 50.0, 1.2, 1.2)]), spec("a"))
    assert own.at("V100", Span.SERVER) == pytest.approx(1.2, rel=0.1)


@pytest.mark.parametrize("model", [None, "bert"], ids=["another program", "another program of the model"])
def test_the_reports_of_one_user_do_not_decide_the_corrections_of_others(model: str | None) -> None:
    """The user's programs report speeds that are wrong by 9,000 times, on two types and at two spans."""
    usual = [
        ended(spec(f"p{n}", f"u{n}", model), gpu_type, server=1.1, cluster=1.1)
        for n in range(3)
        for gpu_type in ("V100", "A100")
    ]
    flood = [
        ended(spec(f"flood{n}", "mallory", model), gpu_type, server=9e3, cluster=9e3 / ratio)
        for n in range(100)
        for gpu_type, ratio in (("V100", 1.0), ("A100", 8e3), ("V100", 5e3))
    ]
    found = correction(learnt(*usual, *flood, *usual), spec("new", "eve", model))
    factors = [found.at(name, span) for name in ("V100", "A100") for span in (Span.SERVER, Span.CLUSTER)]
    assert all(1.1 / 1.7 < factor < 1.1 * 1.7 for factor in factors), factors
    # Where nothing else is known the reports count for little.
    found = correction(learnt(*flood), spec("new", "eve"))
    assert all(1e-3 < found.at(name, span) < 1e3 for name in ("V100", "A100") for span in Span)


def test_a_prediction_looks_at_so_many_runs_however_many_ended() -> None:
    runs = [ended(spec(f"p{n}", f"u{u}", "bert"), "V100", server=2.0) for u in range(25) for n in range(25)]
    learner = learnt(*runs)
    groups = [("all",), ("model", "bert"), ("user", "u24")]
    assert [len(list(learner._groups[key])) for key in groups] == [100, 100, 20]
    assert correction(learner, spec("new", "eve")).at("V100", Span.SERVER) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("broken", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_broken_measurement_is_ignored(broken: float) -> None:
    assert learnt(ended(spec("a"), "V100", server=broken)).slowdown(spec("a")) is None


def test_equal_labels_give_equal_answers() -> None:
    runs = [ended(spec(f"p{n % 3}"), ("V100", "A100")[n % 2], server=1.0 + n / 10) for n in range(30)]
    assert learnt(*runs).slowdown(spec("p1")) == learnt(*runs).slowdown(spec("p1"))


def test_estimates_carry_the_correction_and_a_restart_changes_nothing() -> None:
    graph = spec("a")
    labels = [
        replace(ended(graph, "V100", server=2.0), job=JobId(n), submitted_at_s=10.0 * n, ended_at_s=10.0 * n + 5)
        for n in range(1, 6)
    ]
    live = LivePredictor(speeds=SpeedLearner())
    for label in labels:
        live.ended(label)
    warmed, bare_one = LivePredictor(speeds=SpeedLearner()), LivePredictor()
    warmed.warm(reversed(labels))
    bare_one.warm(labels)
    request = PredictionRequest(JobId(9), graph, 100.0)
    [first], [second], [without] = (each.predict(100.0, [request]) for each in (live, warmed, bare_one))
    assert first is not None and second is not None and without is not None
    assert first.estimate.slowdown is not None
    assert first.estimate.slowdown.at("V100", Span.SERVER) == pytest.approx(2.0, rel=0.1)
    assert second.estimate.slowdown == first.estimate.slowdown
    assert without.estimate.slowdown is None
    bare = PredictionRequest(JobId(10), JobSpec(name="a", user="ann", gpus=4), 100.0)
    [plain] = live.predict(100.0, [bare])
    assert plain is None or plain.estimate.slowdown is None
