"""``sooner graph from-torch`` on real PyTorch: published models, and what is refused."""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from policies.catalogue.shapes import SHAPES
from policies.model.graph import Layer
from policies.model.plan import Precision, TrainingPlan
from policies.stages import cut, layer_graph
from policies.training.hardware import GPU_MODELS
from policies.training.iteration import iteration_time
from service.cli.main import app
from service.wire.bodies import LayersGraphBody
from tests.engines.run import REQUIRED
from tests.engines.torch_program import PYTHON, ROOT, missing

RUNNER = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def torch() -> None:
    """PyTorch, or the tests are skipped (under ``make test-engines`` they fail)."""
    lacking = missing()
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    assert not lacking, lacking


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factories are in the current folder."""
    monkeypatch.chdir(ROOT / "tests" / "engines")


def run(factory: str, *options: str) -> tuple[int, str, str]:
    command = ["graph", "from-torch", f"models:{factory}", "--gpu-type", "A100-80", "--python", str(PYTHON), *options]
    done = RUNNER.invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def document(factory: str, *options: str) -> dict[str, Any]:
    code, out, err = run(factory, "--json", *options)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    body = LayersGraphBody.model_validate(found["graph"])
    graph = layer_graph(
        [Layer(**layer.model_dump()) for layer in body.layers], [(tail, head) for tail, head in body.edges]
    )
    assert cut(graph, min(2, len(body.layers))).stages, "it makes a pipeline"
    return found


def refused(factory: str, *options: str) -> str:
    code, out, err = run(factory, *options)
    assert (code, out) == (2, "")
    return err


def names(found: dict[str, Any]) -> list[str]:
    return [layer["name"] for layer in found["graph"]["layers"]]


def seconds(found: dict[str, Any]) -> float:
    return float(found["forward_s"] + found["backward_s"])


def predicted(model: str, batch: int, sequence: int = 1, precision: Precision = Precision.BF16) -> float:
    """The model of the catalogue on one GPU, without what a layer graph does not have: the host, and the optimizer."""
    plan = TrainingPlan(micro_batch=batch, global_batch=batch, sequence=sequence, precision=precision)
    parts = iteration_time(SHAPES[model].shape, plan, GPU_MODELS["A100-80"]).parts
    return sum(time for name, time in parts.items() if name not in ("launch", "optimizer"))


def test_resnet50_of_torchvision_is_its_bottlenecks() -> None:
    found = document("resnet50", "--input", "3x224x224:float32", "--batch", "64")
    blocks = [f"layer{i + 1}.{block}" for i, count in enumerate((3, 4, 6, 3)) for block in range(count)]
    assert names(found) == ["conv1", *blocks, "fc"]
    assert sum(layer["parameter_bytes"] for layer in found["graph"]["layers"]) == 25_557_032 * 4
    assert found["precision"] == "fp32"
    # 4.09e9 multiply-accumulates an image (arXiv 1512.03385 rounds to 3.8e9, without the wider strides of torchvision).
    assert found["forward_flops"] / 64 == pytest.approx(2 * 4.09e9, rel=0.01)
    assert found["graph"]["edges"] == [list(pair) for pair in pairwise(names(found))]
    assert seconds(found) == pytest.approx(predicted("resnet-50", 64, precision=Precision.FP32), rel=0.15)


def test_gpt2_of_transformers_is_its_blocks_and_counts_tied_weights_once() -> None:
    found = document("gpt2")
    assert names(found) == ["transformer.wte", *(f"transformer.h.{i}" for i in range(12)), "lm_head"]
    assert found["parameters"] == 124_439_808
    # Of a token: 12 blocks with 12 x 768^2 weights, a causal mask that shows half of 1,024 tokens, and 50,257 words.
    token = 12 * (2 * 12 * 768**2 + 4 * 768 * 1025 / 2) + 2 * 768 * 50257
    assert found["forward_flops"] == pytest.approx(8 * 1024 * token)
    layers = found["graph"]["layers"]
    assert layers[-1]["parameter_bytes"] == 0
    assert {layer["activation_bytes"] for layer in layers[:-1]} == {8 * 1024 * 768 * 4}
    # Two all-reduces forward and two backward over a tensor group.
    assert {layer["tensor_bytes"] for layer in layers[1:-1]} == {4 * 8 * 1024 * 768 * 4}


def test_the_weights_of_llama_take_no_memory() -> None:
    """They are 16 GB; the limit holds the code of the libraries."""
    found = document("llama3_8b", "--memory-gib", "3", "--batch", "1")
    assert found["parameters"] == 8_030_261_248
    assert found["precision"] == "bf16"
    assert names(found) == ["model.embed_tokens", *(f"model.layers.{i}" for i in range(32)), "lm_head"]
    assert seconds(found) == pytest.approx(predicted("llama3-8b", 1, 8192), rel=0.1)


def test_experts_are_counted_as_often_as_a_token_takes_them() -> None:
    found = document("mixtral")
    assert names(found)[1:-1] == [f"model.layers.{i}" for i in range(4)]
    tokens, experts = 8 * 1024, 3 * 2 * 4096 * 14336 * 2
    attention = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 2 * 4096 * 8
    layer = tokens * (experts + attention)
    head = tokens * 2 * 4096 * 32000
    assert found["forward_flops"] == pytest.approx(4 * layer + head, rel=0.03)


def test_checkpointed_blocks_under_autocast_keep_their_layers_and_a_frozen_one_has_no_gradient() -> None:
    found = document("checkpointed")
    assert names(found) == ["blocks.0", "blocks.1", "blocks.2"]
    frozen, first, second = found["graph"]["layers"]
    assert (frozen["parameter_bytes"], frozen["backward_s"]) == (0, 0)
    assert second["backward_s"] == pytest.approx(2 * second["forward_s"], rel=0.01)
    assert first["backward_s"] < second["backward_s"], "no gradient of its input is needed"


def test_a_mask_counts_by_what_it_shows_and_a_learnt_one_as_full() -> None:
    found = document("windowed")
    products = 2 * (2 * 8 * 32 * 16 * 16)
    full = 4 * 8 * 32 * 32 * 16
    shown = (1 + 2 + 3 + 4 + 28 * 5) / 32**2
    assert found["forward_flops"] == round(products + full + full * shown)
    assert found["warnings"] == ["the values of an attention mask are not known, so its attention counts as full"]


def test_the_graph_is_printed_as_a_job_takes_it_or_written(tmp_path: Path) -> None:
    code, out, err = run("checkpointed", "--batch", "32")
    assert code == 0
    assert set(json.loads(out)) == {"layers", "edges"}
    assert err.startswith("3 layers, 2 edges, ")
    code, table, _ = run("checkpointed", "--batch", "32", "--out", str(tmp_path / "graph.json"))
    assert code == 0
    assert json.loads((tmp_path / "graph.json").read_text()) == json.loads(out)
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["blocks.0", "blocks.1", "blocks.2"]


def test_a_factory_that_reads_values_is_built_in_memory() -> None:
    found = document("reading")
    assert found["warnings"] == [
        "the factory reads values of tensors, so the weights were made in memory and then dropped"
    ]


def test_a_path_that_depends_on_data_is_refused_with_its_line() -> None:
    said = refused("branch")
    assert "control flow depends on data, so the model cannot be exported at " in said
    assert "models.py, line " in said
    assert "`if values.sum() > 0:`" in said
    assert "use torch.where or torch.cond there" in said


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("raising", (), "models:raising raised ValueError: there is no data folder at "),
        ("nothing", (), "models:nothing must return a torch.nn.Module, or a pair of one and its example inputs (got NoneType)"),
        ("absent", (), "the module 'models' has no 'absent'"),
        ("resnet50", (), "input: give --input SHAPE:DTYPE, or let the factory return (module, example_inputs)"),
        ("unequal", ("--batch", "8"), "batch: needs example inputs with one first dimension (got 4, 5)"),
        ("resnet50", ("--input", "4x224x224:float32", "--batch", "2"), "torch.export failed at "),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(factory: str, options: tuple[str, ...], said: str) -> None:
    assert said in refused(factory, *options)


def test_an_unknown_module_is_named() -> None:
    done = RUNNER.invoke(app, ["graph", "from-torch", "nowhere:f", "--gpu-type", "H100", "--python", str(PYTHON)])
    assert done.exit_code == 2
    assert f"there is no module 'nowhere' in {PYTHON} or in the folder {ROOT / 'tests' / 'engines'}" in done.stderr


def test_torch_that_is_missing_is_named_with_what_to_install() -> None:
    done = RUNNER.invoke(app, ["graph", "from-torch", "models:gpt2", "--gpu-type", "H100"])
    assert done.exit_code == 2
    assert (
        f"PyTorch is not installed in {sys.executable}: install it there (pip install 'sooner[torch]')" in done.stderr
    )
