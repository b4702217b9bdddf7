"""Slurm's order as a policy: priority, then job id, and backfill that delays no reservation."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from service.advice import order
from service.advice.mirror import Mirrored, MirrorJob, MirrorNode, Seen, mirror
from service.forecast.forecast import ForecastOptions, sample

NOW_S = 1_700_000_000.0
NODES = [MirrorNode("node1", 4, "a100", ("main",)), MirrorNode("node2", 4, "a100", ("main",))]


def _job(number: int, gpus: int, *, nodes: int = 1, limit_s: float | None = 3600.0, **more: Any) -> MirrorJob:
    given: dict[str, Any] = {"gpus_a_node": gpus // nodes, "priority": 100, **more}
    return MirrorJob(
        str(number), (number, 0), f"job{number}", "ann", gpus, NOW_S - 60.0, nodes=nodes, limit_s=limit_s, **given
    )


def _running(number: int, on: Mapping[str, int], *, limit_s: float = 3600.0, since_s: float = NOW_S) -> MirrorJob:
    gpus = sum(on.values())
    return _job(number, gpus, nodes=len(on), limit_s=limit_s, started_at_s=since_s, held_gpus=on)


def _mirrored(jobs: Sequence[MirrorJob], nodes: Sequence[MirrorNode] = NODES) -> Mirrored:
    return mirror(Seen(NOW_S, nodes, jobs), 1000)


def _starts(mirrored: Mirrored, totals_s: Mapping[str, float]) -> dict[str, float]:
    """When each job starts, in seconds from now, if it runs as long as given."""
    estimates = {
        number: Estimate((totals_s[job.key],), Unit.SERVICE_S, "test") for number, job in mirrored.jobs.items()
    }
    found = sample(mirrored.world(estimates), mirrored.order(), options=ForecastOptions(samples=5))
    (first, *_) = found.sampled
    return {mirrored.jobs[JobId(number)].key: at_s - NOW_S for number, at_s in first.started_at_s.items()}


def test_larger_priorities_come_first_and_then_smaller_ids() -> None:
    jobs = [_job(1, 8, nodes=2), _job(2, 8, nodes=2), _job(3, 8, nodes=2, priority=200)]
    assert _starts(_mirrored(jobs), {"1": 10.0, "2": 10.0, "3": 10.0}) == {"3": 0.0, "1": 10.0, "2": 20.0}


def test_a_short_job_passes_the_head_if_its_limit_ends_before_the_reservation() -> None:
    """Node 1 is held for an hour by its limit, so the gang of two nodes is reserved in an hour."""
    jobs = [
        _running(1, {"node1": 4}),
        _job(2, 8, nodes=2),
        _job(3, 4, limit_s=7200.0),
        _job(4, 4, limit_s=3600.0),
    ]
    starts = _starts(_mirrored(jobs), {"1": 100.0, "2": 10.0, "3": 10.0, "4": 10.0})
    assert starts == {"4": 0.0, "2": 100.0, "3": 110.0}


def test_a_job_without_a_limit_passes_no_reservation() -> None:
    jobs = [_running(1, {"node1": 4}), _job(2, 8, nodes=2), _job(3, 1, limit_s=None)]
    assert _starts(_mirrored(jobs), {"1": 100.0, "2": 10.0, "3": 10.0}) == {"2": 100.0, "3": 110.0}


def test_reservations_of_all_jobs_count_not_only_that_of_the_first() -> None:
    """Job 3 is reserved on node 2 after job 2; job 4 would delay it, although it would not delay job 2."""
    jobs = [
        _running(1, {"node1": 4}, limit_s=1000.0),
        _running(2, {"node2": 2}, limit_s=2000.0),
        _job(3, 4, limit_s=600.0, priority=300),
        _job(4, 4, limit_s=600.0, priority=200, allowed=frozenset({"node2"})),
        _job(5, 2, limit_s=3000.0, allowed=frozenset({"node2"})),
    ]
    starts = _starts(_mirrored(jobs), {"1": 900.0, "2": 1900.0, "3": 10.0, "4": 10.0, "5": 10.0})
    assert starts == {"3": 900.0, "4": 1900.0, "5": 1910.0}


def test_the_number_of_reservations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "RESERVATIONS_MAX", 1)
    jobs = [
        _running(1, {"node1": 4}, limit_s=1000.0),
        _running(2, {"node2": 2}, limit_s=2000.0),
        _job(3, 4, limit_s=600.0, priority=300),
        _job(4, 4, limit_s=600.0, priority=200, allowed=frozenset({"node2"})),
        _job(5, 2, limit_s=3000.0, allowed=frozenset({"node2"})),
    ]
    starts = _starts(_mirrored(jobs), {"1": 900.0, "2": 1900.0, "3": 10.0, "4": 10.0, "5": 10.0})
    assert starts["5"] == 0.0


def test_gpus_of_a_node_are_uniform_if_the_job_says_so() -> None:
    """Three GPUs are free on each node: a job with two nodes of three starts, one with a node of four does not."""
    jobs = [
        _running(1, {"node1": 1}),
        _running(2, {"node2": 1}),
        _job(3, 4, priority=200, limit_s=60.0),
        _job(4, 6, nodes=2, limit_s=60.0),
    ]
    assert _starts(_mirrored(jobs), {"1": 50.0, "2": 60.0, "3": 5.0, "4": 5.0}) == {"4": 0.0, "3": 50.0}


def test_a_job_of_any_split_takes_what_is_free() -> None:
    jobs = [_running(1, {"node1": 1}), _job(2, 7, nodes=1, gpus_a_node=None)]
    assert _starts(_mirrored(jobs), {"1": 50.0, "2": 5.0}) == {"2": 0.0}


def test_drained_and_down_nodes_start_nothing() -> None:
    nodes = [MirrorNode("node1", 4, drained=True), MirrorNode("node2", 4, down=True), MirrorNode("node3", 4)]
    jobs = [_job(1, 4), _job(2, 4)]
    assert _starts(_mirrored(jobs, nodes), {"1": 10.0, "2": 10.0}) == {"1": 0.0, "2": 10.0}


def test_another_order_replaces_the_priorities() -> None:
    mirrored = _mirrored([_job(1, 8, nodes=2, priority=500), _job(2, 8, nodes=2)])
    estimates = {number: Estimate((10.0,), Unit.SERVICE_S, "test") for number in mirrored.jobs}
    by_number = {JobId(2): 0, JobId(1): 1}
    found = sample(mirrored.world(estimates), mirrored.order(by_number), options=ForecastOptions(samples=5))
    assert found.sampled[0].started_at_s == {JobId(2): NOW_S, JobId(1): NOW_S + 10.0}
