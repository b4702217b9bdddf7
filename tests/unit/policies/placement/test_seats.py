"""The order of ranks: Megatron-LM's where every GPU has a process, and the order of servers where a launcher numbers them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.ids import ServerIndex
from policies.model.job import JobSpec, Launch
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, place
from policies.model.plan import TrainingPlan
from policies.placement.seats import Seat, node_order, seats


def placed(tensor: tuple[int, ...], *rows: tuple[int, ...], gpus: tuple[int, ...] = ()) -> tuple[JobSpec, Placement]:
    """A job with a process a GPU, and ``rows[m][s]`` replicas of stage s on server m."""
    counts = gpus or tuple(sum(k * t for k, t in zip(row, tensor, strict=True)) for row in rows)
    shares = [ServerShare(ServerIndex(m), counts[m], row) for m, row in enumerate(rows)]
    replicas = tuple(sum(row[stage] for row in rows) for stage in range(len(tensor)))
    spec = JobSpec("n", "u", sum(counts), parallelism=ParallelismConfig(replicas, tensor), launch=Launch.GPU)
    return spec, place(shares)


def test_a_job_without_stages_is_numbered_as_by_torchrun() -> None:
    placement = place([ServerShare(ServerIndex(3), 2), ServerShare(ServerIndex(1), 1)])
    for mode in Launch:
        found = seats(JobSpec("n", "u", 3, launch=mode), placement)
        assert [(seat.node, seat.share, seat.gpu) for seat in found] == [(0, 0, 0), (1, 1, 0), (1, 1, 1)]
        assert [(seat.rank, seat.replica, seat.stage, seat.tensor) for seat in found] == [
            (r, r, 0, 0) for r in range(3)
        ]


def test_a_plan_without_stages_has_its_degrees_in_order() -> None:
    plan = TrainingPlan(data=2, tensor=2, pipeline=2, global_batch=2)
    found = seats(JobSpec("n", "u", 8, plan=plan), place([ServerShare(ServerIndex(0), 8)]))
    assert [(seat.stage, seat.replica, seat.tensor) for seat in found] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip


def test_the_servers_of_the_first_stage_come_first() -> None:
    """Stage 1 alone on server 0, both on server 1, stage 0 alone on server 2."""
    spec, placement = placed((2, 1), (0, 2), (1, 2), (1, 0))
    assert node_order(placement) == [2, 1, 0]
    assert [(s.share, s.gpu, s.stage, s.replica, s.tensor) for s in seats(spec, placement)] == [
        (2, 0, 0, 0, 0), (2, 1, 0, 0, 1), (1, 0, 0, 1, 0), (1, 1, 0, 1, 1),
        (1, 2, 1, 0, 0), (1, 3, 1, 1, 0), (0, 0, 1, 2, 0), (0, 1, 1, 3, 0),
    ]  # fmt: skip


def test_a_launcher_numbers_server_after_server() -> None:
    """Each server has both stages: with a process a GPU the stages are adjacent, below a launcher the servers are."""
    spec, placement = placed((1, 1), (1, 1), (1, 1))
    assert [(s.stage, s.replica, s.share) for s in seats(spec, placement)] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0),
        (1, 1, 1),
    ]
    by_server = seats(JobSpec("n", "u", 4, parallelism=spec.parallelism), placement)
    assert [(s.rank, s.share, s.gpu, s.stage) for s in by_server] == [
        (0, 0, 0, 0),
        (1, 0, 1, 1),
        (2, 1, 0, 0),
        (3, 1, 1, 1),
    ]


def test_a_tensor_group_across_servers_takes_what_is_left() -> None:
    """Replicas of 4 GPUs on servers of 6 and 2: the second replica's first rank is on server 0."""
    spec, placement = placed((4,), (2,), (0,), gpus=(6, 2))
    assert [(s.share, s.replica, s.tensor) for s in seats(spec, placement)] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 1, 0), (0, 1, 1), (1, 1, 2), (1, 1, 3),
    ]  # fmt: skip


@st.composite
def placements(draw: st.DrawFn) -> tuple[JobSpec, Placement]:
    tensor = tuple(draw(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=4)))
    row = st.tuples(*(st.integers(0, 3) for _ in tensor))
    rows = [r for r in draw(st.lists(row, min_size=1, max_size=6)) if any(r)]
    total = [sum(r[stage] for r in rows) for stage in range(len(tensor))]
    first = tuple(max(1, had) - had for had in total)
    return placed(tensor, *rows, first) if any(first) or not rows else placed(tensor, *rows)


@given(placements(), st.sampled_from(list(Launch)))
def test_every_gpu_has_one_seat_and_each_server_its_replicas(found: tuple[JobSpec, Placement], mode: Launch) -> None:
    spec, placement = found
    assert spec.parallelism is not None
    tensor, replicas = spec.parallelism.tensor, spec.parallelism.replicas
    taken = seats(JobSpec("n", "u", spec.gpus, parallelism=spec.parallelism, launch=mode), placement)
    assert [seat.rank for seat in taken] == list(range(spec.gpus))
    assert sorted((s.share, s.gpu) for s in taken) == [
        (share, gpu) for share, held in enumerate(placement.shares) for gpu in range(held.gpus)
    ]
    for share, held in enumerate(placement.shares):
        here = Counter(seat.stage for seat in taken if seat.share == share)
        assert [here[stage] for stage in range(len(tensor))] == [
            k * t for k, t in zip(held.replicas, tensor, strict=True)
        ]
    groups: dict[tuple[int, int], list[Seat]] = {}
    for seat in taken:
        groups.setdefault((seat.stage, seat.replica), []).append(seat)
    assert sorted(groups) == [(stage, r) for stage, count in enumerate(replicas) for r in range(count)]
    for (stage, _), group in groups.items():
        assert [seat.tensor for seat in group] == list(range(tensor[stage]))
        assert len({seat.share for seat in group}) == 1
        assert [seat.rank - group[0].rank for seat in group] == list(range(tensor[stage])), "a tensor group is adjacent"
    assert taken[0].node == 0
    if mode is Launch.GPU:
        assert [(s.stage, s.replica, s.tensor) for s in taken] == sorted((s.stage, s.replica, s.tensor) for s in taken)
    else:
        assert [(s.node, s.gpu) for s in taken] == sorted((s.node, s.gpu) for s in taken)


@pytest.mark.parametrize(("tensor", "data", "stages"), [(2, 2, 4), (4, 1, 2), (1, 8, 1)])
def test_the_numbers_are_megatrons(tensor: int, data: int, stages: int) -> None:
    """16 or fewer GPUs on servers of 4: the groups of Megatron-LM's documentation, by rank."""
    row = [0] * stages
    rows: list[tuple[int, ...]] = []
    for stage in range(stages):
        for _ in range(data):
            row[stage] += 1
            if sum(row) * tensor == 4:
                rows.append(tuple(row))
                row = [0] * stages
    found = seats(*placed((tensor,) * stages, *rows))
    for seat in found:
        assert seat.rank == seat.tensor + tensor * (seat.replica + data * seat.stage)
        assert (seat.node, seat.gpu) == divmod(seat.rank, 4)
