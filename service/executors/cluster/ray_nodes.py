"""The servers of a Ray cluster: which node has which name, and whether it lives.

Ray counts a node that was killed as alive until its health check has failed several times. So each node's raylet is also tried
from here: a refused connection, or two that time out, show that it is gone.
"""

import errno
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.model.cluster import Server
from service.executors.cluster.driver import EngineNode, NodeState

NODE_LABEL = "sooner/node"
GPU_TYPE_LABEL = "sooner/gpu-type"
RACK_LABEL = "sooner/rack"
_RAY_GPU_TYPE_LABEL = "ray.io/accelerator-type"
_CONNECT_S = 1.0
_FAILURES = 2
_FRESH_S = 0.5

Address = tuple[str, int]


class RayNodes:
    """The nodes by their id in Ray. A node that returns has a new id."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._tried_at_s = -_FRESH_S

    def health(self, table: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """What is wrong with each node, by its id; empty for those that live. ``table``: Ray's table of nodes."""
        alive = {entry["NodeID"]: entry for entry in table if entry["Alive"]}
        if time.monotonic() - self._tried_at_s >= _FRESH_S:
            self._try({node: (entry["NodeManagerAddress"], entry["NodeManagerPort"]) for node, entry in alive.items()})
            self._tried_at_s = time.monotonic()
        found = {}
        for entry in table:
            node = entry["NodeID"]
            if node not in alive:
                found[node] = entry["DeathReasonMessage"] or "Ray counts the node as dead"
            else:
                found[node] = "its raylet does not answer" if self._failures.get(node, 0) >= _FAILURES else ""
        return found

    def _try(self, addresses: Mapping[str, Address]) -> None:
        outcomes = _connect(addresses)
        self._failures = {
            node: 0 if error == 0 else _FAILURES if error == errno.ECONNREFUSED else self._failures.get(node, 0) + 1
            for node, error in outcomes.items()
        }


def engine_nodes(
    table: Sequence[Mapping[str, Any]], health: Mapping[str, str], draining: Mapping[str, int]
) -> list[EngineNode]:
    """The servers with GPUs and a name, in the order of names. Two live nodes with one name are reported as down."""
    found: dict[str, EngineNode] = {}
    for entry in table:
        node = _engine_node(entry, health[entry["NodeID"]], entry["NodeID"] in draining)
        if node is None:
            continue
        name = node.server.name
        other = found.get(name)
        if other is None or other.state is NodeState.DOWN:
            found[name] = node
        elif node.state is not NodeState.DOWN:
            detail = f"two nodes of Ray, {other.address} and {node.address}, have the label {NODE_LABEL}={name}"
            found[name] = EngineNode(other.server, NodeState.DOWN, other.address, detail)
    return [found[name] for name in sorted(found)]


def _engine_node(entry: Mapping[str, Any], trouble: str, draining: bool) -> EngineNode | None:
    labels, gpus = entry["Labels"], int(entry["Resources"].get("GPU", 0))
    name = labels.get(NODE_LABEL)
    if name is None or gpus == 0:
        return None
    server = Server(name, gpus)
    if kind := labels.get(GPU_TYPE_LABEL) or labels.get(_RAY_GPU_TYPE_LABEL):
        server = replace(server, gpu_type=kind)
    if rack := labels.get(RACK_LABEL):
        server = replace(server, rack=rack)
    if trouble:
        return EngineNode(server, NodeState.DOWN, entry["NodeManagerAddress"], trouble)
    state = NodeState.DRAINED if draining else NodeState.UP
    return EngineNode(server, state, entry["NodeManagerAddress"], "Ray drains the node" if draining else "")


def _connect(addresses: Mapping[str, Address]) -> dict[str, int]:
    """Connect to all at once. Returns the number of the error for each, 0 for none."""
    outcomes: dict[str, int] = {}
    waiting: dict[int, tuple[str, socket.socket]] = {}
    poller = select.poll()
    for node, (host, port) in addresses.items():
        try:
            kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[
                0
            ]
        except OSError:
            outcomes[node] = 0  # not an address: Ray's own health check decides
            continue
        link = socket.socket(kind, socket.SOCK_STREAM)
        link.setblocking(False)
        outcomes[node] = link.connect_ex(place)
        if outcomes[node] == errno.EINPROGRESS:
            waiting[link.fileno()] = (node, link)
            poller.register(link, select.POLLOUT)
        else:
            link.close()
    deadline = time.monotonic() + _CONNECT_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for number, _ in poller.poll(left_s * 1000):
            node, link = waiting.pop(number)
            poller.unregister(number)
            outcomes[node] = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            link.close()
    for node, link in waiting.values():
        outcomes[node] = errno.ETIMEDOUT
        link.close()
    return outcomes
