"""The cluster file: what it means, and that every mistake is named by its key."""

from pathlib import Path
from typing import Any

import pytest

from policies.model.cluster import Server
from policies.model.contention import Contention
from service.config.cluster_file import ClusterFileError, load_cluster, parse_cluster

PHILLY_LIKE = """\
schema: sooner.cluster/1
name: philly-like
servers:
  - {count: 2, gpus: 8, gpu_type: P100, rack: r1, nic_gbps: 100, intra_gbps: 960}
  - {names: [big, 7], gpus: 16, gpu_speed: 2.5, gpu_memory_gib: 16, cpus: 64, memory_gib: 500.5}
  - {gpus: 1, rack: 2}
tiers: {rack_gbps: 400, core_gbps: 1600}
"""


def _data(**server: object) -> dict[str, Any]:
    return {"schema": "sooner.cluster/1", "name": "c", "servers": [{"gpus": 8}, {"gpus": 8, **server}]}


def test_the_whole_format(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(PHILLY_LIKE)
    cluster = load_cluster(path)
    assert cluster.name == "philly-like"
    assert cluster.servers == (
        Server("s0001", 8, "P100", "r1", 12.5e9, 120e9),
        Server("s0002", 8, "P100", "r1", 12.5e9, 120e9),
        Server("big", 16, gpu_speed=2.5, gpu_memory_gib=16.0, cpus=64, memory_gib=500.5),
        Server("7", 16, gpu_speed=2.5, gpu_memory_gib=16.0, cpus=64, memory_gib=500.5),
        Server("s0005", 1, rack="2"),
    )
    assert cluster.gpus == 49
    assert (cluster.rack_bytes_s, cluster.core_bytes_s) == (50e9, 200e9)


def test_a_network_that_jobs_share() -> None:
    cluster = parse_cluster({**_data(), "network": "contended:xi1=0.5,xi2=0"})
    assert cluster.contention == Contention(xi1=0.5, xi2=0.0)
    assert parse_cluster({**_data(), "network": "reserved"}).contention is None


@pytest.mark.parametrize("network", ["crowded", "contended:xi3=1", "contended:a=-1", "reserved:a=1"])
def test_an_unknown_network_is_named(network: str) -> None:
    with pytest.raises(ClusterFileError, match=f"^network: '{network}'"):
        parse_cluster({**_data(), "network": network})


def test_defaults() -> None:
    cluster = parse_cluster({"schema": "sooner.cluster/1", "servers": [{"gpus": 4}]})
    assert cluster.servers == (Server("s0001", 4),)
    assert (cluster.rack_bytes_s, cluster.core_bytes_s) == (None, None)


@pytest.mark.parametrize(
    ("server", "key"),
    [
        ({"gpus": 0}, "servers[1].gpus"),
        ({"gpus": 1025}, "servers[1].gpus"),
        ({"gpus": 1.5}, "servers[1].gpus"),
        ({"gpus": True}, "servers[1].gpus"),
        ({"gpus": "8"}, "servers[1].gpus"),
        ({"count": 0}, "servers[1].count"),
        ({"count": 100_001}, "servers[1].count"),
        ({"count": 100_000}, "servers[1].count"),
        ({"names": ["a"], "count": 2}, "servers[1].names"),
        ({"names": []}, "servers[1].names"),
        ({"names": "ab"}, "servers[1].names"),
        ({"names": ["a", ""]}, "servers[1].names[1]"),
        ({"names": ["a", "a"]}, "servers[1].names[1]"),
        ({"names": ["s0001"]}, "servers[1].names[0]"),
        ({"gpu_type": ""}, "servers[1].gpu_type"),
        ({"gpu_type": "a\nb"}, "servers[1].gpu_type"),
        ({"rack": [1]}, "servers[1].rack"),
        ({"nic_gbps": 0}, "servers[1].nic_gbps"),
        ({"nic_gbps": float("inf")}, "servers[1].nic_gbps"),
        ({"intra_gbps": float("nan")}, "servers[1].intra_gbps"),
        ({"gpu_speed": -1}, "servers[1].gpu_speed"),
        ({"gpu_memory_gib": "much"}, "servers[1].gpu_memory_gib"),
        ({"cpus": 0}, "servers[1].cpus"),
        ({"memory_gib": -1}, "servers[1].memory_gib"),
        ({"gpu": 8}, "servers[1].gpu"),
    ],
)
def test_a_mistake_in_a_server_is_named_by_its_key(server: dict[str, object], key: str) -> None:
    with pytest.raises(ClusterFileError) as caught:
        parse_cluster(_data(**server))
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"schema": "sooner.cluster/2"}, "schema"),
        ({"schema": None}, "schema"),
        ({"servers": []}, "servers"),
        ({"servers": {"gpus": 1}}, "servers"),
        ({"servers": [3]}, "servers[0]"),
        ({"servers": [{"count": 2}]}, "servers[0].gpus"),
        ({"tiers": 5}, "tiers"),
        ({"tiers": {"rack_gbps": -1}}, "tiers.rack_gbps"),
        ({"tiers": {"spine_gbps": 1}}, "tiers.spine_gbps"),
        ({"nodes": []}, "nodes"),
        ({"name": 3.5}, "name"),
    ],
)
def test_a_mistake_at_the_top_is_named_by_its_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(ClusterFileError) as caught:
        parse_cluster(_data() | change)
    assert caught.value.key == key


