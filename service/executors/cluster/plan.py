"""Builds the plan that the node programs of one attempt read, each from its standard input. Starts nothing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from policies.placement.seats import node_order
from service.engine.commands import Launch
from service.executors.cluster.folder import INBOX
from service.executors.launch_plan import (
    ALLOWED,
    ALLOWED_PREFIX,
    Identity,
    Site,
    allowed_environment,
    build_plan,
    ranks_of,
)

GATHER_S = 120.0
"""Longest time between the first and the last program of an attempt: an engine may prepare its nodes one after another."""
_OF_ONE_HOST = frozenset({"HOME", "USER", "LOGNAME", "TMPDIR"})
"""Of the service's environment, what has no meaning on other hosts."""
_PORT_DIGITS = 8


class PlanNode(NamedTuple):
    """A server of an attempt: its name in the engine, and the address under which the other servers reach it."""

    name: str
    address: str


def cluster_plan(
    launch: Launch,
    site: Site,
    identity: Identity,
    nodes: Sequence[PlanNode],
    *,
    inbox: str = INBOX,
    exact_gpus: bool = False,
    kill_wait_s: float = 30.0,
) -> bytes:
    """The plan of a launch on ``nodes``, which are in the order of the placement's shares.

    ``site``: as the nodes see it, so ``data_dir`` is the shared folder by its path there. ``inbox``: of the attempt's folder, see
    :func:`service.executors.cluster.folder.make_inbox`.
    ``exact_gpus``: the ranks see the GPUs that the launch names, else those that the engine gives. ``kill_wait_s``: between
    SIGTERM and SIGKILL of the engine. A rank's environment is, from weak to strong: what the service has (less what only its host
    knows), what the engine gives on the node, the job's, Sooner's.
    """
    shares = launch.placement.shares
    if len(nodes) != len(shares):
        raise ValueError(f"{launch.attempt}: {len(nodes)} nodes for the {len(shares)} servers of its placement")
    plan = build_plan(launch, replace(site, environ={}), identity, 0, 0.0)
    del plan["env"]["MASTER_PORT"]  # found on the node of rank 0
    order = node_order(launch.placement)
    plan["env"]["MASTER_ADDR"] = nodes[order[0]].address
    plan["attempts_dir"] = str(site.attempts_dir / launch.attempt / inbox)
    defaults = allowed_environment(site.environ)
    plan |= {
        "clock_s": None,
        "defaults": {name: value for name, value in defaults.items() if name not in _OF_ONE_HOST},
        "inherited": sorted(ALLOWED),
        "inherited_prefix": ALLOWED_PREFIX,
        "first_port": int(identity.token[:_PORT_DIGITS], 16),
        "gather_s": GATHER_S,
        "kill_wait_s": kill_wait_s,
        "users_apart": inbox != INBOX,
        "nodes": _nodes(launch, nodes, order, exact_gpus),
        "master": order[0],
    }
    return json.dumps(plan).encode()


def on_nodes(path: Path, shared_dir: Path, shared_dir_on_nodes: Path) -> Path:
    """The path under which the nodes see ``path``: below ``shared_dir`` it is mapped, elsewhere it is the same."""
    return shared_dir_on_nodes / path.relative_to(shared_dir) if path.is_relative_to(shared_dir) else path


def _nodes(launch: Launch, nodes: Sequence[PlanNode], order: Sequence[int], exact_gpus: bool) -> list[dict[str, Any]]:
    """In the order of the placement, by which the engine and the shared folder know the nodes; NODE_RANK may be another."""
    ranks = ranks_of(launch, None)
    entries = []
    for position, (node, share) in enumerate(zip(nodes, launch.placement.shares, strict=True)):
        own = [env for env in ranks if env["NODE_RANK"] == str(order.index(position))]
        if not exact_gpus:
            own = [{name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"} for env in own]
        entries.append(
            {
                "name": node.name,
                "address": node.address,
                "gpus": None if exact_gpus else share.gpus,
                "ranks": own,
            }
        )
    return entries
