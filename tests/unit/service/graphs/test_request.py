"""Options as a request."""

from pathlib import Path

import pytest

from service.graphs.child import Bounds
from service.graphs.request import input_of, trace_onnx, trace_torch
from service.plans.values import ReadError

BOUNDS = Bounds(60.0, 2**33)


@pytest.mark.parametrize(
    ("text", "name", "shape", "dtype"),
    [
        ("3x224x224:float32", None, [3, 224, 224], "float32"),
        ("3,224,224:bfloat16", None, [3, 224, 224], "bfloat16"),
        ("input_ids=1024:int64", "input_ids", [1024], "int64"),
        (":bool", None, [], "bool"),
    ],
)
def test_an_input_is_a_shape_and_a_type(text: str, name: str | None, shape: list[int], dtype: str) -> None:
    assert input_of(text) == {"name": name, "shape": shape, "dtype": dtype}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3x224", "must be [NAME=]SHAPE:DTYPE"),
        ("3x224:float99", "the type must be one of float32"),
        ("3x0:int64", "sizes must be 1 to 1,000,000,000"),
        ("3xx4:int64", "sizes must be 1 to 1,000,000,000"),
        ("9999999999:int64", "sizes must be 1 to 1,000,000,000"),
        ("not a name=3:int64", "the name must be that of an argument"),
        ("3x-1:int64", "must be [NAME=]SHAPE:DTYPE"),
    ],
)
def test_a_wrong_input_is_named(text: str, said: str) -> None:
    with pytest.raises(ReadError, match=r"^input: ") as error:
        input_of(text)
    assert said in str(error.value)


@pytest.mark.parametrize("factory", ["model", "model:", ":make", "a b:make", "model:make()", "-c:x"])
def test_a_factory_is_a_module_and_a_function(factory: str) -> None:
    with pytest.raises(ReadError, match=r"^factory: must be package.module:function"):
        trace_torch(factory, [], None, "python", BOUNDS)


def test_inputs_of_one_sample_need_a_batch() -> None:
    with pytest.raises(ReadError, match=r"^batch: is needed with --input"):
        trace_torch("model:make", ["3:int64"], None, "python", BOUNDS)


@pytest.mark.parametrize("text", ["tokens", "tokens=", "=3", "tokens=0", "tokens=-1", "tokens=99999999999"])
def test_a_dimension_is_a_name_and_a_size(text: str) -> None:
    with pytest.raises(ReadError, match=r"^dim: must be NAME=SIZE"):
        trace_onnx(Path("x.onnx"), [text], None, "python", BOUNDS)
