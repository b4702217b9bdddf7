"""A whole service whose jobs a real Slurm runs, and the GPUs in use as both see them."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import httpx

from service.slurm.commands import SlurmError
from tests.e2e.harness import LiveService
from tests.engines.slurm_cluster import GPUS, SlurmCluster

POLL_S = 1.0
"""The default of engine_poll_s."""


class SlurmService(LiveService):
    """``sooner serve --executor slurm`` on the emulated cluster. ``shared``: the folder that its servers share."""

    def __init__(self, folder: Path, cluster: SlurmCluster, shared: Path, **settings: str) -> None:
        servers = [{"names": list(cluster.names), "gpus": GPUS, "gpu_type": "a100", "rack": "r1"}]
        folder.mkdir(exist_ok=True)
        shared.mkdir(mode=0o711, exist_ok=True)
        given = {
            "EXECUTOR": "slurm",
            "SHARED_DIR": str(shared),
            "CHECKPOINTS_DIR": str(shared / "checkpoints"),
            "LEASE_S": "30",
            **settings,
        }
        super().__init__(folder, servers, **given)
        self.cluster = cluster
        self.environ["SLURM_CONF"] = str(cluster.conf)

    def servers_of(self, job: int) -> set[str]:
        """Where it runs now."""
        return set(self.job(job)["servers"])

    def states(self) -> Mapping[str, str]:
        """The state of each server."""
        return {server["name"]: server["state"] for server in self.get("/v1/cluster")["servers"]}

    def used(self) -> Counter[str]:
        """GPUs that jobs hold on each server, as this service counts them. Each job has as many on each of its servers."""
        used: Counter[str] = Counter()
        states = "&".join(f"state={state}" for state in ("starting", "running", "preempting", "cancelling"))
        for job in self.get(f"/v1/jobs?{states}&limit=200")["items"]:
            for server in job["servers"]:
                used[server] += job["gpus"] // len(job["servers"])
        return used


class Accounts:
    """Compares what a service and Slurm say is in use, again and again, in a thread.

    ``longest_s``: the longest time for which they disagreed about one server. ``looks``: how often they were compared.
    ``story``: times, GPUs in use as this service counts them, and as Slurm does, at each change.
    """

    def __init__(self, service: SlurmService) -> None:
        self._service = service
        self._since: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_s = 0.0
        self.looks = 0
        self.story: list[tuple[float, dict[str, int], dict[str, int]]] = []

    def __enter__(self) -> "Accounts":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.3):
            try:
                self._look()
            except (httpx.HTTPError, SlurmError, AssertionError):
                self._since.clear()  # one of them does not answer

    def _look(self) -> None:
        asked_s = time.monotonic()
        ours, slurms = self._service.used(), self.in_slurm()
        self.looks += 1
        if not self.story or self.story[-1][1:] != (ours, slurms):
            self.story.append((asked_s, dict(ours), dict(slurms)))
        for server in self._service.cluster.names:
            if ours[server] == slurms[server]:
                self._since.pop(server, None)
            else:
                self.longest_s = max(self.longest_s, asked_s - self._since.setdefault(server, asked_s))

    def in_slurm(self) -> Counter[str]:
        """GPUs that Slurm has given to jobs, on each node."""
        used: Counter[str] = Counter()
        for job in self._service.cluster.slurm.jobs("sooner:"):
            for node, gpus in job.gpu_ids.items():
                used[node] += len(gpus)
        return used
