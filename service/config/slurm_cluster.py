"""A cluster file from the nodes of a Slurm: the part of ``sooner.cluster/1`` that Slurm knows."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import yaml

from policies.model.resources import MIB_PER_GIB
from policies.training.gpu_speed import speed_warnings
from service.config.cluster_file import SCHEMA, parse_cluster
from service.domain.counts import count_of
from service.slurm.nodes import SlurmNode

UNTYPED: Final = "gpu"
"""The GPU type of nodes for whose GPUs Slurm names no type."""
_COMMENT: Final = """\
# Written by sooner cluster import --slurm. Slurm knows no bandwidths and no speeds: add nic_gbps, intra_gbps and gpu_speed to
# each entry, and tiers, where they differ from the defaults. Placement and predictions across GPU types use them.
"""


class ImportedCluster(NamedTuple):
    """``text``: the file. ``left_out``: why nodes are not in it, ``warnings``: what it leaves open, a sentence each."""

    text: str
    servers: int
    left_out: Sequence[str]
    warnings: Sequence[str] = ()


def cluster_of_slurm(
    name: str, nodes: Sequence[SlurmNode], racks: Mapping[str, str], partition: str | None = None
) -> ImportedCluster:
    """The nodes with GPUs of one type, in Slurm's order; those that are down or drained as well. ``partition`` None: all."""
    wanted = [node for node in nodes if partition is None or partition in node.partitions]
    usable = [node for node in wanted if len(node.gpu_types) == 1]
    mixed = [node.name for node in wanted if len(node.gpu_types) > 1]
    plain = sum(1 for node in wanted if not node.gpu_types)
    left_out = [f"{count_of(plain, 'node')} without GPUs"] if plain else []
    left_out += [f"nodes with GPUs of several types: {', '.join(mixed)}"] if mixed else []
    document: dict[str, Any] = {"schema": SCHEMA, "name": name, "servers": []}
    for kind, members in groupby(usable, lambda node: _kind(node, racks)):
        document["servers"].append({"names": [node.name for node in members], **kind})
    text = _COMMENT + yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)
    warnings = speed_warnings(parse_cluster(document).servers) if usable else ()
    return ImportedCluster(text, len(usable), left_out, warnings)


def _kind(node: SlurmNode, racks: Mapping[str, str]) -> dict[str, Any]:
    kind: dict[str, Any] = {"gpus": node.gpus, "gpu_type": node.gpu_type or UNTYPED, "rack": racks.get(node.name, "r1")}
    # 1 is what a Slurm that does not say it is read as, and no server with GPUs has so little.
    if node.cpus > 1:
        kind["cpus"] = node.cpus
    if node.memory_mib > 1:
        kind["memory_gib"] = round(node.memory_mib / MIB_PER_GIB, 3)
    return kind
