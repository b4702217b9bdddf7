"""What a service that stands by knows of the cluster: read seldom, and never older than a second."""

from pathlib import Path
from unittest.mock import patch

from policies.model.cluster import Cluster, Server
from service.db import servers
from service.db.migrate import upgrade
from service.db.servers import CACHED_S, CachedCluster, enroll
from service.db.session import open_database


def test_many_submissions_are_one_look_and_a_new_server_is_seen_in_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sooner.db'}"
    upgrade(url)
    database = open_database(url)
    now_s = 50.0
    ours = Cluster("c", (Server("a", 4),))
    remembered = CachedCluster(database, ours, lambda: now_s)
    with patch.object(servers, "stored_cluster", wraps=servers.stored_cluster) as look:
        assert remembered() == ours, "nothing is stored yet"
        enroll(database, Cluster("c", (Server("a", 4), Server("b", 8))))
        for _ in range(20):
            assert remembered() == ours
        assert look.call_count == 1
        now_s += CACHED_S
        assert [server.name for server in remembered().servers] == ["a", "b"]
        assert look.call_count == 2
    database.close()
