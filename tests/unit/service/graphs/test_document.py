"""Times and bytes of layers, worked out by hand."""

import pytest

from policies.model.graph import Layer, LayerGraph
from policies.model.plan import Precision
from policies.stages import cut, layer_graph
from policies.training.constants import SHIPPED
from policies.training.hardware import GPU_MODELS
from service.graphs.document import Found, Limits, coarse, found_in
from service.graphs.trace import Kind, Trace
from service.plans.values import ReadError
from tests.unit.service.graphs.traces import Writer, transformer

A100 = GPU_MODELS["A100-80"]
AMPLE = Limits(2000, 20_000)
MEMORY_BYTES_S = 2039e9 * SHIPPED.memory
BF16_FLOPS = 312e12 * SHIPPED.product_ampere


def found(trace: Trace, precision: Precision | None = None, replicas: int = 1, limits: Limits = AMPLE) -> Found:
    return found_in(trace, A100, precision, replicas, limits)


def one_product(*, trainable: bool = True, before: bool = False) -> Writer:
    writer = Writer()
    value = writer.input(1000 * 512)
    if before:
        value = writer.linear("before", value, 1000, 512, 512)
    writer.linear("layer", value, 1000, 512, 256, trainable=trainable)
    return writer


def test_a_product_takes_its_arithmetic_and_its_operands() -> None:
    layer = found(one_product().trace(), Precision.BF16).graph.layers[0]
    flops = 2 * 1000 * 512 * 256
    moved = 2 * (1000 * 512 + 512 * 256 + 1000 * 256)
    forward_s = flops / BF16_FLOPS + moved / MEMORY_BYTES_S
    assert layer.forward_s == pytest.approx(forward_s)
    # No gradient of the model's input is computed.
    assert layer.backward_s == pytest.approx(forward_s)
    assert layer.parameter_bytes == 2 * 512 * 256


def test_the_backward_pass_is_twice_the_forward_pass_behind_another_layer() -> None:
    layer = found(one_product(before=True).trace(), Precision.BF16).graph.layers[1]
    assert layer.backward_s == pytest.approx(2 * layer.forward_s)


def test_a_frozen_weight_gets_no_gradient_and_no_traffic() -> None:
    layer = found(one_product(before=True, trainable=False).trace(), Precision.BF16).graph.layers[1]
    assert layer.backward_s == pytest.approx(layer.forward_s)
    assert layer.parameter_bytes == 0


def test_nothing_flows_back_through_a_frozen_model() -> None:
    layer = found(one_product(trainable=False).trace(), Precision.BF16).graph.layers[0]
    assert layer.backward_s == 0


def test_the_precision_is_that_of_the_parameters_unless_given() -> None:
    fp32 = found(one_product().trace("fp32"))
    assert (fp32.precision, fp32.graph.layers[0].parameter_bytes) == (Precision.FP32, 4 * 512 * 256)
    assert found(one_product().trace("bf16")).precision is Precision.BF16
    assert found(one_product().trace("fp32"), Precision.FP8).precision is Precision.FP8
    flops = 2 * 1000 * 512 * 256
    moved = 4 * (1000 * 512 + 512 * 256 + 1000 * 256)
    expected = flops / (19.5e12 * SHIPPED.fp32) + moved / MEMORY_BYTES_S
    assert fp32.graph.layers[0].forward_s == pytest.approx(expected)


def test_work_between_two_products_reads_and_writes_memory_once() -> None:
    writer = Writer()
    value = writer.linear("in", writer.input(64), 8, 8, 8)
    for _ in range(5):
        value = writer.other("work", 64, value)
    writer.linear("out", value, 8, 8, 8)
    apart = Writer()
    apart.linear("out", apart.linear("in", apart.input(64), 8, 8, 8), 8, 8, 8)
    total = sum(layer.forward_s for layer in found(writer.trace()).graph.layers)
    without = sum(layer.forward_s for layer in found(apart.trace()).graph.layers)
    assert total - without == pytest.approx(4 * (64 + 64) / MEMORY_BYTES_S)


def test_a_lookup_reads_the_rows_that_are_asked_for() -> None:
    layer = found(transformer(1, rows=8, width=4).trace()).graph.layers[0]
    rows, tokens = 4 * 8 * 4, 8 * 8
    assert layer.name == "embed"
    assert layer.forward_s == pytest.approx((rows + rows + tokens) / MEMORY_BYTES_S, rel=0.5)
    assert layer.forward_s < 4 * 100 * 4 / MEMORY_BYTES_S


