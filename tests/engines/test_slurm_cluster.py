"""The emulated cluster itself, and what the answers of a running Slurm say about it."""

from tests.engines.slurm_cluster import SlurmCluster, wait_for

SLEEP = b"#!/bin/sh\nexec sleep 600\n"


def _submit(cluster: SlurmCluster, *arguments: str, script: bytes = SLEEP) -> int:
    """Submit a job that sleeps, and return its id."""
    answer = cluster.commands.run("sbatch", "--parsable", "--output=/dev/null", "--mem=100", *arguments, input=script)
    return int(answer.partition(";")[0])


def test_nodes_racks_and_jobs(slurm_cluster: SlurmCluster) -> None:
    nodes = slurm_cluster.slurm.nodes()
    assert [(node.name, node.gpus, node.gpu_type, node.memory_mib) for node in nodes] == [
        (f"node{number}", 4, "a100", 64000) for number in range(1, 5)
    ]
    assert slurm_cluster.slurm.racks() == {"node1": "rack1", "node2": "rack1", "node3": "rack2", "node4": "rack2"}
    (partition,) = slurm_cluster.slurm.partitions()
    assert (partition.name, partition.up, partition.nodes) == ("main", True, slurm_cluster.names)
    gang = _submit(slurm_cluster, "--nodes=2", "--nodelist=node3,node2", "--gres=gpu:a100:2", "--comment=7.1")
    running = wait_for(
        lambda: next((job for job in slurm_cluster.slurm.jobs() if job.id == gang and job.state == "RUNNING"), None),
        "the gang runs",
    )
    assert running.nodes == ("node2", "node3") and running.gpu_ids == {"node2": (0, 1), "node3": (0, 1)}
    assert (running.comment, running.gpus, running.gpu_type) == ("7.1", 4, "a100")


def test_a_killed_node_goes_down_and_returns(slurm_cluster: SlurmCluster) -> None:
    job = _submit(slurm_cluster, "--nodelist=node4", "--gres=gpu:1", "--no-requeue")
    wait_for(lambda: _state(slurm_cluster, job) == "RUNNING", "the job runs")
    slurm_cluster.kill_node("node4")
    wait_for(lambda: _state(slurm_cluster, job) == "NODE_FAIL", "the job has failed with its node")
    assert [node.name for node in slurm_cluster.slurm.nodes() if node.down] == ["node4"]
    slurm_cluster.start_node("node4")
    slurm_cluster.wait_until_idle()


def test_a_drained_node_keeps_its_jobs_and_returns(slurm_cluster: SlurmCluster) -> None:
    job = _submit(slurm_cluster, "--nodelist=node1", "--gres=gpu:1")
    wait_for(lambda: _state(slurm_cluster, job) == "RUNNING", "the job runs")
    slurm_cluster.drain("node1", "disk is full")
    node = next(node for node in slurm_cluster.slurm.nodes() if node.name == "node1")
    assert node.drained and not node.down and node.reason == "disk is full"
    assert _state(slurm_cluster, job) == "RUNNING"
    slurm_cluster.resume("node1")
    # The node is shown as not responding until the controller has asked it.
    wait_for(lambda: not any(node.drained for node in slurm_cluster.slurm.nodes()), "the node is back")


def test_jobs_survive_a_restart_of_the_controller(slurm_cluster: SlurmCluster) -> None:
    job = _submit(slurm_cluster, "--nodelist=node1", "--gres=gpu:1")
    wait_for(lambda: _state(slurm_cluster, job) == "RUNNING", "the job runs")
    slurm_cluster.stop_controller()
    slurm_cluster.start_controller()
    assert _state(slurm_cluster, job) == "RUNNING"


def _state(cluster: SlurmCluster, job: int) -> str:
    return next((found.state for found in cluster.slurm.jobs() if found.id == job), "")
