"""Hostile and broken input: whatever is read, the outcome is a plan or one clear error."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.plans.accelerate import read_accelerate
from service.plans.deepspeed import read_deepspeed
from service.plans.files import JSON_BYTES_MAX, YAML_BYTES_MAX, load_json, load_yaml, parse_json
from service.plans.huggingface import MODEL_TYPES, huggingface_model
from service.plans.megatron import read_megatron
from service.plans.model import catalogue_model
from service.plans.reading import Given
from service.plans.torchrun import read_torchrun
from service.plans.values import ReadError
from tests.unit.service.plans.model_configs import CONFIGS

MODEL = catalogue_model("llama3-8b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON: cannot be read: Expecting property name enclosed in double quotes: line 1 column 2"),
        ('{"a": NaN}', "JSON: NaN is not a number that JSON has"),
        ('{"a": -Infinity}', "JSON: -Infinity is not a number that JSON has"),
        ('{"a": 1, "a": 2}', "a: occurs twice"),
        ("[1]", "JSON: must be a mapping of keys to values (got list)"),
        ("[" * 100_000, "JSON: is nested too deeply to be read"),
        ('{"a": ' * 100_000, "JSON: is nested too deeply to be read"),
        ('{"a": ' + "1" * 5000 + "}", "JSON: cannot be read: Exceeds the limit"),
    ],
)
def test_json_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ReadError) as caught:
        parse_json(text)
    assert str(caught.value).startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large, binary, deep, listed = (tmp_path / name for name in ("large", "binary", "deep", "listed"))
    large.write_bytes(b" " * (JSON_BYTES_MAX + 1))
    binary.write_bytes(b'{"a": "\xff"}')
    deep.write_text("[" * 3_000)
    listed.write_text("- 1")
    cases = [
        (load_json, large, f"{large}: is larger than 4,194,304 bytes"),
        (load_yaml, large, f"{large}: is larger than {YAML_BYTES_MAX:,} bytes"),
        (load_json, binary, f"{binary}: is not UTF-8 text: byte 7 is 0xff"),
        (load_yaml, deep, f"{deep}: YAML is nested too deeply to be read"),
        (load_yaml, listed, f"{listed}: must be a mapping of keys to values (got list)"),
        (load_json, tmp_path, f"{tmp_path}: Is a directory"),
        (load_json, tmp_path / "absent", f"{tmp_path / 'absent'}: No such file or directory"),
    ]
    for load, path, message in cases:
        with pytest.raises(ReadError) as caught:
            load(path)
        assert str(caught.value) == message


def test_an_alias_that_doubles_itself_is_refused_in_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    path.write_text(f"a0: &a0 [x]\n{levels}num_processes: *a29\n")
    with pytest.raises(ReadError) as caught:
        read_accelerate(load_yaml(path), Given(), MODEL)
    assert str(caught.value).startswith(f"{path}: line 6: its aliases expand to more than 1,000,000 entries")
    assert len(str(caught.value)) < 200


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "8", "bf16"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _with_keys(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(keys), _JSON, max_size=5)


_DEEPSPEED = _with_keys(
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "bf16", "fp16",
    "tensor_parallel", "sequence_parallel_size", "pipeline", "activation_checkpointing", "data_types",
)  # fmt: skip
_ACCELERATE = _with_keys(
    "distributed_type", "mixed_precision", "num_processes", "num_machines", "fsdp_config", "deepspeed_config",
    "parallelism_config", "use_cpu",
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(_DEEPSPEED, _ACCELERATE, st.sampled_from(["FSDP", "DEEPSPEED", "MEGATRON_LM", "NO"]))
def test_any_configuration_gives_a_plan_or_a_clear_error(
    deepspeed: dict[str, Any], accelerate: dict[str, Any], kind: str
) -> None:
    for read in (
        lambda: read_deepspeed(deepspeed, Given(gpus=8), MODEL),
        lambda: read_accelerate(accelerate, Given(micro_batch=1), MODEL),
        lambda: read_accelerate({"distributed_type": kind, **accelerate}, Given(gpus=8, micro_batch=1), MODEL),
    ):
        with suppress(ReadError):
            read()


_WORDS = st.sampled_from(
    [
        "--tensor-model-parallel-size", "--bf16", "--micro-batch-size", "8", "2:4", "--nnodes", "--nproc-per-node=gpu", "(",
        "--pipeline-model-parallel-layout", "E|(t|)*3", "--moe-layer-freq", "[1]*4", "--num-layers", "4", "--hidden-size", "64",
        "--num-attention-heads", "--num-experts", "--fsdp", "full_shard", "--fsdp_config", "{}", "x.y=3", "=", "--", "-1", "$A",
        "A=(", "--window-size", "--seq-length", "--deepspeed", "'",
    ]
) | st.text(max_size=6)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(_WORDS, max_size=12))
@example(["--fsdp", "full_shard", "--fsdp_config", "\0"])
def test_any_arguments_give_a_plan_or_a_clear_error(words: list[str]) -> None:
    for read in (read_megatron, read_torchrun):
        for model in (MODEL, None):
            with suppress(ReadError):
                read(" ".join(words), Given(gpus=8, micro_batch=1, sequence=64), model)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(MODEL_TYPES)), st.data())
def test_any_model_gives_a_shape_or_a_clear_error(kind: str, data: st.DataObject) -> None:
    config = next(config for config in CONFIGS.values() if config["model_type"] in (kind, "llama"))
    changed = data.draw(_with_keys(*config)) | {"model_type": kind}
    with suppress(ReadError):
        assert huggingface_model(config | changed).shape.layers <= 10_000
