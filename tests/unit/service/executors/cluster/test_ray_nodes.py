"""Which servers a Ray cluster has, and which of them live."""

import resource
import socket
import time
from collections.abc import Mapping
from typing import Any

import pytest

from policies.model.cluster import Server
from service.executors.cluster import ray_nodes
from service.executors.cluster.driver import NodeState
from service.executors.cluster.ray_nodes import RayNodes, engine_nodes


def _entry(node: str, labels: Mapping[str, str], **changed: Any) -> dict[str, Any]:
    """A row of Ray's table of nodes."""
    return {
        "NodeID": node,
        "Alive": True,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerPort": 1,
        "DeathReasonMessage": "",
        "Resources": {"CPU": 8.0, "GPU": 4.0},
        "Labels": {"ray.io/node-id": node, **labels},
        **changed,
    }


def test_a_server_is_a_node_with_gpus_and_a_label() -> None:
    table = [
        _entry(
            "b",
            {"sooner/node": "n2", "sooner/gpu-type": "A100", "sooner/rack": "r7", "ray.io/accelerator-type": "H100"},
        ),
        _entry("a", {"sooner/node": "n1", "ray.io/accelerator-type": "H100"}, NodeManagerAddress="10.0.0.1"),
        _entry("c", {}),
        _entry("d", {"sooner/node": "head"}, Resources={"CPU": 8.0}),
    ]
    first, second = engine_nodes(table, dict.fromkeys("abcd", ""), {})
    assert first.server == Server("n1", 4, gpu_type="H100")
    assert (first.state, first.address, first.detail) == (NodeState.UP, "10.0.0.1", "")
    assert second.server == Server("n2", 4, gpu_type="A100", rack="r7")


def test_a_server_that_returned_is_up_whichever_row_comes_first() -> None:
    rows = [_entry("old", {"sooner/node": "n1"}), _entry("new", {"sooner/node": "n1"}, NodeManagerAddress="10.0.0.9")]
    for table in (rows, rows[::-1]):
        (node,) = engine_nodes(table, {"old": "its raylet does not answer", "new": ""}, {})
        assert (node.state, node.address) == (NodeState.UP, "10.0.0.9")
    (node,) = engine_nodes(rows[:1], {"old": "its raylet does not answer"}, {})
    assert (node.state, node.detail) == (NodeState.DOWN, "its raylet does not answer")


def test_two_live_nodes_with_one_name_are_down_and_named() -> None:
    table = [_entry(node, {"sooner/node": "n1"}, NodeManagerAddress=f"10.0.0.{node}") for node in "12"]
    (node,) = engine_nodes(table, {"1": "", "2": ""}, {})
    assert node.state is NodeState.DOWN
    assert node.detail == "two nodes of Ray, 10.0.0.1 and 10.0.0.2, have the label sooner/node=n1"


def test_a_node_that_ray_drains_is_drained() -> None:
    (node,) = engine_nodes([_entry("a", {"sooner/node": "n1"})], {"a": ""}, {"a": 0})
    assert (node.state, node.detail) == (NodeState.DRAINED, "Ray drains the node")


def test_a_closed_port_shows_a_dead_node_before_ray_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as closed:
        port, free = listener.getsockname()[1], closed.getsockname()[1]
        closed.close()
        health = RayNodes().health(
            [
                _entry("lives", {}, NodeManagerPort=port),
                _entry("killed", {}, NodeManagerPort=free),
                _entry("dead", {}, Alive=False, DeathReasonMessage="health check failed"),
                _entry("named", {}, NodeManagerAddress="no-address"),
            ]
        )
    assert health == {"lives": "", "killed": "its raylet does not answer", "dead": "health check failed", "named": ""}


def test_one_hanging_node_counts_as_dead_the_second_time_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "_CONNECT_S", 0.2)
    monkeypatch.setattr(ray_nodes, "_FRESH_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as full, socket.socket() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting.connect(full.getsockname())  # the queue is full now: the kernel drops further connections
        table = [_entry(f"hangs{number}", {}, NodeManagerPort=full.getsockname()[1]) for number in range(20)]
        table.append(_entry("lives", {}, NodeManagerPort=listener.getsockname()[1]))
        nodes = RayNodes()
        begun = time.monotonic()
        assert set(nodes.health(table).values()) == {""}
        assert time.monotonic() - begun < 0.2 * 10  # all at once, not one after another
        health = nodes.health(table)
    assert health.pop("lives") == ""
    assert set(health.values()) == {"its raylet does not answer"}


def test_more_nodes_than_a_process_may_have_open_files() -> None:
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, kept[1]))
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=500) as listener:
            port = listener.getsockname()[1]
            table = [_entry(f"n{number}", {}, NodeManagerPort=port) for number in range(450)]
            assert RayNodes().health(table) == {f"n{number}": "" for number in range(450)}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, kept)
