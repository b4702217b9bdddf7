"""``sooner graph from-onnx`` on real files: made with onnx, exported by PyTorch, and broken."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.wire.bodies import LayersGraphBody
from tests.engines.run import REQUIRED
from tests.engines.torch_program import PYTHON, ROOT, missing

RUNNER = CliRunner()
OPEN = ("--batch", "8", "--dim", "tokens=128")
"""Sizes of what the blocks leave open."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files; without onnx the tests are skipped (under ``make test-engines`` they fail)."""
    lacking = missing()
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    assert not lacking, lacking
    folder = tmp_path_factory.mktemp("onnx")
    command = [PYTHON, ROOT / "tests" / "engines" / "onnx_models.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(file: Path, *options: str) -> tuple[int, str, str]:
    command = ["graph", "from-onnx", str(file), "--gpu-type", "A100-80", "--python", str(PYTHON), *options]
    done = RUNNER.invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def document(file: Path, *options: str) -> dict[str, Any]:
    code, out, err = run(file, "--json", *options)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    LayersGraphBody.model_validate(found["graph"])
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [layer["name"] for layer in found["graph"]["layers"]]


def test_blocks_are_layers_by_the_names_of_their_nodes(files: Path) -> None:
    found = document(files / "blocks.onnx", *OPEN)
    assert names(found) == ["layers.0", "layers.1", "layers.2"]
    assert found["parameters"] == 3 * 2 * 64 * 256
    assert found["forward_flops"] == 3 * 2 * (2 * 8 * 128 * 64 * 256)
    assert [layer["activation_bytes"] for layer in found["graph"]["layers"]] == [4 * 8 * 128 * 64] * 2 + [0]
    assert found["graph"]["edges"] == [["layers.0", "layers.1"], ["layers.1", "layers.2"]]


def test_without_names_of_modules_each_product_is_a_layer(files: Path) -> None:
    found = document(files / "plain.onnx", *OPEN)
    assert names(found) == ["first0", "second0", "first1", "second1", "first2", "second2"]
    assert found["forward_flops"] == document(files / "blocks.onnx", *OPEN)["forward_flops"]


def test_operations_are_counted_by_the_kind_of_node(files: Path) -> None:
    found = document(files / "mixed.onnx")
    convolution = 2 * (2 * 16 * 8 * 8) * (3 * 3 * 3)
    attention = 2 * 2 * 64 * 64 * (16 + 16)
    recurrent = 2 * (2 * 64) * (128 * 16 + 128 * 32)
    output = 2 * (2 * 64 * 10) * 32
    assert found["forward_flops"] == convolution + attention + recurrent + output
    assert found["parameters"] == 16 * 27 + 128 * 48 + 320 + 10


def test_a_model_exported_by_pytorch_has_its_modules_as_layers(files: Path) -> None:
    found = document(files / "resnet.onnx")
    assert names(found)[1:-1] == [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert names(found)[-1] == "fc"
    # torchvision's resnet18 has 11,689,512; the export merges the 9,600 of batch normalisation into 4,800 biases.
    assert found["parameters"] == pytest.approx(11_689_512, rel=0.001)


def test_external_data_is_not_read(files: Path) -> None:
    found = document(files / "external.onnx", *OPEN)
    assert found["parameters"] == 3 * 2 * 64 * 256


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        ("noise", (), "noise.onnx is no ONNX file: "),
        ("empty", (), "empty.onnx has no node: it is no ONNX model"),
        ("absent", (), "absent.onnx: No such file or directory"),
        ("negative", OPEN, "the initializer 'up0' has a negative size"),
        ("unordered", OPEN, "Relu '/layers.0/mlp/Relu' reads 'a0', which no node before it makes"),
        ("blocks", (), "batch: is needed: the file leaves the first dimension of x open (--batch)"),
        ("blocks", ("--batch", "8"), "dim: the file leaves dimension 1 of x open: give --dim tokens=SIZE"),
        ("blocks", (*OPEN, "--dim", "token=3"), "dim: no input has the dimension token"),
        ("mixed", ("--batch", "8"), "error: batch: the file fixes the first dimension of x at 2 (got 8): leave it out"),
    ],
)
def test_what_cannot_be_read_is_refused(files: Path, file: str, options: tuple[str, ...], said: str) -> None:
    code, out, err = run(files / f"{file}.onnx", *options)
    assert (code, out) == (2, "")
    assert said in err


def test_onnx_that_is_missing_is_named_with_what_to_install(files: Path) -> None:
    done = RUNNER.invoke(app, ["graph", "from-onnx", str(files / "blocks.onnx"), "--gpu-type", "H100"])
    assert done.exit_code == 2
    assert "install it there (pip install 'sooner[onnx]')" in done.stderr
