"""Writes ONNX files for the tests of ``sooner graph from-onnx`` into a folder: run by the Python that has onnx and torch."""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    size = 1
    for each in shape:
        size *= each
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(4 * size), raw=True)


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[object]], weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", values, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def blocks(scoped: bool) -> onnx.ModelProto:
    """Three blocks of two products with a residual connection, over ``batch`` sequences of ``tokens`` vectors of 64."""
    nodes, weights, value = [], [], "x"
    for i in range(3):
        weights += [_weight(f"up{i}", 64, 256), _weight(f"down{i}", 256, 64)]
        nodes += [
            helper.make_node(
                "MatMul", [value, f"up{i}"], [f"a{i}"], name=f"/layers.{i}/mlp/up/MatMul" if scoped else f"first{i}"
            ),
            helper.make_node("Relu", [f"a{i}"], [f"b{i}"], name=f"/layers.{i}/mlp/Relu" if scoped else ""),
            helper.make_node(
                "MatMul",
                [f"b{i}", f"down{i}"],
                [f"c{i}"],
                name=f"/layers.{i}/mlp/down/MatMul" if scoped else f"second{i}",
            ),
            helper.make_node("Add", [value, f"c{i}"], [f"d{i}"], name=f"/layers.{i}/Add" if scoped else f"add{i}"),
        ]
        value = f"d{i}"
    return _model(nodes, {"x": ["batch", "tokens", 64]}, weights)


def mixed() -> onnx.ModelProto:
    """A convolution, a recurrent layer, attention and Gemm with fixed shapes."""
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["conv"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["conv", "rows"], ["flat"], name="reshape"),
        helper.make_node("Attention", ["flat", "flat", "flat"], ["attended"], name="attention", q_num_heads=4, kv_num_heads=4),
        helper.make_node("LSTM", ["attended", "w", "r"], ["hidden"], name="lstm", hidden_size=32),
        helper.make_node("Reshape", ["hidden", "flat_rows"], ["last"], name="flatten"),
        helper.make_node("Gemm", ["last", "gemm", "bias"], ["y"], name="gemm", transB=1),
    ]  # fmt: skip
    weights = [
        _weight("kernel", 16, 3, 3, 3), _weight("w", 1, 128, 16), _weight("r", 1, 128, 32), _weight("gemm", 10, 32),
        _weight("bias", 10), helper.make_tensor("rows", TensorProto.INT64, [3], [2, 64, 16]),
        helper.make_tensor("flat_rows", TensorProto.INT64, [2], [-1, 32]),
    ]  # fmt: skip
    return _model(nodes, {"x": [2, 3, 8, 8]}, weights)


def external() -> onnx.ModelProto:
    """Its weights are in a file that is not there."""
    model = blocks(True)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../etc/passwd")
    return model


def unordered() -> onnx.ModelProto:
    model = blocks(True)
    node = model.graph.node.pop(0)
    model.graph.node.append(node)
    return model


def huge() -> onnx.ModelProto:
    """A weight with a negative size."""
    model = blocks(True)
    model.graph.initializer[0].dims[0] = -5
    return model


def main(folder: Path) -> None:
    made = {
        "blocks": blocks(True), "plain": blocks(False), "mixed": mixed(), "external": external(), "unordered": unordered(),
        "negative": huge(),
    }  # fmt: skip
    for name, model in made.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / "noise.onnx").write_bytes(bytes(range(256)) * 64)
    (folder / "empty.onnx").write_bytes(b"")
    _export(folder / "resnet.onnx")


def _export(path: Path) -> None:
    """A small ResNet of torchvision through the exporter of PyTorch."""
    import models
    import torch
    import torchvision

    assert models.resnet50
    net = torchvision.models.resnet18().eval()
    torch.onnx.export(
        net, (torch.zeros(2, 3, 64, 64),), str(path), dynamo=True, verbose=False, external_data=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
