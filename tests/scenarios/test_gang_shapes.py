"""Clusters whose engine starts equal shares alone, or gangs within one server: every policy keeps to it and starves none."""

import random

import pytest

from policies.lifecycle import JobState
from policies.model.cluster import Gangs
from policies.model.reasons import Reason
from policies.registry import BUILT_IN
from tests.scenarios.dsl import Story, cluster, policy

LIMITED = [Gangs.EQUAL_SHARES, Gangs.ONE_SERVER]


def story(shape: str, gangs: Gangs, name: str = "fifo_backfill", **options: object) -> Story:
    return cluster(shape, policy(name, **options), gangs=gangs)


def test_a_gang_gets_equal_shares_although_fewer_servers_would_hold_it() -> None:
    made = story("2x4 2x2", Gangs.EQUAL_SHARES).job("a", gpus=6, runs_s=10)
    made.until(0).starts("a").on("a", 0, 1)
    placement = made.record("a").placement
    assert placement is not None and [share.gpus for share in placement.shares] == [3, 3]


def test_a_gang_waits_with_a_reason_while_its_free_gpus_are_in_unequal_parts() -> None:
    made = story("2x4", Gangs.EQUAL_SHARES).job("small", gpus=2, runs_s=50).until(0).starts("small").on("small", 0)
    made.job("gang", gpus=6, runs_s=10, at_s=1).until(1).waits("gang", Reason.FRAGMENTED)
    said = made.engine.explain(made.ids["gang"]).sentence
    assert said.endswith("Enough GPUs are free, but on this cluster it needs equal numbers of GPUs on all its servers.")
    made.until(50).finishes("small").starts("gang").on("gang", 0, 1)


def test_within_one_server_a_gang_waits_for_the_whole_server() -> None:
    made = story("2x4", Gangs.ONE_SERVER).job("a", gpus=2, runs_s=50).job("b", gpus=3, runs_s=20)
    made.until(0).starts("a", "b").on("a", 0).on("b", 1)
    made.job("gang", gpus=3, runs_s=10, at_s=1).until(1).waits("gang", Reason.FRAGMENTED)
    assert "all its GPUs on one server" in made.engine.explain(made.ids["gang"]).sentence
    made.until(20).finishes("b").starts("gang").on("gang", 1)


def test_a_restart_and_a_new_server_keep_the_limit() -> None:
    made = story("1x4", Gangs.EQUAL_SHARES).until(0).add_server(2).until(1).restart()
    assert made.engine.world.cluster.gangs is Gangs.EQUAL_SHARES
    made.job("gang", gpus=6, runs_s=10, at_s=2).until(2).waits("gang", Reason.NO_SUCH_SERVERS)


@pytest.mark.parametrize("gangs", LIMITED)
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_starts_only_what_the_engine_can_start_and_all_of_it(name: str, gangs: Gangs) -> None:
    dice = random.Random(f"{name} {gangs}")
    made = story("3x4 2x8", gangs, name)
    for number in range(60):
        gpus = dice.choice([1, 1, 2, 3, 4, 6, 7, 8] + ([12, 16] if gangs is Gangs.EQUAL_SHARES else []))
        runs_s = dice.choice([5.0, 30.0, 300.0])
        made.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=dice.randrange(200))
    made.to_the_end()
    assert all(made.state(job) is JobState.SUCCEEDED for job in made.ids)
    assert made.engine.counters["decisions_rejected"] == 0
