"""Each rule that no decision may break, broken once."""

import pytest

from policies.invariants import check
from policies.lifecycle import JobState
from policies.model.cluster import Cluster, Gangs, Server
from policies.model.decision import Action, Decision, Preempt, Reserve, Start
from policies.model.graph import Stage, StageGraph
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.placement import Placement, ServerShare, place
from service.engine.record import JobRecord
from service.engine.world import Costs, World

STAGES = StageGraph((Stage("a", 1, 1, 1), Stage("b", 1, 1, 1)), ((0, 1, 1),))


def on(*shares: tuple[int, int] | tuple[int, int, tuple[int, ...]]) -> Placement:
    return place([ServerShare(ServerIndex(share[0]), *share[1:]) for share in shares])


@pytest.fixture
def world() -> World:
    """Servers of 4 + 4 V100 and 4 A100; job 1 runs, 2 (two GPUs), 3 (two stages of one) and 4 (A100) wait."""
    made = World(Cluster("c", (Server("a", 4), Server("b", 4), Server("x", 4, "A100"))), Costs())
    made.add_job(JobRecord(JobId(1), JobSpec("j", "u", 2), 0.0, state=JobState.RUNNING))
    made.add_job(JobRecord(JobId(2), JobSpec("j", "u", 2), 0.0))
    config = ParallelismConfig((1, 1), (1, 1))
    made.add_job(JobRecord(JobId(3), JobSpec("j", "u", 2, stage_graph=STAGES, parallelism=config), 0.0))
    made.add_job(JobRecord(JobId(4), JobSpec("j", "u", 4, gpu_type="A100"), 0.0))
    return made


def broken(world: World, *actions: Action) -> list[str]:
    return [violation.invariant for violation in check(world, Decision(actions))]


def test_a_valid_decision_has_no_violation(world: World) -> None:
    actions = (
        Preempt(JobId(1)),
        Start(JobId(2), on((0, 1), (1, 1))),
        Start(JobId(3), on((0, 1, (1, 0)), (1, 1, (0, 1)))),
        Reserve(JobId(4), on((2, 4))),
    )
    assert broken(world, *actions) == []
    assert broken(world, Reserve(JobId(4), None), Start(JobId(4), on((2, 4)))) == []


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([Start(JobId(9), on((0, 2)))], ["known_job"]),
        ([Start(JobId(1), on((0, 2)))], ["starts_waiting"]),
        ([Start(JobId(2), on((0, 2))), Start(JobId(2), on((1, 2)))], ["starts_waiting"]),
        ([Start(JobId(2), on((0, 1)))], ["whole_gang"]),
        ([Start(JobId(2), on((0, 3)))], ["whole_gang"]),
        ([Start(JobId(2), Placement(()))], ["well_formed"]),
        ([Start(JobId(2), on((5, 2)))], ["well_formed"]),
        (
            [Start(JobId(2), Placement((ServerShare(ServerIndex(0), 3), ServerShare(ServerIndex(1), -1))))],
            ["well_formed"],
        ),
        ([Start(JobId(2), on((0, 1, (1, 0)), (1, 1)))], ["well_formed"]),
        ([Start(JobId(2), Placement((ServerShare(ServerIndex(0), 1),) * 2))], ["one_share_a_server"]),
        ([Start(JobId(2), on((0, 1), (2, 1)))], ["one_gpu_type"]),
        ([Start(JobId(4), on((0, 4)))], ["one_gpu_type"]),
        ([Start(JobId(3), on((0, 2, (2, 0))))], ["every_replica_placed"]),
        ([Start(JobId(3), on((0, 2)))], ["every_replica_placed"]),
        ([Preempt(JobId(2))], ["preempts_running"]),
        ([Preempt(JobId(1)), Preempt(JobId(1))], ["preempts_running"]),
        ([Reserve(JobId(1), on((0, 2)))], ["reserves_for_waiting"]),
        ([Start(JobId(2), on((0, 2))), Reserve(JobId(2), None)], ["reserves_for_waiting"]),
        ([Reserve(JobId(2), on((0, 1)))], ["whole_gang"]),
    ],
)
def test_each_invariant_is_checked(world: World, actions: list[Action], expected: list[str]) -> None:
    assert broken(world, *actions) == expected


def test_two_starts_together_may_not_take_more_than_is_free(world: World) -> None:
    world.bind(JobId(1), on((0, 3)))
    assert broken(world, Start(JobId(2), on((0, 2)))) == ["no_oversubscription"]
    assert broken(world, Start(JobId(2), on((1, 2))), Start(JobId(3), on((1, 2, (1, 1))))) == []
    world.bind(JobId(2), on((1, 1)))
    assert broken(world, Start(JobId(2), on((1, 2))), Start(JobId(3), on((1, 2, (1, 1))))) == ["no_oversubscription"]


def test_a_server_that_is_down_has_nothing_free(world: World) -> None:
    world.servers[0].down = True
    assert broken(world, Start(JobId(2), on((0, 2)))) == ["no_oversubscription"]


@pytest.mark.parametrize(
    ("gangs", "shares", "expected"),
    [
        (Gangs.ANY, ((0, 2), (1, 1)), []),
        (Gangs.EQUAL_SHARES, ((0, 2), (1, 1)), ["startable_gang"]),
        (Gangs.EQUAL_SHARES, ((0, 3),), []),
        (Gangs.ONE_SERVER, ((0, 3),), []),
        (Gangs.ONE_SERVER, ((0, 2), (1, 1)), ["startable_gang"]),
    ],
)
def test_a_gang_that_the_engine_cannot_start(
    gangs: Gangs, shares: tuple[tuple[int, int], ...], expected: list[str]
) -> None:
    made = World(Cluster("c", (Server("a", 4), Server("b", 4)), gangs=gangs), Costs())
    made.add_job(JobRecord(JobId(1), JobSpec("j", "u", 3), 0.0))
    assert broken(made, Start(JobId(1), on(*shares))) == expected


def test_more_cpus_or_memory_than_a_server_has_left_are_a_violation() -> None:
    made = World(Cluster("c", (Server("a", 4, cpus=8, memory_gib=16.0), Server("b", 4, gpu_memory_gib=16.0))), Costs())
    made.add_job(JobRecord(JobId(1), JobSpec("j", "u", 1, cpus=5), 0.0))
    made.add_job(JobRecord(JobId(2), JobSpec("j", "u", 2, cpus=4, memory_gib=16.0), 0.0))
    made.add_job(JobRecord(JobId(3), JobSpec("j", "u", 1, gpu_memory_gib=40.0), 0.0))
    one, two = Start(JobId(1), on((0, 1))), Start(JobId(2), on((0, 2)))
    assert broken(made, one) == broken(made, two) == broken(made, Start(JobId(3), on((0, 1)))) == []
    assert broken(made, one, two) == ["no_oversubscription"]
    assert broken(made, one, Start(JobId(2), on((0, 1), (1, 1)))) == []
    assert broken(made, Start(JobId(3), on((1, 1)))) == ["gpu_memory"]
    made.bind(JobId(2), on((0, 2)))
    made.add_job(JobRecord(JobId(4), JobSpec("j", "u", 1, memory_gib=0.1), 0.0))
    assert broken(made, Start(JobId(4), on((0, 1)))) == ["no_oversubscription"]
