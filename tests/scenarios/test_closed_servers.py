"""Jobs whose servers are down or reserved: they neither stop the others nor take the guard from them."""

import pytest

from policies.model.reasons import Reason
from tests.scenarios.dsl import Story, cluster, policy


def _wide_among_small(name: str, **options: object) -> Story:
    """A job for an A100, an older one than the wide one, which small jobs would starve without the guard."""
    story = cluster("4x4:V100 1x4:A100", policy(name, guard_wait_s=200, **options))
    story.job("a100", gpus=4, runs_s=10, gpu_type="A100")
    story.job("wide", gpus=16, runs_s=50, gpu_type="V100", at_s=1)
    for number in range(500):
        story.job(f"small{number}", gpus=1, runs_s=40 + number % 7, gpu_type="V100", at_s=0.5 + number * 2.4)
    return story


@pytest.mark.parametrize("name", ["asrpt", "srsf", "las", "sjf", "fifo_backfill"])
def test_a_job_whose_servers_are_down_keeps_no_other_from_being_guarded(name: str) -> None:
    story = _wide_among_small(name).drain(4).until(1000)
    assert story.record("wide").attempts
    story.waits("a100", Reason.NO_SUCH_SERVERS).resume(4).until(1002).restart()
    assert story.record("a100").attempts
    story.to_the_end()


def test_a_guarded_job_whose_servers_fail_gives_its_turn_to_the_next() -> None:
    story = _wide_among_small("asrpt").job("on a100", gpus=4, runs_s=1e5, gpu_type="A100", at_s=-1, priority=9)
    story.until(150).drain(4)
    story.until(1000).waits("a100", Reason.NO_SUCH_SERVERS)
    assert story.record("wide").attempts


def test_a_job_whose_servers_are_reserved_keeps_no_other_from_being_guarded() -> None:
    story = _wide_among_small("asrpt").reserve(4, from_s=0.0, until_s=2000.0).until(1000)
    assert story.record("wide").attempts
    story.waits("a100", Reason.RESERVED_SERVERS).until(2000)
    assert story.record("a100").attempts


def test_a_guarded_job_whose_servers_are_reserved_is_an_ordinary_one_until_they_are_open() -> None:
    story = cluster("1x4:V100 1x4:A100", policy("asrpt", guard_share=0.5)).reserve(1, from_s=0.0, until_s=100.0)
    story.job("a100", runs_s=10, gpu_type="A100").until(0)
    state = story.engine._state
    story.job("other", runs_s=10, gpu_type="V100", at_s=1).until(1).starts("other")
    assert state.guard.tier(story.ids["a100"]) == 1
    state.check(story.engine.world)
    story.until(100).starts("a100")


@pytest.mark.parametrize(("name", "options"), [("fifo", {}), ("easy", {}), ("asrpt", {"preemption": "never"})])
def test_strictly_in_order_a_job_whose_servers_are_away_lets_the_others_pass(
    name: str, options: dict[str, object]
) -> None:
    story = cluster("1x4:V100 2x4:A100", policy(name, **options)).drain(1).reserve(2, from_s=0.0, until_s=100.0)
    story.job("reserved", runs_s=10, gpu_type="A100").job("first", gpus=4, runs_s=10, gpu_type="V100", at_s=1)
    story.until(90).waits("reserved", Reason.RESERVED_SERVERS)
    assert story.record("first").attempts
    story.until(100).starts("reserved").until(120).drain(2).job("down", gpu_type="A100")
    story.job("second", gpus=4, runs_s=10, gpu_type="V100", at_s=121).until(200).waits("down", Reason.NO_SUCH_SERVERS)
    assert story.record("second").attempts


def test_a_short_job_starts_before_a_reservation_however_many_long_ones_come_first() -> None:
    story = cluster("4x4", policy("fifo_backfill")).reserve(0, 1, 2, 3, from_s=1000.0, until_s=2000.0).until(1)
    for number in range(30):
        story.job(f"long{number}", runs_s=5000, at_s=2)
    story.job("unknown", runs_s=5, at_s=2, predicted=None).job("short", runs_s=10, at_s=3).until(3).starts(
        "unknown", "short"
    )
    story.waits("long29", Reason.RESERVED_SERVERS)


def test_the_first_cycle_after_a_restart_knows_whose_servers_are_reserved() -> None:
    story = cluster("1x4:V100 1x4:A100", policy("asrpt", guard_share=0.5)).reserve(1, from_s=0.0, until_s=100.0)
    for number in range(30):
        story.job(f"a100-{number}", runs_s=10, gpu_type="A100")
    story.until(0).job("other", runs_s=10, gpu_type="V100", at_s=1).until(1).starts("other")
    for _ in range(2):
        assert story.engine._state.guard.tier(story.ids["a100-0"]) == 1
        story.waits("a100-0", Reason.RESERVED_SERVERS).waits("a100-29", Reason.RESERVED_SERVERS)
        story.restart().cycle()


@pytest.mark.parametrize("name", ["asrpt", "fifo", "easy", "sjf"])
def test_no_job_waits_for_servers_that_have_come_back(name: str) -> None:
    """Of those that lacked servers only the first are tried: the others wait for these."""
    story = cluster("1x4:V100 1x4:A100", policy(name)).reserve(1, from_s=0.0, until_s=100.0).drain(0)
    for number in range(12):
        story.job(f"a100-{number}", runs_s=500, gpu_type="A100").job(f"v100-{number}", runs_s=500, gpu_type="V100")
    story.until(99)
    assert {job.reason for job in map(story.record, story.ids)} >= {Reason.NO_SUCH_SERVERS, Reason.RESERVED_SERVERS}
    story.resume(0).until(101)
    reasons = {job.reason for job in map(story.record, story.ids)}
    assert reasons.isdisjoint({Reason.NO_SUCH_SERVERS, Reason.RESERVED_SERVERS})
    assert sum(story.record(job).attempts for job in story.ids) == 8
