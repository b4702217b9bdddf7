"""Shapes from config.json: the parameters of published models, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from policies.catalogue.shapes import SHAPES
from policies.model.shape import Attention, TransformerShape
from policies.training.operations import parameters
from service.plans.huggingface import MODEL_TYPES, huggingface_model
from service.plans.model import model_of
from service.plans.values import ReadError
from tests.unit.service.plans.model_configs import CONFIGS


def shape_of(config: dict[str, Any]) -> TransformerShape:
    shape = huggingface_model(config).shape
    assert isinstance(shape, TransformerShape)
    return shape


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", 8.03e9),
        ("llama-2-7b", 6.74e9),
        ("llama-3.2-1b", 1.24e9),
        ("mistral-7b", 7.24e9),
        ("mixtral-8x7b", 46.7e9),
        ("qwen2.5-7b", 7.62e9),
        ("qwen1.5-moe-a2.7b", 14.3e9),
        ("qwen3-8b", 8.19e9),
        ("qwen3-30b-a3b", 30.5e9),
        ("deepseek-v3", 671e9),
        ("gpt-oss-20b", 20.9e9),
        ("gpt2-xl", 1.56e9),
        ("bert-large", 335e6),
        ("phi-3-mini", 3.82e9),
        ("gemma-2-9b", 9.24e9),
        ("gemma-3-12b", 11.8e9),
        ("nemotron-4-340b", 341e9),
        ("vit-large", 304e6),
    ],
)
def test_a_config_has_the_published_parameters(name: str, published: float) -> None:
    assert parameters(shape_of(CONFIGS[name])).total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("llama-3.1-8b", "llama3-8b"),
        ("llama-2-7b", "llama2-7b"),
        ("mixtral-8x7b", "mixtral-8x7b"),
        ("qwen2.5-7b", "qwen2.5-7b"),
        ("qwen3-8b", "qwen3-8b"),
        ("qwen3-30b-a3b", "qwen3-30b-a3b"),
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("deepseek-v3", "deepseek-v3"),
        ("bert-large", "bert-large"),
        ("gpt2-xl", "gpt2-xl"),
    ],
)
def test_a_config_counts_as_the_catalogue_does(config: str, model: str) -> None:
    assert parameters(shape_of(CONFIGS[config])).total == parameters(SHAPES[model].shape).total


def test_windows_of_attention() -> None:
    windows = {name: (shape_of(config).window, shape_of(config).windowed_layers) for name, config in CONFIGS.items()}
    assert {name: found for name, found in windows.items() if found != (0, 0)} == {
        "mistral-7b": (4096, 32),
        "gpt-oss-20b": (128, 12),
        "phi-3-mini": (2047, 32),
        "gemma-2-9b": (4096, 21),
        "gemma-3-12b": (1024, 40),
    }
    on = CONFIGS["qwen2.5-7b"] | {"use_sliding_window": True, "max_window_layers": 20}
    assert shape_of(on).windowed_layers == 8


def test_layers_without_experts() -> None:
    assert shape_of(CONFIGS["deepseek-v3"]).dense_layers == 3
    stepped = CONFIGS["qwen3-30b-a3b"] | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}
    assert shape_of(stepped).dense_layers == 25


def test_a_file_of_transformers_5_has_another_key_for_the_experts_of_qwen() -> None:
    older = CONFIGS["qwen3-30b-a3b"]
    newer = {key: value for key, value in older.items() if key != "num_experts"} | {"num_local_experts": 128}
    assert shape_of(newer) == shape_of(older)


def test_the_heads_of_qwen_with_experts_divide_the_hidden_size_unless_it_says_otherwise() -> None:
    config = {key: value for key, value in CONFIGS["qwen3-30b-a3b"].items() if key != "head_dim"}
    assert (shape_of(CONFIGS["qwen3-30b-a3b"]).head_dim, shape_of(config).head_dim) == (128, 2048 // 32)


def test_encoders_attend_to_all_and_images_fix_the_sequence() -> None:
    assert shape_of(CONFIGS["bert-large"]).attention is Attention.FULL
    assert huggingface_model(CONFIGS["vit-large"]).sequence == 197
    assert huggingface_model(CONFIGS["bert-large"]).dropout
    assert not huggingface_model(CONFIGS["llama-3.1-8b"]).dropout


def test_what_a_shape_leaves_out_is_named() -> None:
    assert huggingface_model(CONFIGS["deepseek-v3"]).warnings == (
        "num_nextn_predict_layers 1: layers of multi-token prediction are not counted",
    )
    assert huggingface_model(CONFIGS["gemma-3-12b"]).warnings == (
        "vision_config: the encoder of images is not counted",
    )


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ReadError) as caught:
        huggingface_model({"model_type": "qwen3_mo"})
    assert str(caught.value) == (
        f"model_type: 'qwen3_mo' is not known; did you mean 'qwen3_moe'?; the known ones are {', '.join(sorted(MODEL_TYPES))}"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "x" * 10_000}, f"model_type: '{'x' * 99} is not known; the known ones are bert, "),
        ({"model_type": None}, "model_type: is missing; the known ones are bert, "),
        ({"num_key_value_heads": 5}, "num_key_value_heads: must divide num_attention_heads 32 (got 5)"),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33},
            "hidden_size: must be a multiple of num_attention_heads 33",
        ),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: must be at most 10,000 (got 1,000,000)"),
        ({"vocab_size": None}, "vocab_size: is missing"),
        ({"hidden_size": -1}, "hidden_size: must be 1 to 1,000,000,000 (got -1)"),
        ({"hidden_size": "4096 "}, None),
        (
            {"intermediate_size": [14336]},
            "intermediate_size: must be a whole number from 1 to 1,000,000,000 (got [14336])",
        ),
    ],
)
def test_a_fault_names_key_value_and_limit(change: dict[str, Any], message: str | None) -> None:
    config = CONFIGS["llama-3.1-8b"] | change
    if message is None:
        assert shape_of(config).hidden == 4096
        return
    with pytest.raises(ReadError) as caught:
        huggingface_model(config)
    assert str(caught.value).startswith(message)


def test_faults_of_experts_and_lists() -> None:
    for name, change, message in (
        (
            "qwen3-30b-a3b",
            {"num_experts_per_tok": 200},
            "num_experts_per_tok: must be at most the 128 experts (got 200)",
        ),
        (
            "gpt-oss-20b",
            {"layer_types": ["full_attention"]},
            "layer_types: must have num_hidden_layers 24 entries (got 1)",
        ),
        (
            "gpt-oss-20b",
            {"layer_types": ["mamba"] * 24},
            "layer_types: entries must be full_attention or sliding_attention",
        ),
        ("vit-large", {"patch_size": 15}, "image_size: must be a multiple of patch_size 15 (got 224)"),
    ):
        with pytest.raises(ReadError) as caught:
            huggingface_model(CONFIGS[name] | change)
        assert str(caught.value).startswith(message)


def test_a_model_is_a_file_a_folder_or_a_name_of_the_catalogue(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b"]))
    for text in (str(folder), str(folder / "config.json")):
        assert model_of(text).shape.name == "Llama-3.1-8B"
    assert model_of("llama3-8b").sequence == 8192
    with pytest.raises(ReadError, match="'llama3-8' is neither a file nor in the catalogue; did you mean 'llama3-8b'"):
        model_of("llama3-8")
    with pytest.raises(ReadError, match="No such file"):
        model_of(str(tmp_path / "absent.json"))
