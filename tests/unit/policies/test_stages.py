"""Layer graphs and their cut into stages: what is refused and where it points, and that the automatic cut is the best."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.graph import Layer, LayerGraph, Stage
from policies.stages import GraphError, cut, layer_graph


def layer(name: str, time_s: float = 3.0, sent: int = 5) -> Layer:
    return Layer(name, time_s / 3, 2 * time_s / 3, 10, sent, 1)


def chain(*names: str) -> LayerGraph:
    return layer_graph([layer(name) for name in names], list(itertools.pairwise(names)))


def names_of(graph: LayerGraph) -> list[str]:
    return [each.name for each in graph.layers]


def test_layers_keep_their_order_if_the_edges_allow_it() -> None:
    graph = layer_graph([layer(name) for name in "abcd"], [("a", "d"), ("d", "b"), ("a", "c")])
    assert names_of(graph) == ["a", "c", "d", "b"]
    assert graph.edges == ((0, 1), (0, 2), (2, 3))


@pytest.mark.parametrize(
    ("names", "edges", "pointer", "message"),
    [
        ("", [], "/layers", "a graph needs at least one layer"),
        ("aba", [], "/layers/2/name", "layer 'a' is already layer 0"),
        ("ab", [("a", "b"), ("a", "x")], "/edges/1/1", "there is no layer 'x'"),
        ("ab", [("y", "b")], "/edges/0/0", "there is no layer 'y'"),
        ("ab", [("a", "b"), ("b", "b")], "/edges/1", "layer 'b' cannot feed itself"),
        ("abc", [("a", "b"), ("b", "c"), ("a", "b")], "/edges/2", "the edge a -> b is already edge 0"),
        ("ab", [("a", "b"), ("b", "a")], "/edges/1", "the edges form a cycle: a -> b -> a"),
    ],
)
def test_a_wrong_graph_is_refused_with_a_pointer(names, edges, pointer, message) -> None:
    with pytest.raises(GraphError) as caught:
        layer_graph([layer(name) for name in names], edges)
    assert (caught.value.pointer_suffix, caught.value.message) == (pointer, message)


def test_an_error_names_only_the_layers_of_a_cycle() -> None:
    edges = [("in", "a"), ("c", "a"), ("a", "b"), ("b", "c"), ("c", "out")]
    with pytest.raises(GraphError) as caught:
        layer_graph([layer(name) for name in ("in", "out", "a", "b", "c")], edges)
    assert caught.value.pointer_suffix == "/edges/3"
    path = caught.value.message.removeprefix("the edges form a cycle: ").split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all(pair in edges for pair in itertools.pairwise(path))


def test_given_stages_sum_their_layers_and_send_an_activation_once_to_each_reader() -> None:
    graph = layer_graph(
        [layer("a", 3.0, 7), layer("b", 6.0, 11), layer("c", 9.0), layer("d")],
        [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("c", "d"), ("b", "d")],
    )
    stages = cut(graph, [["b", "a"], ["c", "d"]])
    assert stages.stages == (Stage("a..b", 3.0, 6.0, 20, 2), Stage("c..d", 4.0, 8.0, 20, 2))
    assert stages.edges == ((0, 1, 18),)
    three = cut(graph, [["a"], ["b", "c"], ["d"]])
    assert three.edges == ((0, 1, 7), (0, 2, 7), (1, 2, 16))


@pytest.mark.parametrize(
    ("stages", "pointer", "message"),
    [
        (0, "", "4 layers cannot make 0 stages"),
        (5, "", "4 layers cannot make 5 stages"),
        ([], "", "a pipeline needs at least one stage"),
        ([["a", "b", "c", "d"], []], "/1", "stage 1 has no layer"),
        ([["a", "b"], ["c", "x"]], "/1/1", "there is no layer 'x'"),
        ([["a", "b"], ["c", "b", "d"]], "/1/1", "layer 'b' is already in stage 0"),
        ([["a"], ["b"]], "", "no stage holds layer 'c' (nor 1 more)"),
        ([["a", "b", "d"], ["c"]], "/0", "the layers of stage 0 are not connected with one another"),
        ([["c", "d"], ["a", "b"]], "/0", "stage 1 feeds stage 0: list the stages in pipeline order"),
    ],
)
def test_wrong_stages_are_refused_with_a_pointer(stages, pointer, message) -> None:
    with pytest.raises(GraphError) as caught:
        cut(chain("a", "b", "c", "d"), stages)
    assert (caught.value.pointer_suffix, caught.value.message) == (pointer, message)


def test_stages_without_an_edge_between_them_are_an_error() -> None:
    graph = layer_graph([layer(name) for name in "abcd"], [("a", "b"), ("c", "d")])
    with pytest.raises(GraphError, match="stage 1 is not connected with the stages before it") as caught:
        cut(graph, [["a", "b"], ["c", "d"]])
    assert caught.value.pointer_suffix == "/1"
    with pytest.raises(GraphError, match="the graph is not connected") as caught:
        cut(graph, 2)
    assert caught.value.pointer_suffix == ""
    assert len(cut(graph, 1).stages) == 1


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5, 9.0]), min_size=1, max_size=9), st.data())
@settings(max_examples=300, deadline=None)
def test_the_automatic_cut_has_the_least_bottleneck_of_all(times_s, data) -> None:
    count = data.draw(st.integers(1, len(times_s)))
    names = [f"l{i}" for i in range(len(times_s))]
    graph = layer_graph(
        [layer(name, time_s) for name, time_s in zip(names, times_s, strict=True)], list(itertools.pairwise(names))
    )
    best = math.inf
    for inner in itertools.combinations(range(1, len(times_s)), count - 1):
        bounds = [0, *inner, len(times_s)]
        best = min(best, max(sum(times_s[a:b]) for a, b in itertools.pairwise(bounds)))
    stages = cut(graph, count)
    assert len(stages.stages) == count
    assert max(each.forward_s + each.backward_s for each in stages.stages) == pytest.approx(best)
    assert sum(each.parameter_bytes for each in stages.stages) == 10 * len(times_s)
    assert stages.edges == tuple((s, s + 1, 5) for s in range(count - 1))


def test_an_equal_graph_is_cut_once() -> None:
    assert cut(chain("a", "b", "c"), 2) is cut(chain("a", "b", "c"), 2)


@given(st.integers(1, 8), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=16), st.randoms())
@settings(max_examples=300, deadline=None)
def test_every_acyclic_graph_comes_out_in_topological_order(count, pairs, chance) -> None:
    edges = [(f"l{a}", f"l{b}") for a, b in sorted(pairs) if a < b < count]
    layers = [layer(f"l{i}") for i in range(count)]
    chance.shuffle(layers)
    graph = layer_graph(layers, edges)
    assert sorted(names_of(graph)) == sorted(each.name for each in layers)
    assert {(graph.layers[a].name, graph.layers[b].name) for a, b in graph.edges} == set(edges)
    assert all(tail < head for tail, head in graph.edges)


@given(st.integers(2, 7), st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=16))
@settings(max_examples=300, deadline=None)
def test_a_graph_is_refused_exactly_if_some_layer_reaches_itself(count, pairs) -> None:
    used = {(a, b) for a, b in pairs if a < count and b < count and a != b}
    reach = set(used)
    for k, a, b in itertools.product(range(count), repeat=3):
        if (a, k) in reach and (k, b) in reach:
            reach.add((a, b))
    cyclic = any((i, i) in reach for i in range(count))
    edges = [(f"l{a}", f"l{b}") for a, b in sorted(used)]
    layers = [layer(f"l{i}") for i in range(count)]
    if not cyclic:
        assert len(layer_graph(layers, edges).layers) == count
        return
    with pytest.raises(GraphError) as caught:
        layer_graph(layers, edges)
    path = caught.value.message.removeprefix("the edges form a cycle: ").split(" -> ")
    assert path[0] == path[-1]
    steps = list(itertools.pairwise(path))
    assert all(step in edges for step in steps)
    assert caught.value.pointer_suffix == f"/edges/{max(edges.index(step) for step in steps)}"
