"""Cluster files from recorded answers of Slurm."""

import json
from pathlib import Path

import yaml

from policies.model.cluster import Server
from service.config.cluster_file import parse_cluster
from service.config.slurm_cluster import cluster_of_slurm
from service.slurm.nodes import SlurmNode, parse_nodes

ANSWERS = Path(__file__).parents[1] / "slurm" / "answers"
GOLDEN = """\
# Written by sooner cluster import --slurm. Slurm knows no bandwidths and no speeds: add nic_gbps, intra_gbps and gpu_speed to
# each entry, and tiers, where they differ from the defaults. Placement and predictions across GPU types use them.
schema: sooner.cluster/1
name: demo
servers:
- names: [node1, node2]
  gpus: 4
  gpu_type: a100
  rack: rack1
  cpus: 16
  memory_gib: 62.5
- names: [node3, node4]
  gpus: 4
  gpu_type: a100
  rack: rack2
  cpus: 16
  memory_gib: 62.5
"""


def test_the_recorded_cluster() -> None:
    nodes = parse_nodes(json.loads((ANSWERS / "sinfo-22.05.8.json").read_text()))
    racks = {"node1": "rack1", "node2": "rack1", "node3": "rack2", "node4": "rack2"}
    made = cluster_of_slurm("demo", nodes, racks)
    assert (made.text, made.servers, made.left_out) == (GOLDEN, 4, [])
    [warning] = made.warnings
    assert warning.startswith("GPU type 'a100' has no gpu_speed") and "write gpu_speed: 2.5" in warning
    cluster = parse_cluster(yaml.safe_load(made.text))
    assert cluster.servers[2] == Server("node3", 4, "a100", "rack2", cpus=16, memory_gib=62.5)


def test_nodes_that_make_no_server_are_named() -> None:
    nodes = [
        SlurmNode("login", "login", "idle", partitions=("main",)),
        SlurmNode("a", "a", "idle", gpu_types={"a100": 2, "t4": 2}, partitions=("main",)),
        SlurmNode("b", "b", "down", gpu_types={"": 8}, partitions=("main",)),
        SlurmNode("c", "c", "idle", gpu_types={"h100": 8}, partitions=("other",)),
    ]
    made = cluster_of_slurm("x", nodes, {}, "main")
    assert made.left_out == ["1 node without GPUs", "nodes with GPUs of several types: a"]
    assert parse_cluster(yaml.safe_load(made.text)).servers == (Server("b", 8, "gpu", "r1"),)