def test_the_limit_itself_is_allowed() -> None:
    cluster = parse_cluster({"schema": "sooner.cluster/1", "servers": [{"count": 100_000, "gpus": 1024}]})
    assert len(cluster.servers) == 100_000
    assert cluster.servers[-1].name == "s100000"


@pytest.mark.parametrize("text", ["servers: [", "just text", "", "- 1", "a: !!python/object:os.system {}", "\0"])
def test_a_file_that_is_no_cluster_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterFileError) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError, match=r"none\.yaml: No such file"):
        load_cluster(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"gpus": 0}, "servers[1].gpus: must be at least 1 (got 0)"),
        ({"gpus": 1025}, "servers[1].gpus: must be at most 1024 (got 1025)"),
        ({"gpus": "8"}, "servers[1].gpus: must be a whole number (got '8')"),
        ({"nic_gbps": 0}, "servers[1].nic_gbps: must be greater than 0 (got 0)"),
        ({"rack": ""}, "servers[1].rack: must be text of 1 to 255 printable characters (got '')"),
        ({"names": []}, "servers[1].names: must have at least 1 entry (got [])"),
        ({"nic_gbp": 1}, "servers[1].nic_gbp: unknown key; did you mean 'nic_gbps'?"),
        ({5: 1}, "servers[1].5: unknown key; the keys are count, cpus, gpu_memory_gib, gpu_speed, gpu_type, gpus, "),
    ],
)
def test_a_message_names_the_key_the_limit_and_the_value(server: dict[Any, object], message: str) -> None:
    with pytest.raises(ClusterFileError) as caught:
        parse_cluster(_data() | {"servers": [{"gpus": 8}, {"gpus": 8} | server]})
    assert str(caught.value).startswith(message)


def test_a_misspelt_key_is_named_before_the_one_that_is_missing() -> None:
    with pytest.raises(ClusterFileError, match=r"^servers\[0\]\.gpu: unknown key; did you mean 'gpus'\?$"):
        parse_cluster(_data() | {"servers": [{"gpu": 8}]})
    with pytest.raises(ClusterFileError, match=r"^server: unknown key; did you mean 'servers'\?$"):
        parse_cluster({"schema": "sooner.cluster/1", "server": [{"gpus": 8}]})


def test_a_speed_that_is_left_out_is_assumed_unless_the_type_is_the_reference() -> None:
    for given, assumed in (({}, False), ({"gpu_type": "P100"}, True), ({"gpu_type": "P100", "gpu_speed": 1.0}, False)):
        server = parse_cluster(_data(**given)).servers[1]
        assert (server.gpu_speed, server.gpu_speed_assumed) == (1.0, assumed)
