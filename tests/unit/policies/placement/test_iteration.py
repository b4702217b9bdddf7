"""The parts of an iteration are those of alpha(x)."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.graph import Stage, StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.model.plan import PipelineSchedule
from policies.placement.iteration import Gang, Link, MappingSeconds, gang, parts, seconds

LINK = st.builds(Link, st.sampled_from([1e9, 4e9]), st.sampled_from([8e9, 64e9]), st.sampled_from([0.5, 1.0, 2.0]))
SIZE = st.integers(0, 10**10)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Gang, list[Link], list[tuple[int, ...]]]:
    """A gang, the links of its servers, and the replicas of each stage there."""
    count = draw(st.integers(1, 4))
    stages = [
        Stage(f"s{s}", draw(st.integers(0, 9)) / 10, draw(st.integers(0, 9)) / 10, draw(SIZE), draw(SIZE))
        for s in range(count)
    ]
    edges = [(s, s + 1, draw(SIZE)) for s in range(count - 1)]
    links = draw(st.lists(LINK, min_size=1, max_size=3))
    row = st.tuples(*[st.integers(0, 2)] * count)
    rows = [draw(row) for _ in links]
    rows[0] = tuple(held + (sum(other[s] for other in rows) == 0) for s, held in enumerate(rows[0]))
    config = ParallelismConfig(
        tuple(sum(row[s] for row in rows) for s in range(count)),
        tuple(draw(st.sampled_from([1, 2])) for _ in range(count)),
        draw(st.sampled_from([PipelineSchedule.PIPEDREAM, PipelineSchedule.GPIPE, PipelineSchedule.ZERO_BUBBLE])),
        draw(st.integers(1, 8)),
    )
    return gang(StageGraph(tuple(stages), tuple(edges)), config), links, rows


@given(case=cases(), straddling=st.booleans())
def test_parts_add_up_to_the_iteration(case: tuple[Gang, list[Link], list[tuple[int, ...]]], straddling: bool) -> None:
    of, links, rows = case
    found = parts(of, links, rows, straddling)
    assert found.total_s == seconds(of, links, rows, straddling)
    assert found.slowest.busy_s + found.all_reduce_s + found.bubble_s == pytest.approx(
        found.total_s, rel=1e-9, abs=1e-12
    )
    assert [(each.link, each.stage) for each in found.stages] == [
        (m, s) for m, row in enumerate(rows) for s, held in enumerate(row) if held
    ]
    assert found.slowest in found.stages
    if of.synchronous:
        assert found.all_reduce_s == max(found.rings_s)
        assert found.slowest.busy_s == max(each.busy_s for each in found.stages)
    else:
        assert found.all_reduce_s == found.rings_s[found.slowest.stage]
        assert found.bubble_s == 0.0


def test_each_part_is_that_of_its_cause() -> None:
    """Two stages on two servers of 2 GB/s each way between them: numbers by hand."""
    stages = (Stage("a", 1.0, 2.0, 4 * 10**9, 6 * 10**9), Stage("b", 0.5, 0.5, 10**9))
    config = ParallelismConfig((2, 1), (2, 1), PipelineSchedule.GPIPE, micro_batches=4)
    of = gang(StageGraph(stages, ((0, 1, 10**9),)), config)
    found = parts(of, [Link(2e9, 10e9, 1.0), Link(2e9, 10e9, 0.5)], [(1, 0), (1, 1)])
    first, second, last = found.stages
    assert (first.compute_s, first.tensor_s, first.activations_s) == (0.75, 0.6, ((1, 0.5),))
    assert (second.compute_s, second.tensor_s, second.activations_s) == (1.5, 0.6, ((1, 0.1),))
    assert (last.compute_s, last.tensor_s, last.activations_s) == (2.0, 0.0, ((0, pytest.approx(0.6)),))
    # The ring over the two replicas of stage a leaves each server through one share of 2 GB/s: 2 GB / 2 GPUs of a group.
    assert found.rings_s == (1.0, 0.0)
    assert found.slowest is last
    assert (found.ring_stage, found.all_reduce_s, found.bubble_s) == (0, 1.0, pytest.approx(0.25 * 2.6))
    assert found.total_s == pytest.approx(1.25 * 2.6 + 1.0)


@given(case=cases(), data=st.data())
def test_a_mapping_that_differs_in_two_servers_takes_as_long_as_if_computed_anew(
    case: tuple[Gang, list[Link], list[tuple[int, ...]]], data: st.DataObject
) -> None:
    of, links, rows = case
    links, rows = [*links, links[0]], [*rows, (0,) * len(of.replicas)]
    a, b = data.draw(st.permutations(range(len(rows))))[:2]
    taken = tuple(data.draw(st.integers(0, held)) for held in rows[a])
    moved = list(rows)
    moved[a] = tuple(held - less for held, less in zip(rows[a], taken, strict=True))
    moved[b] = tuple(held + more for held, more in zip(rows[b], taken, strict=True))
    expected = seconds(of, links, moved)
    limit_s = data.draw(st.sampled_from([inf, expected, expected * (1 - 1e-9), seconds(of, links, rows), 0.0]))
    found = MappingSeconds(of, tuple(links), tuple(rows)).with_rows(a, moved[a], b, moved[b], limit_s)
    assert found == (expected if expected <= limit_s else inf)
