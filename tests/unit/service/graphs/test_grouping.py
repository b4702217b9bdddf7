"""Which operations form a layer."""

from itertools import pairwise

from policies.model.graph import LayerGraph
from policies.training.hardware import GPU_MODELS
from service.graphs.document import Limits, found_in
from service.graphs.grouping import Values, group_edges, groups
from service.graphs.trace import Kind, Trace
from tests.unit.service.graphs.traces import Writer, transformer


def graph(trace: Trace) -> LayerGraph:
    return found_in(trace, GPU_MODELS["A100-80"], None, 1, Limits(2000, 20_000)).graph


def names(trace: Trace) -> list[str]:
    return [layer.name for layer in graph(trace).layers]


def edges(trace: Trace) -> set[tuple[str, str]]:
    found = graph(trace)
    return {(found.layers[tail].name, found.layers[head].name) for tail, head in found.edges}


def test_a_block_is_a_layer_and_norms_go_with_the_layer_before() -> None:
    trace = transformer(12).trace()
    expected = ["embed", *(f"blocks.{i}" for i in range(12)), "head"]
    assert names(trace) == expected
    assert edges(trace) == set(pairwise(expected))


def test_two_large_blocks_stay_whole_where_nothing_repeats_in_them() -> None:
    assert names(transformer(2).trace()) == ["embed", "blocks.0", "blocks.1", "head"]


def test_stages_of_repeated_blocks_are_opened_where_they_are_large() -> None:
    classes = {"": "Net", "stages": "ModuleList"}
    for stage in range(2):
        classes |= {f"stages.{stage}": "Stage", f"stages.{stage}.parts": "ModuleList"}
        classes |= {f"stages.{stage}.parts.{i}": "Part" for i in range(2)}
    writer = Writer(classes)
    value = writer.input(32)
    for stage in range(2):
        for i in range(2):
            value = writer.linear(f"stages.{stage}.parts.{i}.one", value, 8, 4, 4)
            value = writer.linear(f"stages.{stage}.parts.{i}.two", value, 8, 4, 4)
    assert names(writer.trace()) == [f"stages.{stage}.parts.{i}" for stage in range(2) for i in range(2)]


def test_experts_that_repeat_in_small_blocks_are_no_layers() -> None:
    classes = {"": "Net", "blocks": "ModuleList"} | {f"blocks.{i}": "Block" for i in range(10)}
    classes |= {f"blocks.{i}.experts": "ModuleList" for i in range(10)}
    writer = Writer(classes)
    value = writer.input(32)
    for i in range(10):
        parts = []
        for expert in range(2):
            scope = f"blocks.{i}.experts.{expert}"
            writer.classes[scope] = "Expert"
            parts.append(writer.linear(f"{scope}.down", writer.linear(f"{scope}.up", value, 8, 4, 4), 8, 4, 4))
        value = writer.other(f"blocks.{i}", 32, *parts)
    assert names(writer.trace()) == [f"blocks.{i}" for i in range(10)]


def test_a_module_that_is_called_twice_is_two_layers_with_its_parameters_once() -> None:
    writer = Writer()
    weight = writer.parameter("shared.weight", 16)
    value = writer.input(32)
    for scope in ("shared", "shared@1"):
        value = writer.add(Kind.PRODUCT, 32, value, weight, scope=scope, flops=256, factors=(value, weight))
    trace = writer.trace()
    assert names(trace) == ["shared", "shared@1"]
    assert [layer.parameter_bytes for layer in graph(trace).layers] == [64, 0]


def test_work_outside_all_modules_goes_with_what_it_reads_last() -> None:
    writer = Writer()
    value = writer.input(32)
    first = writer.linear("first", value, 8, 4, 4)
    second = writer.linear("second", first, 8, 4, 4)
    total = writer.other("", 32, first, second)
    writer.linear("third", total, 8, 4, 4)
    trace = writer.trace()
    assert names(trace) == ["first", "second", "third"]
    assert edges(trace) == {("first", "second"), ("second", "third")}


def test_products_with_weights_outside_all_modules_are_layers_of_their_own() -> None:
    writer = Writer()
    value = writer.input(32)
    for name in ("one", "two"):
        weight = writer.parameter(name, 16)
        value = writer.add(Kind.PRODUCT, 32, value, weight, name=f"mm_{name}", flops=256, factors=(value, weight))
        value = writer.other("", 32, value)
    assert names(writer.trace()) == ["mm_one", "mm_two"]


def test_masks_cross_no_edge() -> None:
    """What depends on no parameter is computed by each stage."""
    writer = transformer(2)
    rows = writer.input(8)
    mask = writer.other("mask", 64, rows)
    last = next(i for i, one in enumerate(writer.operations) if one.scope[:1] == ("head",) and one.flops)
    writer.add(Kind.OTHER, 800, last, mask, scope="head")
    assert names(writer.trace()) == ["embed", "blocks.0", "blocks.1", "head"]
    assert ("mask", "head") not in edges(writer.trace())


def test_modules_that_feed_each_other_are_one_layer() -> None:
    """Without cycles is what a pipeline needs."""
    writer = Writer()
    value = writer.input(32)
    first = writer.linear("a.one", value, 8, 4, 4)
    second = writer.linear("b", first, 8, 4, 4)
    writer.linear("a.two", second, 8, 4, 4)
    writer.linear("c", second, 8, 40, 40)
    trace = Trace(writer.trace().operations, {"a": "A"}, "fp32")
    values = Values(trace)
    group_of, found = groups(trace, values)
    pairs = set(group_edges(values, group_of))
    assert len(found) == 2, found
    assert not any((head, tail) in pairs for tail, head in pairs)


def test_numbers_in_names_stand_for_classes_where_there_are_none() -> None:
    trace = transformer(12).trace()
    assert names(Trace(trace.operations, {}, "fp32")) == names(trace)
