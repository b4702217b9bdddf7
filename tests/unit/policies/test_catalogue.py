"""The catalogue against what was published, and its layers as jobs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.catalogue import GPUS, MODELS, UnknownModel, build, default_config, pipeline
from policies.model.graph import StageGraph
from policies.stages import cut


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("vgg19", 143_667_240),
        ("inception_v3", 27_161_264),
        ("bert_large", 335_141_888),
        ("gpt2_medium", 354_823_168),
        ("gpt2_xl", 1_557_611_200),
        ("vit_l16", 304_326_632),
        ("moe_mixtral_8x7b", 46_702_792_704),
    ],
)
def test_parameters_are_those_of_the_published_models(model, parameters) -> None:
    assert MODELS[model].parameters == parameters


def test_every_model_has_a_published_count_to_be_held_against() -> None:
    cases = test_parameters_are_those_of_the_published_models.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {model for model, _ in cases} == set(MODELS)


def test_inception_without_its_auxiliary_classifier() -> None:
    units = [unit for unit in MODELS["inception_v3"].units if unit.name != "auxiliary"]
    assert sum(unit.cost.parameters for unit in units) == 23_834_568


@pytest.mark.parametrize(
    ("model", "macs"), [("resnet50", 4.09e9), ("vgg19", 19.63e9), ("inception_v3", 5.71e9), ("vit_l16", 61.55e9)]
)
def test_multiply_accumulates_are_those_that_torchvision_lists(model, macs) -> None:
    assert MODELS[model].macs == pytest.approx(macs, rel=0.005)


def test_a_token_of_the_mixture_visits_two_experts_of_eight() -> None:
    # 12.9 billion active parameters (arXiv 2401.04088); the embedding is looked up, attention pairs have no parameters.
    model = MODELS["moe_mixtral_8x7b"]
    pairs = 32 * 2 * 4096 * 4096
    assert model.macs / 4096 - pairs + 32000 * 4096 == pytest.approx(12.9e9, rel=0.005)


def test_layer_times_are_operations_over_35_percent_of_the_peak() -> None:
    fc8 = build("vgg19", 3).layers[-1]
    assert fc8.name == "fc8"
    # 4096 x 1000 multiply-accumulates of 2 operations for 3 images
    assert fc8.forward_s == pytest.approx(3 * 2 * 4096 * 1000 / (15.7e12 * 0.35))
    assert fc8.backward_s == pytest.approx(2 * fc8.forward_s)
    assert fc8.parameter_bytes == 4 * (4096 * 1000 + 1000)
    assert fc8.activation_bytes == 4 * 1000 * 3
    slower = build("vgg19", 3, "P100").layers[-1]
    assert slower.forward_s / fc8.forward_s == pytest.approx(15.7 / 10.6)


def test_shapes_chain_through_the_networks() -> None:
    outputs = {unit.name: unit.outputs for unit in MODELS["inception_v3"].units}
    assert outputs["stem2"] == 192 * 35 * 35
    assert outputs["mixed5d"] == 288 * 35 * 35
    assert outputs["mixed6a"] == 768 * 17 * 17
    assert outputs["mixed7a"] == 1280 * 8 * 8
    assert outputs["mixed7c"] == 2048 * 8 * 8
    resnet = {unit.name: unit.outputs for unit in MODELS["resnet50"].units}
    assert (resnet["layer1.2"], resnet["layer4.2"]) == (256 * 56 * 56, 2048 * 7 * 7)
    assert {unit.name: unit.outputs for unit in MODELS["vgg19"].units}["conv5_4"] == 512 * 7 * 7


def test_tensor_traffic_is_two_all_reduces_a_pass_and_shared_by_replicas() -> None:
    block = build("gpt2_medium", 8).layers[1]
    assert block.name == "block0"
    assert block.tensor_bytes == 4 * 4 * 1024 * 1024 * 8
    assert build("gpt2_medium", 8, replicas=4).layers[1].tensor_bytes == block.tensor_bytes // 4


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_can_be_cut_into_stages(model) -> None:
    graph = build(model, 4)
    assert len(graph.layers) == len(MODELS[model].units)
    for stages in (1, 2, 5, len(graph.layers)):
        pieces: StageGraph = cut(graph, stages)
        assert len(pieces.stages) == stages
        assert sum(stage.parameter_bytes for stage in pieces.stages) == 4 * MODELS[model].parameters


def test_default_parallelism() -> None:
    assert default_config("resnet50", 8).replicas == (8,)
    assert default_config("gpt2_xl", 1).replicas == (1,)
    assert default_config("gpt2_xl", 3).replicas == (1, 1, 1)
    assert default_config("gpt2_xl", 8).replicas == (2, 2, 2, 2)
    assert default_config("gpt2_xl", 7).replicas == (3, 2, 2)
    assert default_config("moe_mixtral_8x7b", 8).replicas == (1,) * 8
    assert default_config("moe_mixtral_8x7b", 64).replicas == (2,) * 32


@given(st.sampled_from(sorted(MODELS)), st.integers(1, 300))
@settings(max_examples=150, deadline=None)
def test_a_default_pipeline_uses_exactly_its_gpus(model, gpus) -> None:
    graph, config = pipeline(model, gpus)
    assert config.gpus == gpus
    assert len(graph.stages) == len(config.replicas) == len(config.tensor)
    assert max(config.replicas) - min(config.replicas) <= 1


def test_an_unknown_model_is_an_error_that_names_it() -> None:
    with pytest.raises(UnknownModel, match="'resnet5000' is not in the catalogue; its models are bert_large, "):
        build("resnet5000", 1)
    with pytest.raises(UnknownModel, match="unknown GPU 'Z80'; the GPUs are K80, P100"):
        build("resnet50", 1, "Z80")
    with pytest.raises(UnknownModel):
        default_config("", 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        build("resnet50", 0)
    with pytest.raises(ValueError, match="gpus must be at least 1"):
        pipeline("resnet50", 0)
    assert set(GPUS) >= {"V100", "P100", "A100", "T4", "H100"}
