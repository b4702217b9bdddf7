"""Slowdowns by span are learnt from noisy speeds, and drawn from ever wider groups where a program was not measured."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, Estimate, Prediction, PredictionRequest, Reported, Unit
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Slowdown, Span, SpanSeconds
from predictor import locality
from predictor.locality import PRIOR, SlowdownLearner
from predictor.serving import LivePredictor

UNKNOWN = Slowdown(math.exp(PRIOR.rack), math.exp(sum(PRIOR)), measured=False)


def spec_of(name: str = "a", gpus: int = 4, user: str = "ann", model: str | None = None, **more: object) -> JobSpec:
    return JobSpec(name, user, gpus, model=model, **more)  # type: ignore[arg-type]


def ran(spec: JobSpec, gpu_type: str = "V100", **seconds: float) -> EndedJob:
    """A job that was measured at these spans."""
    return EndedJob(JobId(1), spec, 0.0, 9.0, None, 9.0, "succeeded", seconds_by_span=SpanSeconds(gpu_type, **seconds))


def after(labels: Sequence[EndedJob]) -> SlowdownLearner:
    learner = SlowdownLearner()
    for label in labels:
        learner.observe(label)
    return learner


def close(found: Slowdown, rack: float, cluster: float, rel: float = 0.05) -> bool:
    return found.rack == pytest.approx(rack, rel=rel) and found.cluster == pytest.approx(cluster, rel=rel)


def test_before_any_measurement_the_prior_answers() -> None:
    assert SlowdownLearner().slowdown(spec_of()) == UNKNOWN
    useless = [ran(spec_of(), server=1.0), ran(spec_of(gpus=1), server=1.0, rack=3.0)]
    assert after(useless).slowdown(spec_of()) == UNKNOWN, "one span alone compares nothing"


@pytest.mark.parametrize("true", [Slowdown(1.0, 1.0), Slowdown(1.0, 1.6), Slowdown(1.5, 1.5), Slowdown(1.8, 3.2)])
@pytest.mark.parametrize("within", [True, False], ids=["one run at all spans", "each run at one"])
def test_it_converges_to_the_truth_in_spite_of_noise_and_outliers(true: Slowdown, within: bool) -> None:
    draw = random.Random(7)
    labels = []
    for number in range(45):
        noise = math.exp(draw.gauss(0.0, 0.05)) * (8.0 if number % 9 == 8 else 1.0)
        seconds = {span.value: 0.2 * noise * true.factor(span) for span in Span}
        span = list(Span)[number % 3].value
        labels.append(ran(spec_of(), **(seconds if within else {span: seconds[span]})))
    found = after(labels).slowdown(spec_of())
    assert close(found, true.rack, true.cluster, rel=0.07)
    assert found.measured


def test_groups_of_cells_that_are_dropped_are_dropped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "CELLS_MAX", 10)
    steep, flat = (
        [ran(spec_of(f"{name}{n}", user=name, model=name), server=1.0, rack=r) for n in range(15)]
        for name, r in (("x", 4.0), ("y", 1.0))
    )
    learner = after([*steep, *flat])
    assert len(learner._groups) == 14, "all, one size, one user, one model, ten programs"
    only = after(flat[5:])
    for spec in (spec_of("new", user="x", model="x"), spec_of("new", user="y"), spec_of("y14", user="y", model="y")):
        found, wanted = learner.slowdown(spec), only.slowdown(spec)
        assert (found.rack, found.cluster) == pytest.approx((wanted.rack, wanted.cluster))
        assert found.measured == wanted.measured


def test_server_against_cluster_is_divided_as_elsewhere() -> None:
    """Other programs lose everything within the rack; so does, as far as is known, one that was measured over both steps."""
    others = [ran(spec_of(f"p{number}"), server=1.0, rack=2.0, cluster=2.0) for number in range(40)]
    found = after([*others, *[ran(spec_of(), server=1.0, cluster=3.0)] * 10]).slowdown(spec_of())
    assert close(found, 2.9, 3.0)


def test_an_unmeasured_program_is_like_its_narrowest_known_group() -> None:
    known = {
        "all": (1.1, [spec_of(f"x{n}", 64, "bob") for n in range(60)]),
        "gpus": (1.3, [spec_of(f"y{n}", 4, "eve") for n in range(60)]),
        "user": (1.6, [spec_of(f"z{n}", 16, "ann") for n in range(60)]),
        "model": (2.2, [spec_of(f"m{n}", 16, "dan", model="bert") for n in range(60)]),
        "program": (3.0, [spec_of("a", 32, "ann", model="bert")]),
    }
    labels: list[EndedJob] = []
    for _, (factor, specs) in known.items():
        labels += [ran(spec, server=1.0, rack=factor, cluster=factor) for spec in specs]
        # The levels follow each other: each new one counts more than those before.
    learner = after(labels)
    found = [
        learner.slowdown(spec).rack
        for spec in (
            spec_of("new", 64, "new"),
            spec_of("new", 4, "new"),
            spec_of("new", 8, "ann"),
            spec_of("new", 8, "ann", model="bert"),
            spec_of("a", 8, "ann", model="bert"),
        )
    ]
    assert found == sorted(found)
    assert found == pytest.approx([1.1, 1.3, 1.6, 2.2, 2.6], rel=0.08)
    assert [learner.slowdown(spec_of("new")).measured, learner.slowdown(spec_of("a")).measured] == [False, True]


def test_gpu_types_are_not_compared_with_each_other() -> None:
    labels = [ran(spec_of(), "A100", server=1.0)] * 5 + [ran(spec_of(), "V100", rack=9.0)] * 5
    assert after(labels).slowdown(spec_of()) == UNKNOWN
    both = [*labels, *[ran(spec_of(), "V100", server=7.5)] * 5]
    assert after(both).slowdown(spec_of(gpu_type="V100")).rack == pytest.approx(1.2, rel=0.05)


def test_one_program_that_runs_often_does_not_speak_for_all() -> None:
    one = [ran(spec_of("often"), server=1.0, rack=4.0, cluster=4.0)] * 500
    assert after(one).slowdown(spec_of("new", 64, "bob")).rack < 1.25 * UNKNOWN.rack


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from((1, 2, 8)),
            st.dictionaries(st.sampled_from([span.value for span in Span]), st.floats(1e-300, 1e300), min_size=1),
        ),
        max_size=20,
    )
)
def test_any_measurements_give_a_slowdown_that_grows_with_the_span(
    given: list[tuple[str, int, dict[str, float]]],
) -> None:
    learner = after([ran(spec_of(name, gpus), **seconds) for name, gpus, seconds in given])
    for name in "abcd":
        found = learner.slowdown(spec_of(name, 8))
        assert 1.0 <= found.rack <= found.cluster < 100.0


def test_the_cell_that_was_measured_longest_ago_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locality, "CELLS_MAX", 3)
    kept = [ran(spec_of(f"p{number}"), server=1.0, rack=2.0, cluster=2.0) for number in range(3)]
    dropped = ran(spec_of("old"), server=1.0, rack=9.0, cluster=9.0)
    expected, learner = after(kept), after([dropped, *kept])
    for name in ("old", "p0", "new"):
        found, wanted = learner.slowdown(spec_of(name)), expected.slowdown(spec_of(name))
        assert close(found, wanted.rack, wanted.cluster, rel=0.05)
        assert found.measured == wanted.measured


def asked(predictor: LivePredictor, spec: JobSpec) -> Slowdown | None:
    (answer,) = predictor.predict(0.0, [PredictionRequest(JobId(99), spec, 50.0)])
    assert answer is not None
    return answer.estimate.slowdown


def test_the_live_predictor_gives_gangs_their_slowdown_and_a_restart_changes_nothing() -> None:
    labels = [replace(ran(spec_of(), server=1.0, rack=2.0, cluster=2.0 + n), job=JobId(n + 1)) for n in range(6)]
    labels = [replace(label, ended_at_s=9.0 + label.job, iterations=9.0) for label in labels]
    lived = LivePredictor(slowdowns=SlowdownLearner())
    for label in labels:
        lived.ended(label)
    warmed = LivePredictor(slowdowns=SlowdownLearner())
    warmed.warm(reversed(labels))
    found = asked(lived, spec_of())
    assert found is not None
    assert found == asked(warmed, spec_of())
    assert found.measured
    assert asked(lived, spec_of(gpus=1)) is None
    graph = StageGraph((Stage("all", 1.0, 2.0, 900),), ())
    assert asked(lived, spec_of(stage_graph=graph, parallelism=ParallelismConfig((4,), (1,)))) is None
    without = LivePredictor()
    without.warm(labels)
    assert asked(without, spec_of()) is None


def reported(job: int, spec: JobSpec, slowdown: Slowdown | None, **seconds: float) -> Reported:
    estimate = Estimate((9.0,), Unit.ITERATIONS, "test", slowdown=slowdown)
    request = PredictionRequest(JobId(job), spec, 0.0)
    return Reported(request, estimate, 1.0, 1.0, None, None, seconds_by_span=SpanSeconds("V100", **seconds))


def test_a_running_job_teaches_at_once_and_its_end_says_nothing_twice() -> None:
    spec = spec_of()
    learner = after([ran(spec, server=1.0)])
    first = learner.revise(reported(7, spec, UNKNOWN, rack=2.0), None)
    assert first is not None
    found = first.estimate.slowdown
    assert found is not None
    assert found == learner.slowdown(spec)
    assert (found.measured, found.rack > 1.6) == (True, True)
    again = learner.revise(reported(7, spec, found, rack=2.0), None)
    assert again is None, "nothing new"
    learner.observe(replace(ran(spec, rack=2.0), job=JobId(7)))
    assert learner.slowdown(spec) == found
    learner.observe(replace(ran(spec, rack=2.0), job=JobId(8)))
    assert learner.slowdown(spec).rack > found.rack, "another run says more"


def test_both_spans_of_one_run_are_one_comparison_however_they_arrive() -> None:
    spec = spec_of()
    live, late = SlowdownLearner(), SlowdownLearner()
    live.revise(reported(7, spec, None, rack=3.0), None)
    live.revise(reported(7, spec, None, server=1.5, rack=3.0), None)
    for learner in (live, late):
        learner.observe(replace(ran(spec, server=1.5, rack=3.0), job=JobId(7)))
    assert live.slowdown(spec) == late.slowdown(spec)


def test_a_revision_for_another_reason_is_kept() -> None:
    learner, spec = SlowdownLearner(), spec_of()
    answer = Prediction(Estimate((5.0,), Unit.ITERATIONS, "reported", slowdown=UNKNOWN), "f1", (1.0,))
    assert learner.revise(reported(7, spec, UNKNOWN, rack=2.0), answer) == answer
    learner.observe(ran(spec, server=1.0))
    both = learner.revise(reported(8, spec, UNKNOWN, cluster=2.0), answer)
    assert both is not None
    assert both == replace(answer, estimate=replace(answer.estimate, slowdown=learner.slowdown(spec)))
    assert learner.revise(reported(9, spec_of(gpus=1), None, server=2.0), None) is None
    unpredicted = replace(reported(10, spec, None, rack=2.0), estimate=None)
    assert learner.revise(unpredicted, None) is None
    said = learner.revise(replace(unpredicted, request=PredictionRequest(JobId(11), spec, 0.0)), answer)
    assert said is not None
    assert said.estimate.slowdown == learner.slowdown(spec)
