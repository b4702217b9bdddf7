"""A running Slurm in the neutral form: recorded answers of 22.05.8, and the forms that they do not have."""

import json
from dataclasses import replace
from pathlib import Path

from service.advice import live
from service.advice.mirror import NO_GPUS, MirrorJob, mirror
from service.slurm.jobs import SlurmJob, parse_jobs
from service.slurm.nodes import SlurmNode, parse_nodes

ANSWERS = Path(__file__).parents[1] / "slurm" / "answers"
NOW_S = 1_795_418_900.0
NODES = [
    SlurmNode("node1", "h1", "idle", gpu_types={"a100": 4}, partitions=("main",), features=("ib", "big")),
    SlurmNode("node2", "h2", "idle", gpu_types={"a100": 4}, partitions=("main", "debug"), features=("ib",)),
    SlurmNode("node3", "h3", "idle", gpu_types={"a100": 4}, partitions=("debug",)),
]
JOB = SlurmJob(
    id=7,
    name="train",
    user="ann",
    state="PENDING",
    partition="main",
    reason="Priority",
    priority=100,
    time_limit_s=3600.0,
    submit_s=NOW_S - 60.0,
    node_count=1,
    gpus=2,
)


def _jobs(*jobs: SlurmJob) -> dict[str, MirrorJob]:
    return {job.key: job for job in live.seen(NOW_S, NODES, jobs).jobs}


def test_the_recorded_answers() -> None:
    nodes = parse_nodes(json.loads((ANSWERS / "sinfo-22.05.8.json").read_text()))
    jobs = parse_jobs(json.loads((ANSWERS / "squeue-22.05.8.json").read_text()))
    seen = live.seen(NOW_S, nodes, jobs)
    keys = {job.key for job in seen.jobs}
    assert keys == {"1", "4", "5", "7", "10", "11", *(f"9_{task}" for task in range(1, 41))}
    assert seen.left_out == {live.HETEROGENEOUS: 2, "waits with Slurm's reason DependencyNeverSatisfied": 1}
    gang = next(job for job in seen.jobs if job.key == "1")
    assert gang.started_at_s is not None and gang.held_gpus == {"node2": 2, "node3": 2}
    states = {node.name: (node.down, node.drained) for node in seen.nodes}
    assert states == {
        "node1": (False, False),
        "node2": (False, False),
        "node3": (True, True),
        "node4": (False, True),
    }
    assert set(mirror(seen, 1000).left_out) == set(seen.left_out)


def test_a_heterogeneous_job_that_runs_holds_the_gpus_of_its_components() -> None:
    one = replace(JOB, state="RUNNING", het_job_id=7, het_offset=0, nodes=("node1",), start_s=NOW_S - 5.0)
    two = replace(one, id=8, het_offset=1, nodes=("node2",))
    assert {key: job.held_gpus for key, job in _jobs(one, two).items()} == {"7+0": {"node1": 2}, "7+1": {"node2": 2}}


def test_gpus_without_indices_are_spread_evenly() -> None:
    job = replace(JOB, state="RUNNING", gpus=5, node_count=2, nodes=("node1", "node2"), start_s=NOW_S - 5.0)
    (found,) = _jobs(job).values()
    assert found.held_gpus == {"node1": 3, "node2": 2} and found.gpus_a_node is None


def test_jobs_without_gpus_and_odd_states_are_counted() -> None:
    seen = live.seen(NOW_S, NODES, [replace(JOB, gpus=0), replace(JOB, id=8, state="REQUEUE_HOLD")])
    assert seen.jobs == [] and seen.left_out == {NO_GPUS: 1, "is in the state REQUEUE_HOLD": 1}


def test_jobs_that_wait_for_a_limit_are_counted_by_slurms_reason() -> None:
    seen = live.seen(NOW_S, NODES, [replace(JOB, reason="QOSMaxGRESPerUser", array_job_id=7, array_tasks="1-5")])
    assert seen.left_out == {"waits with Slurm's reason QOSMaxGRESPerUser": 5}


