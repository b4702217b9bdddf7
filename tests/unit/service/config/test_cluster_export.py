"""A cluster file that is written reads back as the cluster that it was."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.contention import Contention
from service.config.cluster_export import all_servers, cluster_document, present_cluster, with_servers, write_cluster
from service.config.cluster_file import load_cluster, parse_cluster
from service.engine.record import ServerRecord

GBPS = st.sampled_from([10.0, 25.0, 100.0, 0.1, 960.0, 33.3]) | st.floats(0.001, 1e5)
SERVERS = st.lists(
    st.builds(
        Server,
        name=st.just(""),
        gpus=st.integers(1, 16),
        gpu_type=st.sampled_from(["V100", "T4"]),
        rack=st.sampled_from(["r1", "r2"]),
        nic_bytes_s=GBPS.map(lambda value: value * 1e9 / 8),
        intra_bytes_s=GBPS.map(lambda value: value * 1e9 / 8),
        gpu_speed=st.floats(0.1, 10.0),
        gpu_memory_gib=st.none() | st.floats(1.0, 100.0),
        cpus=st.none() | st.integers(1, 256),
        memory_gib=st.none() | st.floats(1.0, 4096.0),
    ),
    min_size=1,
    max_size=6,
)


@given(SERVERS, st.none() | GBPS, st.none() | st.builds(Contention, *[st.floats(0.0, 100.0)] * 3))
@settings(max_examples=60, deadline=None)
def test_what_is_written_reads_back(
    servers: list[Server], core_gbps: float | None, contention: Contention | None
) -> None:
    named = tuple(Server(**{**_fields(server), "name": f"n{index}"}) for index, server in enumerate(servers))
    core_bytes_s = core_gbps * 1e9 / 8 if core_gbps is not None else None
    cluster = Cluster("c", named, None, core_bytes_s, contention=contention)
    again = parse_cluster(yaml.safe_load(yaml.safe_dump(cluster_document(cluster))))
    assert [_fields(server) for server in again.servers] == [_nearly(server) for server in named]
    assert (again.core_bytes_s is None) == (core_gbps is None)
    assert again.contention == contention


def _fields(server: Server) -> dict[str, object]:
    return {name: getattr(server, name) for name in Server.__slots__}


def _nearly(server: Server) -> dict[str, object]:
    """A division may cost the last bit."""
    return {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in _fields(server).items()
    }


def test_an_assumed_speed_is_not_written_as_if_it_were_stated() -> None:
    cluster = Cluster("c", (Server("a", 4, "P100", gpu_speed_assumed=True), Server("b", 4, "P100", gpu_speed=1.5)))
    assert [entry.get("gpu_speed") for entry in cluster_document(cluster)["servers"]] == [None, 1.5]
    assert [each.gpu_speed_assumed for each in parse_cluster(cluster_document(cluster)).servers] == [True, False]


def test_a_usual_cluster_is_short_and_exact(tmp_path: Path) -> None:
    nodes = tuple(Server(f"n{number}", 8, "P100", "r1", 100e9 / 8, 960e9 / 8) for number in range(3))
    cluster = Cluster("mine", (*nodes, Server("big", 16)), 400e9 / 8)
    write_cluster(cluster, tmp_path / "c.yaml")
    assert load_cluster(tmp_path / "c.yaml") == cluster
    document = cluster_document(cluster)
    assert [entry["names"] for entry in document["servers"]] == [["n0", "n1", "n2"], ["big"]]
    assert document["servers"][0]["nic_gbps"] == 100.0
    assert document["tiers"] == {"rack_gbps": 400.0}


def test_servers_that_are_down_are_left_out_and_the_file_gives_the_frame(tmp_path: Path) -> None:
    stored = [
        (Server("a", 4), ServerRecord()),
        (Server("b", 4), ServerRecord(down=True)),
        (Server("c", 2), ServerRecord(drained=True)),
    ]
    file = tmp_path / "c.yaml"
    write_cluster(Cluster("mine", (Server("a", 4),), 5e9, 6e9), file)
    cluster, down = present_cluster(stored, file)
    assert (cluster.name, cluster.rack_bytes_s, cluster.core_bytes_s, down) == ("mine", 5e9, 6e9, ["b"])
    assert [server.name for server in cluster.servers] == ["a", "c"]
    assert [server.name for server in all_servers(stored, cluster).servers] == ["a", "b", "c"]
    for described in (None, tmp_path / "gone.yaml"):
        assert present_cluster(stored, described)[0].name == "own"


def test_more_servers_are_like_the_last_and_have_names_of_their_own() -> None:
    cluster = Cluster("c", (Server("a", 4), Server("extra1", 2, "T4")))
    more = with_servers(cluster, 2)
    assert [(server.name, server.gpus, server.gpu_type) for server in more.servers[2:]] == [
        ("extra2", 2, "T4"),
        ("extra3", 2, "T4"),
    ]
    assert with_servers(cluster, 0) == cluster
