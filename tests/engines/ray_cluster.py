"""A Ray cluster on this machine: a head without GPUs and two nodes with four each. They differ in address and label."""

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from service.executors.cluster.driver import EngineJobState, EngineUnavailable
from service.executors.cluster.ray import RayDriver
from service.runtime.processes import descendants

NODES = ("node1", "node2")
GPUS = 4
_ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
"""Of the head and the nodes, all of them on the loopback device."""
_HEAD = "head"
_PORT = 6380  # outside the range from which Ray takes the ports of its workers
_MARK = "TEST_RAY_NODE"
_START_S = 150.0
_STARTS = 3
_END_S = 30.0
_LIMIT_S = 180.0
"""Longest wait for what must come: how fast it comes on a crowded machine is not asked here."""


def wait_until(condition: Callable[[], object], what: str, limit_s: float = _LIMIT_S) -> None:
    """Wait for a condition. Raises AssertionError that names it."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.1)


class RayCluster:
    """Started by :meth:`start`; a context that ends all of its processes."""

    def __init__(self) -> None:
        for address in _ADDRESSES:
            subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=True)
        # Ray's sockets are below it, and their paths are limited to 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.token_file = self.folder / "token"
        self.token_file.touch(0o600)
        self.token_file.write_text(secrets.token_hex(32))

    @property
    def address(self) -> str:
        """Of the head."""
        return f"{_ADDRESSES[0]}:{_PORT}"

    def start(self) -> "RayCluster":
        """Start the head, then the nodes, side by side."""
        self.start_head()
        self.start_nodes(NODES)
        return self

    def start_head(self) -> None:
        """Start the head, on the same address each time."""
        # `ray start` takes the raylets of the nodes, which name the head's address, for a head that runs on this machine.
        (self.folder / _HEAD / "ray_current_cluster").unlink(missing_ok=True)
        self._start({_HEAD: ("--head", f"--port={_PORT}", "--num-gpus=0", "--include-dashboard=false")})

    def start_nodes(self, nodes: Sequence[str]) -> None:
        """Start nodes that do not run, or run no more."""
        self._start(
            {
                node: (f"--address={self.address}", f"--num-gpus={GPUS}", f"--labels=sooner/node={node}")
                for node in nodes
            }
        )

    def kill_node(self, node: str) -> None:
        """Kill the raylet at once. Workers and what they started are left to themselves."""
        self._kill([node], _is_raylet)

    def kill_head(self) -> None:
        """Kill all processes of the head. The nodes are left to themselves."""
        self._kill([_HEAD], _is_ray)

    def lose_node(self, node: str) -> None:
        """Kill all processes of a node at once, those of its programs as well, as when a server loses its power."""
        deadline = time.monotonic() + _END_S
        while found := {pid for pid, _ in self._processes([node])}:
            assert time.monotonic() < deadline, f"processes of {node} survive SIGKILL: {found}"
            for pid in found.union(*({info.id.pid for info in descendants(pid)} for pid in found)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """Kill the head and all nodes, and start them again, as an operator does. Ray has forgotten everything then."""
        self._kill([_HEAD, *NODES], lambda words: True)
        self.start()

    def heal(self) -> None:
        """Start whatever does not run."""
        if not self.raylets(_HEAD):
            self.restart()
        if missing := [node for node in NODES if not self.raylets(node)]:
            self.end_nodes(missing)
            self.start_nodes(missing)

    def end_nodes(self, nodes: Sequence[str]) -> None:
        """End what is left of Ray on nodes, as ``ray stop --force`` does."""
        self._kill(nodes, _is_ray)

    def address_of(self, node: str) -> str:
        """The address of a node."""
        return _ADDRESSES[[_HEAD, *NODES].index(node)]

    def raylets(self, node: str) -> list[int]:
        """The processes that make the node alive."""
        return [pid for pid, words in self._processes([node]) if _is_raylet(words)]

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill([_HEAD, *NODES], lambda words: True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, node: str, *arguments: str) -> "subprocess.Popen[bytes]":
        log = (self.folder / f"{node}.log").open("ab")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SOONER_", "PYTEST_"))
        }
        environment |= {
            _MARK: f"{self.folder}/{node}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            # The memory of this machine says nothing about its "nodes".
            "RAY_memory_monitor_refresh_ms": "0",
        }
        with log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments),
                    *(f"--node-ip-address={self.address_of(node)}", f"--temp-dir={self.folder}/{node}"),
                    *("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Start nodes side by side. On a crowded machine Ray itself gives up at times, and is started again then."""
        for _ in range(_STARTS):
            starting = {node: self._begin(node, *arguments) for node, arguments in wanted.items()}
            failed = [node for node, process in starting.items() if process.wait(_START_S) != 0]
            if not failed:
                return
            self._kill(failed, _is_ray)
            wanted = {node: wanted[node] for node in failed}
        logs = "\n".join((self.folder / f"{node}.log").read_text()[-2000:] for node in wanted)
        raise AssertionError(f"ray start fails on {', '.join(wanted)}:\n{logs}")

    def _kill(self, nodes: Collection[str], which: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + _END_S
        while found := [pid for pid, words in self._processes(nodes) if which(words)]:
            assert time.monotonic() < deadline, f"processes of {nodes} survive SIGKILL: {found}"
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _processes(self, nodes: Collection[str]) -> list[tuple[int, list[str]]]:
        """The processes of nodes with their command lines, zombies left out."""
        marks = {f"{_MARK}={self.folder}/{node}".encode() for node in nodes}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if marks & set((entry / "environ").read_bytes().split(b"\0")):
                        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                        found.append((int(entry.name), words))
        return found


def _is_ray(words: Sequence[str]) -> bool:
    """A process of Ray itself. What its actors have started runs other programs."""
    package = importlib.util.find_spec("ray")
    assert package is not None and package.origin is not None
    return words[0].startswith("ray::") or any(word.startswith(f"{Path(package.origin).parent}/") for word in words[:4])


def _is_raylet(words: Sequence[str]) -> bool:
    return Path(words[0]).name == "raylet"


class LentDriver(RayDriver):
    """One client process for all drivers of a test, as each needs 1.5 s to start. ``end`` ends it."""

    def close(self) -> None:
        """It is used further."""

    def end(self) -> None:
        """End the client process."""
        super().close()


class RayBench:
    """The cluster as one executor sees it. Each has an id of its own, so no test sees the submissions of another one."""

    servers = NODES

    def __init__(self, cluster: RayCluster, folder: Path, kill_wait_s: float = 2.0) -> None:
        self.cluster = cluster
        self.folder = folder
        self.id = secrets.token_hex(8)
        self._kill_wait_s = kill_wait_s
        self.driver = LentDriver(cluster.address, self.id, cluster.token_file, kill_wait_s=kill_wait_s)

    def another_driver(self) -> RayDriver:
        """As another service makes it."""
        return RayDriver(self.cluster.address, self.id, self.cluster.token_file, kill_wait_s=self._kill_wait_s)

    def close(self) -> None:
        """Cancel what is left."""
        with contextlib.suppress(EngineUnavailable):
            self.driver.cancel([job.id for job in self.driver.jobs() if job.state is not EngineJobState.ENDED])
            wait_until(lambda: all(job.state is EngineJobState.ENDED for job in self.driver.jobs()), "all have ended")
        self.driver.end()