def test_activations_are_what_the_next_layer_reads() -> None:
    layers = found(transformer(3, rows=8, width=4).trace()).graph.layers
    assert [layer.activation_bytes for layer in layers] == [4 * 32] * 4 + [0]


def test_a_block_reduces_twice_forward_and_twice_backward_over_its_tensor_group() -> None:
    layers = found(transformer(3, rows=8, width=4).trace()).graph.layers
    assert [layer.tensor_bytes for layer in layers] == [0, *[2 * 2 * 4 * 32] * 3, 0]
    shared = found(transformer(3, rows=8, width=4).trace(), replicas=4).graph.layers
    assert [layer.tensor_bytes for layer in shared] == [0, *[4 * 32] * 3, 0]


def test_convolutions_attention_and_experts_have_rates_of_their_own() -> None:
    times = {}
    for kind in (Kind.PRODUCT, Kind.CONVOLUTION, Kind.ATTENTION, Kind.EXPERTS):
        writer = Writer()
        weight = writer.parameter("weight", 1)
        value = writer.input(1)
        writer.add(kind, 1, value, weight, scope="x", flops=10**12, factors=(value, weight))
        times[kind] = found(writer.trace(), Precision.BF16).graph.layers[0].forward_s
    assert times[Kind.PRODUCT] == pytest.approx(1e12 / BF16_FLOPS)
    assert times[Kind.CONVOLUTION] == pytest.approx(1e12 / (BF16_FLOPS * SHIPPED.convolution))
    assert times[Kind.ATTENTION] == pytest.approx(1e12 / (BF16_FLOPS * SHIPPED.attention))
    assert times[Kind.EXPERTS] > times[Kind.PRODUCT]


def test_time_grows_with_the_batch() -> None:
    small, large = (found(transformer(4, rows=rows).trace()).graph.layers for rows in (8, 64))
    assert all(one.forward_s < other.forward_s for one, other in zip(small, large, strict=True))
    assert all(one.parameter_bytes == other.parameter_bytes for one, other in zip(small, large, strict=True))


def test_a_model_without_products_is_refused() -> None:
    writer = Writer()
    writer.other("x", 4, writer.parameter("x.weight", 4))
    with pytest.raises(ReadError, match="no product with a parameter"):
        found(writer.trace())


def test_parameters_that_take_no_part_are_named() -> None:
    writer = transformer(2)
    writer.parameter("spare.weight", 77)
    found_one = found(writer.trace())
    assert found_one.warnings == (
        "1 parameter tensors with 77 elements take no part, so they are left out: spare.weight",
    )
    assert found_one.parameters == sum(one.floats for one in writer.operations if one.kind is Kind.PARAMETER) - 77


def test_names_are_such_that_the_api_takes_them() -> None:
    writer = Writer()
    value = writer.input(32)
    for scope in ("a\nb", "x" * 500, "y" + "x" * 500):
        value = writer.linear(scope, value, 8, 4, 4)
    names = [layer.name for layer in found(writer.trace()).graph.layers]
    assert names[0] == "a?b"
    assert all(name.isprintable() and len(name) <= 200 for name in names)
    assert len(set(names)) == 3


class TestLimits:
    def test_a_graph_of_too_many_layers_is_merged_into_parts_of_equal_time(self) -> None:
        whole = found(transformer(40).trace()).graph
        few = found(transformer(40).trace(), limits=Limits(7, 20_000)).graph
        assert len(whole.layers) == 42
        assert 4 <= len(few.layers) <= 7
        for key in ("forward_s", "backward_s", "parameter_bytes", "tensor_bytes"):
            assert sum(getattr(layer, key) for layer in few.layers) == pytest.approx(
                sum(getattr(layer, key) for layer in whole.layers)
            )
        times = [layer.forward_s for layer in few.layers]
        assert max(times) < 2.5 * sum(times) / len(times)
        assert cut(few, 2).stages

    def test_a_graph_of_too_many_edges_is_merged(self) -> None:
        layers = [Layer(str(i), 1.0, 1.0, 1, 1) for i in range(30)]
        pairs = [(str(tail), str(head)) for head in range(30) for tail in range(head)]
        small = coarse(layer_graph(layers, pairs), Limits(2000, 40))
        assert len(small.edges) <= 40
        assert sum(layer.forward_s for layer in small.layers) == 30

    def test_what_a_merged_layer_sends_is_the_sum_of_what_leaves_it(self) -> None:
        layers = tuple(Layer(str(i), 1.0, 1.0, 1, 10**i) for i in range(4))
        graph = LayerGraph(layers, ((0, 1), (0, 2), (1, 2), (2, 3)))
        assert [layer.activation_bytes for layer in coarse(graph, Limits(2, 9)).layers] == [11, 0]
