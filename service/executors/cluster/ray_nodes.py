"""The servers of a Ray cluster: which node has which name, and whether it lives.

Ray counts a node that was killed as alive until its health check has failed several times. So each node's raylet is also tried
from here: a refused connection, or two that time out, show that it is gone.
"""

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from policies.model.cluster import Server
from service.executors.cluster.driver import EngineNode, NodeState

NODE_LABEL = "sooner/node"
GPU_TYPE_LABEL = "sooner/gpu-type"
RACK_LABEL = "sooner/rack"
_RAY_GPU_TYPE_LABEL = "ray.io/accelerator-type"
_CONNECT_S = 1.0
_FAILURES = 2
_FRESH_S = 0.5
_OPEN_MAX = 256
"""Connections at once: a process may have 1,024 open files, as a rule, and the cluster more nodes."""

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


class _Try(NamedTuple):
    """A connection that is being made, and until when it may take."""

    node: str
    link: socket.socket
    until_s: float


def _connect(addresses: Mapping[str, Address]) -> dict[str, int]:
    """Connect to all, :data:`_OPEN_MAX` at once. Returns the number of the error for each, 0 for none."""
    outcomes: dict[str, int] = {}
    untried = deque(addresses.items())
    waiting: dict[int, _Try] = {}  # those that began first are first
    poller = select.poll()
    while untried or waiting:
        while untried and len(waiting) < _OPEN_MAX:
            node, address = untried.popleft()
            begun = _begin(address)
            if isinstance(begun, int):
                outcomes[node] = begun
            else:
                waiting[begun.fileno()] = _Try(node, begun, time.monotonic() + _CONNECT_S)
                poller.register(begun, select.POLLOUT)
        first_s = next(iter(waiting.values())).until_s if waiting else 0.0
        ready = {number for number, _ in poller.poll(max(0.0, first_s - time.monotonic()) * 1000)}
        now_s = time.monotonic()
        for number, each in list(waiting.items()):
            if number in ready:
                outcomes[each.node] = each.link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            elif each.until_s <= now_s:
                outcomes[each.node] = errno.ETIMEDOUT
            else:
                continue
            del waiting[number]
            poller.unregister(number)
            each.link.close()
    return outcomes


def _begin(address: Address) -> socket.socket | int:
    """A connection that is being made, or how the attempt ended at once, as :func:`_connect` says it."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        link = socket.socket(kind, socket.SOCK_STREAM)
    except OSError:
        return 0  # not an address, or no descriptors are left: Ray's own health check decides
    link.setblocking(False)
    error = link.connect_ex(place)
    if error == errno.EINPROGRESS:
        return link
    link.close()
    return error
