"""A site: what it learns from a Slurm that it watches, and what it keeps for the next run."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from service.advice.calibration import Kind
from service.advice.past import PastJob
from service.advice.site import CALIBRATION_AGE_S, NoGpus, Site
from service.slurm.cluster import Slurm
from service.slurm.jobs import SlurmJob
from service.slurm.nodes import SlurmNode
from tests.unit.service.advice.past_cluster import jobs_of, run

NOW_S = 1_700_000_000.0
NODES = [SlurmNode(f"node{number}", "h", "idle", gpu_types={"a100": 4}, partitions=("main",)) for number in range(1, 7)]
JOB = SlurmJob(
    id=1, name="train", user="ann", state="PENDING", partition="main", reason="Priority", gpus=4, node_count=1,
    priority=100, submit_s=NOW_S - 10.0, time_limit_s=600.0,
)  # fmt: skip


class Watched(Slurm):
    """Answers what the test says."""

    def __init__(self, jobs: Sequence[SlurmJob] = (), nodes: Sequence[SlurmNode] = NODES) -> None:
        super().__init__()
        self.queue, self.fleet = list(jobs), list(nodes)

    def jobs(self, comment: str = "") -> list[SlurmJob]:
        return self.queue

    def nodes(self) -> list[SlurmNode]:
        return self.fleet


def _past() -> list[PastJob]:
    return run(jobs_of(3, 80, servers=6, load=0.9), 6, 3)


def test_forecasts_that_come_true_while_it_watches_are_learnt(tmp_path: Path) -> None:
    slurm = Watched([JOB])
    site = Site(slurm, tmp_path, lambda now_s: [])
    seen = site.look(NOW_S)
    site.learn(seen, NOW_S)
    (made,) = site.advise(seen).jobs
    assert made.start is not None and site.calibration.count(Kind.START_NOW) == 0
    slurm.queue = [replace(JOB, state="RUNNING", nodes=("node1",), start_s=NOW_S + 2.0)]
    site.look(NOW_S + 5.0)
    assert site.calibration.count(Kind.START_NOW) == 1
    slurm.queue = [replace(JOB, state="COMPLETED", nodes=("node1",), start_s=NOW_S + 2.0, end_s=NOW_S + 52.0)]
    seen = site.look(NOW_S + 60.0)
    assert site.calibration.count(Kind.END_WAITING) == 1
    site.learn(seen, NOW_S + 60.0)
    assert site.learner.learnt == 1
    site.look(NOW_S + 65.0)
    assert site.calibration.count(Kind.END_WAITING) == 1


def test_a_job_that_is_cancelled_before_it_starts_teaches_no_start(tmp_path: Path) -> None:
    slurm = Watched([JOB])
    site = Site(slurm, tmp_path, lambda now_s: [])
    seen = site.look(NOW_S)
    site.learn(seen, NOW_S)
    site.advise(seen)
    slurm.queue = [replace(JOB, state="CANCELLED", end_s=NOW_S + 2.0, start_s=NOW_S + 2.0)]
    site.look(NOW_S + 5.0)
    assert sum(site.calibration.count(kind) for kind in Kind) == 0


def test_a_calibration_is_kept_for_the_next_run_and_made_anew_after_a_day(tmp_path: Path) -> None:
    past = _past()
    now_s = past[-1].asked.submitted_at_s
    first = Site(Watched(), tmp_path, lambda now_s: past)
    first.learn(first.look(now_s), now_s)
    checked = first.calibration.count(Kind.END_RUNNING)
    assert checked > 0 and first.learner.learnt == len(past)
    second = Site(Watched(), tmp_path, lambda now_s: past)
    second.learn(second.look(now_s + 60.0), now_s + 60.0)
    assert second.calibration.made_at_s == now_s and second.calibration.count(Kind.END_RUNNING) == checked
    assert second.learner.learnt == len(past)
    later_s = now_s + CALIBRATION_AGE_S
    third = Site(Watched(), tmp_path, lambda now_s: past)
    third.learn(third.look(later_s), later_s)
    assert third.calibration.made_at_s == later_s


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"made_at_s": 1}', json.dumps({"made_at_s": 1.0, "jobs": 1, "scores": {"x": 1}})]
)
def test_a_damaged_calibration_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "calibration.json").write_text(text)
    site = Site(Watched(), tmp_path, lambda now_s: [])
    site.learn(site.look(NOW_S), NOW_S)
    assert site.calibration.made_at_s == NOW_S


def test_a_cluster_without_gpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoGpus, match="no node of this Slurm has GPUs"):
        Site(Watched(nodes=[replace(node, gpu_types={}) for node in NODES]), tmp_path, lambda now_s: []).look(NOW_S)
