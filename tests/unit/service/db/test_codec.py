"""Documents: what is written is read back equal, and nothing else is read at all."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue.shapes import SHAPES
from policies.model.cluster import Server
from policies.model.decision import Action, Change, ChangeKind, Preempt, Reserve, Start
from policies.model.estimate import Estimate, ShadowPrediction, Slowdown, Unit
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex
from policies.model.job import IterationTimes, JobSpec, Launch, PreemptionSignal, Volume
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare
from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.reasons import Reason
from service.db.codec import (
    CodecError,
    RequestPayload,
    decode,
    decode_actions,
    decode_changes,
    decode_refusals,
    decode_shadows,
    encode,
    encode_actions,
    encode_changes,
    encode_refusals,
    encode_shadows,
)

FEW = settings(max_examples=60, deadline=None)

numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**63), 2**63)
ids = st.integers(1, 10**9).map(JobId)
servers = st.integers(0, 10**6).map(ServerIndex)
words = st.text(max_size=12)
mappings = st.dictionaries(words, words, max_size=3)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=3).map(tuple)


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | of


PLANS = [
    TrainingPlan(),
    TrainingPlan(
        data=4, tensor=2, pipeline=2, virtual_stages=3, context=2, expert=4, expert_tensor=2, sequence_parallel=True,
        zero_stage=1, shard_group=4, micro_batch=2, global_batch=64, sequence=8192, precision=Precision.FP8,
        recompute=Recompute.FULL, schedule=PipelineSchedule.INTERLEAVED, fp32_gradients=False, dropout=True, graphed=True,
    ),
]  # fmt: skip

placements = st.builds(Placement, tuples(st.builds(ServerShare, servers, whole, tuples(whole))))
stages = st.builds(Stage, words, numbers, numbers, whole, whole)
specs = st.builds(
    JobSpec,
    name=words,
    user=words,
    gpus=whole,
    project=words,
    command=tuples(words),
    env=mappings,
    working_dir=maybe(words),
    cpus=maybe(st.integers(1, 100)),
    memory_gib=maybe(st.floats(0.1, 100.0)),
    gpu_memory_gib=maybe(st.floats(0.1, 100.0)),
    image=maybe(words),
    volumes=st.lists(st.builds(Volume, words, words, st.booleans()), max_size=2).map(tuple),
    stage_graph=maybe(st.builds(StageGraph, tuples(stages), tuples(st.tuples(whole, whole, whole)))),
    parallelism=maybe(
        st.builds(
            ParallelismConfig, tuples(whole), tuples(whole), st.sampled_from(PipelineSchedule), whole, st.booleans()
        )
    ),
    model=maybe(words),
    batch_size=maybe(whole),
    gpu_type=maybe(words),
    declared_iterations=maybe(whole),
    walltime_s=maybe(numbers),
    priority=whole,
    checkpoint_period_s=maybe(numbers),
    max_retries=whole,
    after=tuples(ids),
    hold=st.booleans(),
    labels=mappings,
    recurrence_key=maybe(words),
    gpus_min=maybe(whole),
    gpus_max=maybe(whole),
    preemption=maybe(st.builds(PreemptionSignal, words, numbers)),
    launch=st.sampled_from(Launch),
    plan=maybe(st.sampled_from(PLANS)),
    shape=maybe(st.sampled_from([found.shape for found in SHAPES.values()])),
)
described = st.builds(Server, words, whole, words, words, numbers, numbers, numbers, maybe(numbers))
values = st.one_of(
    specs,
    placements,
    described,
    st.builds(Estimate, tuples(numbers), st.sampled_from(Unit), words, words, maybe(numbers), st.booleans()),
    st.builds(IterationTimes, numbers, numbers, numbers),
    st.builds(RequestPayload, maybe(servers), maybe(whole), st.booleans(), maybe(described)),
)
changes = st.builds(
    Change, st.sampled_from(ChangeKind), maybe(ids), maybe(placements), maybe(servers), maybe(st.sampled_from(Reason))
)
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Start, ids, placements),
    st.builds(Preempt, ids, maybe(ids)),
    st.builds(Reserve, ids, maybe(placements)),
)


def through_json(document: dict[str, Any]) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


@FEW
@given(values)
def test_a_value_comes_back_equal(value: object) -> None:
    again = decode(type(value), through_json(encode(value)))
    assert again == value
    assert repr(again) == repr(value), "types too: a tuple is a tuple, an enumeration is its member"


@FEW
@given(st.lists(changes, max_size=4), st.lists(actions, max_size=4))
def test_cycles_come_back_equal(told: list[Change], done: list[Action]) -> None:
    assert decode_changes(through_json(encode_changes(told))) == told
    assert decode_actions(through_json(encode_actions(done))) == done


@FEW
@given(
    st.lists(st.tuples(ids, st.sampled_from(Reason)), max_size=3),
    tuples(st.builds(ShadowPrediction, words, tuples(numbers))),
)
def test_refusals_and_shadows_come_back_equal(
    refusals: list[tuple[JobId, Reason]], shadows: tuple[ShadowPrediction, ...]
) -> None:
    assert decode_refusals(through_json(encode_refusals(refusals))) == refusals
    assert decode_shadows(through_json(encode_shadows(shadows))) == list(shadows)


def test_the_form_is_the_documented_one() -> None:
    """Other versions of the program read these documents: the form may change only together with the version."""
    estimate = Estimate((1.0, 2.5), Unit.ITERATIONS, "14 past runs", seconds_per_unit=0.5)
    assert encode(estimate) == {
        "v": 1,
        "points": [1.0, 2.5],
        "unit": "iterations",
        "source": "14 past runs",
        "model_version": "",
        "seconds_per_unit": 0.5,
        "trusted": True,
    }
    slow = replace(estimate, slowdown=Slowdown(1.25, 2.0))
    assert encode(slow) == encode(estimate) | {
        "slowdown": {"rack": 1.25, "cluster": 2.0, "measured": True, "server": 1.0, "gpu_types": []}
    }
    assert (decode(Estimate, encode(slow)), decode(Estimate, encode(estimate))) == (slow, estimate)
    started = Start(JobId(7), Placement((ServerShare(ServerIndex(0), 4, (2, 2)), ServerShare(ServerIndex(3), 1))))
    assert encode_actions([started, Preempt(JobId(8))]) == {
        "v": 1,
        "items": [
            {"action": "start", "job": 7, "placement": {"shares": [[0, 4, [2, 2]], [3, 1, []]]}},
            {"action": "preempt", "job": 8},
        ],
    }


def test_an_absent_field_is_its_default() -> None:
    assert decode(JobSpec, {"v": 1, "name": "a", "user": "u", "gpus": 2}) == JobSpec("a", "u", 2)


def test_a_plan_and_its_shape_are_objects_of_their_fields() -> None:
    counted, transformer = SHAPES["resnet-50"].shape, SHAPES["llama3-8b"].shape
    plan = TrainingPlan(data=2, global_batch=4)
    document = encode(JobSpec("a", "u", 2, plan=plan, shape=counted))
    assert (document["shape"]["form"], document["shape"]["kind"], document["plan"]["data"]) == ("counted", "cnn", 2)
    assert encode(JobSpec("a", "u", 2, shape=transformer))["shape"]["form"] == "transformer"


SPEC = encode(JobSpec("a", "u", 2))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "version None"),
        ([], "version None"),
        ({**SPEC, "v": 2}, "version 2 is not 1"),
        ({key: value for key, value in SPEC.items() if key != "v"}, "version None"),
        ({**SPEC, "colour": "red"}, "unknown.*colour"),
        ({"v": 1, "name": "a", "user": "u"}, "'gpus' is missing"),
        ({**SPEC, "gpus": "2"}, r"JobSpec\.gpus: '2' is not a whole number"),
        ({**SPEC, "gpus": 2.0}, "not a whole number"),
        ({**SPEC, "gpus": True}, "not a whole number"),
        ({**SPEC, "gpus": None}, "not a whole number"),
        ({**SPEC, "hold": 1}, "not a boolean"),
        ({**SPEC, "name": 3}, "not a string"),
        ({**SPEC, "walltime_s": float("nan")}, "not a finite number"),
        ({**SPEC, "walltime_s": float("inf")}, "not a finite number"),
        ({**SPEC, "walltime_s": True}, "not a finite number"),
        ({**SPEC, "launch": "rocket"}, "'rocket' is not a Launch"),
        ({**SPEC, "command": "ls"}, "expected a list"),
        ({**SPEC, "env": []}, "expected an object"),
        ({**SPEC, "env": {"A": 1}}, r"JobSpec\.env\.A: 1 is not a string"),
        ({**SPEC, "shape": {"layers": 3}}, r"JobSpec\.shape: expected TransformerShape or CountedShape"),
        ({**SPEC, "shape": {"form": "cube"}}, "named by the key 'form'"),
        ({**SPEC, "plan": {"data": 2, "global_batch": 3}}, r"JobSpec\.plan: global_batch: must be a multiple"),
        ({**SPEC, "preemption": {"signal": "SIGUSR1", "why": 1}}, r"JobSpec\.preemption: unknown"),
    ],
)
def test_anything_else_is_refused_and_says_where(document: object, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        decode(JobSpec, document)


@pytest.mark.parametrize(
    "document",
    [
        {"v": 1},
        {"v": 1, "items": {}},
        {"v": 1, "items": [], "more": 1},
        {"v": 1, "items": [{"job": 1}]},
        {"v": 1, "items": [{"action": "explode", "job": 1}]},
        {"v": 1, "items": [{"action": "preempt"}]},
        {"v": 1, "items": [{"action": "start", "job": 1, "placement": {"shares": [[0, 4]]}}]},
    ],
)
def test_malformed_actions_are_refused(document: object) -> None:
    with pytest.raises(CodecError):
        decode_actions(document)


@pytest.mark.parametrize(
    "value",
    [
        replace(JobSpec("a", "u", 2), gpus=2.5),
        replace(JobSpec("a", "u", 2), walltime_s=float("nan")),
        replace(JobSpec("a", "u", 2), launch="server"),
        replace(JobSpec("a", "u", 2), command=["ls"]),
        Estimate((float("inf"),), Unit.SERVICE_S, ""),
        object(),
    ],
)
def test_what_nobody_could_read_back_is_not_written(value: object) -> None:
    with pytest.raises(CodecError):
        encode(value)


def test_numpy_numbers_are_numbers() -> None:
    estimate = Estimate((np.float64(1.5),), Unit.ITERATIONS, "", seconds_per_unit=np.float64(2.0))
    spec = JobSpec("a", "u", np.int64(3))
    assert decode(Estimate, through_json(encode(estimate))) == Estimate(
        (1.5,), Unit.ITERATIONS, "", seconds_per_unit=2.0
    )
    assert type(decode(JobSpec, through_json(encode(spec))).gpus) is int