def test_nodes_that_a_job_may_use() -> None:
    jobs = _jobs(
        replace(JOB, id=1),
        replace(JOB, id=2, partition="main,debug"),
        replace(JOB, id=3, excluded_nodes=("node1",)),
        replace(JOB, id=4, required_nodes=("node2",)),
        replace(JOB, id=5, features="ib&big"),
        replace(JOB, id=6, features="[ib|big]"),
        replace(JOB, id=7, required_nodes=("node2",), node_count=2),
    )
    allowed = {key: sorted(job.allowed or ()) for key, job in jobs.items()}
    assert allowed == {
        "1": ["node1", "node2"],
        "2": ["node1", "node2", "node3"],
        "3": ["node2"],
        "4": ["node2"],
        "5": ["node1"],
        "6": ["node1", "node2"],
        "7": ["node1", "node2"],
    }


def test_dependencies() -> None:
    other = replace(JOB, id=3)
    array = replace(JOB, id=4, array_job_id=4, array_tasks="1-3%1")
    jobs = _jobs(
        other,
        array,
        replace(JOB, id=10, dependency="afterok:3(unfulfilled)", reason="Dependency"),
        replace(JOB, id=11, dependency="afterany:4_*(unfulfilled),afterok:3(unfulfilled)", reason="Dependency"),
        replace(JOB, id=12, dependency="aftercorr:4_2(unfulfilled)", reason="Dependency"),
        replace(JOB, id=13, dependency="afterok:2(fulfilled)"),
    )
    assert (jobs["10"].after, jobs["10"].after_any) == (("3",), ())
    assert (jobs["11"].after, jobs["11"].after_any) == (("3",), ("4_1", "4_2", "4_3"))
    assert jobs["12"].after == ("4_2",)
    assert jobs["13"].after == ()


def test_dependencies_of_other_kinds_are_counted() -> None:
    texts = ("singleton(unfulfilled)", "afterok:3?afterok:4", "after:3+10", "afternotok:3(unfulfilled)")
    jobs = [replace(JOB, id=10 + number, dependency=text) for number, text in enumerate(texts)]
    assert live.seen(NOW_S, NODES, jobs).left_out == {live.OTHER_DEPENDENCY: 4}


def test_tasks_of_an_array() -> None:
    jobs = _jobs(
        replace(JOB, id=9, array_job_id=4, array_task_id=1, state="RUNNING", nodes=("node1",), start_s=NOW_S),
        replace(JOB, id=4, array_job_id=4, array_tasks="2-8:3,11%3"),
    )
    assert set(jobs) == {"4_1", "4_2", "4_5", "4_8", "4_11"}
    assert {job.array_running_max for key, job in jobs.items() if key != "4_1"} == {3}
    assert jobs["4_5"].serial == (4, 5)


def test_of_a_large_array_the_first_tasks_are_taken() -> None:
    seen = live.seen(NOW_S, NODES, [replace(JOB, array_job_id=7, array_tasks="1-1000")])
    assert len(seen.jobs) == live.ELEMENTS_MAX
    assert seen.left_out == {live.FURTHER_TASKS: 1000 - live.ELEMENTS_MAX}


def test_jobs_that_slurm_still_remembers_teach() -> None:
    done = replace(
        JOB, state="COMPLETED", nodes=("node1",), gpu_ids={"node1": (0, 1)}, start_s=NOW_S - 50.0, end_s=NOW_S - 10.0
    )
    never = replace(JOB, id=8, state="CANCELLED", end_s=NOW_S - 10.0, start_s=NOW_S - 10.0)
    found = {past.asked.key: past for past in live.ended_jobs([done, never, JOB])}
    assert (found["7"].ran_s, found["7"].ran_on) == (40.0, {"node1": 2})
    assert found["8"].ran_s == 0.0 and found["8"].started_at_s is None
