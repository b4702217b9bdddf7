"""A whole service whose jobs a real Ray runs."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.harness import LiveService
from tests.engines.ray_cluster import GPUS, NODES, RayCluster


class RayService(LiveService):
    """``sooner serve --executor ray`` on the Ray cluster. ``shared``: the folder that its servers share."""

    def __init__(self, folder: Path, cluster: RayCluster, shared: Path, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        shared.mkdir(mode=0o711, exist_ok=True)
        given = {
            "EXECUTOR": "ray",
            "RAY_ADDRESS": cluster.address,
            "RAY_TOKEN_FILE": str(cluster.token_file),
            "SHARED_DIR": str(shared),
            "CHECKPOINTS_DIR": str(shared / "checkpoints"),
            "LEASE_S": "20",
            **settings,
        }
        super().__init__(folder, [{"names": list(NODES), "gpus": GPUS, "gpu_type": "V100", "rack": "r1"}], **given)

    def servers_of(self, job: int) -> set[str]:
        """Where it runs now."""
        return set(self.job(job)["servers"])

    def states(self) -> Mapping[str, str]:
        """The state of each server."""
        return {server["name"]: server["state"] for server in self.get("/v1/cluster")["servers"]}

    def used(self) -> Counter[str]:
        """GPUs in use on each server."""
        servers = self.get("/v1/cluster")["servers"]
        return +Counter({server["name"]: server["gpus"] - server["free_gpus"] for server in servers})
