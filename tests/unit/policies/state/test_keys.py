"""Which jobs are of one gang class."""

import pytest

from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.state.keys import gang_class


def spec(replicas: tuple[int, ...], tensor: tuple[int, ...], *, across: bool = False) -> JobSpec:
    stages = tuple(Stage(f"s{number}", 0.1, 0.2, 1000) for number in range(len(replicas)))
    config = ParallelismConfig(replicas, tensor, tensor_across_servers=across)
    graph = StageGraph(stages, tuple((number, number + 1, 1000) for number in range(len(stages) - 1)))
    return JobSpec("j", "u", config.gpus, stage_graph=graph, parallelism=config)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (spec((4,), (2,)), spec((1, 3), (2, 2)), True),
        (spec((2, 1), (1, 4)), spec((1, 1, 1), (4, 1, 1)), True),
        (spec((2,), (3,)), spec((1, 3), (3, 1)), False),
        (spec((2,), (4,)), spec((4,), (2,)), False),
        (spec((4, 4), (1, 1)), JobSpec("j", "u", 8), True),
        (spec((2,), (4,), across=True), JobSpec("j", "u", 8), True),
    ],
)
def test_the_sizes_of_tensor_groups_count_and_not_their_stages(one: JobSpec, other: JobSpec, alike: bool) -> None:
    assert (gang_class(one, ()) == gang_class(other, ())) is alike
