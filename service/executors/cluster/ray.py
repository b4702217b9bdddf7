"""Ray as an engine of the cluster executor. Ray's library runs in a child process, which is replaced when it fails."""

import importlib.util
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from service.engine.ports import Abilities
from service.executors.cluster.driver import EngineJob, EngineNode, EngineRefused, EngineUnavailable, NodeLaunch
from service.executors.cluster.ray_client import Connection, Request
from service.runtime.child import Child, ChildClosed, ChildLost, ChildTimeout

KILL_WAIT_S = 30.0
CALL_S = 15.0
"""Time limit of one request, beyond that for connecting."""


class RayMissing(Exception):
    """The optional package ``ray`` is not installed."""


class RayDriver:
    """Implements :class:`service.executors.cluster.driver.EngineDriver` with placement groups and actors.

    ``address``: host:port of the head. A node of the Ray cluster (such as the head) runs on this machine. ``cluster_id`` tells
    the submissions of this executor from those of other ones. ``token_file``: holds the cluster's token; None: as Ray finds it.
    Raises :class:`RayMissing`.
    """

    def __init__(
        self, address: str, cluster_id: str, token_file: Path | None = None, *, kill_wait_s: float = KILL_WAIT_S
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise RayMissing("executor=ray needs the package ray: pip install 'sooner[ray]'")
        self._connection = Connection(
            address, cluster_id, str(token_file) if token_file is not None else None, kill_wait_s
        )
        self._lock = threading.Lock()
        self._closed = False
        self._seen: Mapping[str, int] = {}
        self._child = _new_child()

    @property
    def name(self) -> str:
        """Ray with its version."""
        return f"Ray {version('ray')}"

    @property
    def abilities(self) -> Abilities:
        """Ray chooses the GPU indices, and runs every program as the user of its nodes."""
        return Abilities(exact_gpus=False)

    @property
    def kill_wait_s(self) -> float:
        """See the port."""
        return self._connection.kill_wait_s

    def submit(self, launch: NodeLaunch) -> str:
        """See the port. The id is the attempt's: Ray holds one submission of an attempt, whichever call was first."""
        if launch.user is not None:
            raise EngineRefused(f"user {launch.user}: Ray runs programs only as the user of its nodes")
        found: str = self._ask("submit", launch, self._seen)
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        """See the port."""
        if ids:
            self._ask("cancel", tuple(ids))

    def jobs(self) -> Sequence[EngineJob]:
        """See the port."""
        found: list[EngineJob] = self._ask("jobs")
        return found

    def nodes(self) -> Sequence[EngineNode]:
        """See the port."""
        found: list[EngineNode] = self._ask("nodes")
        self._seen = {**self._seen, **{node.server.name: node.server.gpus for node in found}}
        return found

    def close(self) -> None:
        """End the child process. Submissions run on."""
        with self._lock:
            self._closed = True
            self._child.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        child = self._child
        try:
            return child.ask(pickle.dumps(Request(self._connection, method, arguments)), CALL_S)
        except ChildTimeout:
            raise EngineUnavailable(
                f"Ray at {self._connection.address}: no answer to {method} in {CALL_S:g} s"
            ) from None
        except ChildLost as error:
            raise EngineUnavailable(f"Ray at {self._connection.address}: its client process ended ({error})") from None
        except ChildClosed:
            raise EngineUnavailable("the service is shutting down") from None
        except EngineUnavailable:
            self._replace(child)
            raise

    def _replace(self, child: Child) -> None:
        """Connect anew with the next request."""
        with self._lock:
            if self._child is child and not self._closed:
                child.close()
                self._child = _new_child()


def _new_child() -> Child:
    return Child([sys.executable, "-m", "service.executors.cluster.ray_client"])
