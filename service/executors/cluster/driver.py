"""The port between the cluster executor and an engine: what Slurm and Ray must offer.

A driver is thin. It makes blocking calls, each with a timeout, and keeps no state that a restart would lose: the engine has it.
:class:`service.executors.cluster.executor.ClusterExecutor` calls it from threads of its own, never from the scheduling thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from policies.model.cluster import Server
from policies.model.ids import AttemptId
from service.engine.ports import Abilities


class EngineUnavailable(Exception):
    """The engine did not answer in time. Whether the call had an effect is unknown."""


class EngineRefused(Exception):
    """The engine refused the call, which had no effect. The message says why."""


class EngineNotNow(EngineRefused):
    """A refusal for a reason that may pass, such as a limit on submissions: the same call may succeed later."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a launch gets on one server of the cluster, by the name of the server.

    ``cpus`` and ``memory_mib``: what the job asks for; None: what belongs to its GPUs.
    """

    server: str
    gpus: int
    cpus: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLaunch:
    """One attempt to be started on exactly these servers.

    ``program`` is an argument list that the engine starts once on each server, with ``plan`` as its standard input. In its
    environment ``SOONER_NODE`` is the name of the server, and ``SOONER_LAUNCH`` a word that no other submission has: of two
    submissions of one attempt, the node program lets only one run. ``user``: the system user, None for that of the service.
    ``shares`` are in the order of the node ranks. ``limit_s``: how long it takes at most, with all that comes before and after
    the program; None where that is not known.
    """

    attempt: AttemptId
    shares: tuple[NodeShare, ...]
    program: tuple[str, ...]
    plan: bytes
    user: str | None = None
    limit_s: float | None = None


class EngineJobState(StrEnum):
    """The state of a submission in the engine."""

    PENDING = "pending"
    """Nothing of it runs yet."""
    RUNNING = "running"
    ENDING = "ending"
    """Its end has begun; its processes or its GPUs are not free yet."""
    ENDED = "ended"
    """The engine has freed its GPUs."""


class EngineEnd(StrEnum):
    """Why a submission has ended, as the engine sees it."""

    COMPLETED = "completed"
    """Its programs ended by themselves, whatever their exit codes."""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    """The engine, or the kernel for it, ended a program that used more memory than the submission has."""
    NODE_FAILED = "node_failed"
    """A server failed. Processes may still run there, unseen by the engine."""
    NOT_STARTED = "not_started"
    """The engine could not start it."""


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A submission as the engine sees it. ``gpu_ids``: the GPUs that it holds or held on each server, as far as known.

    ``end``, ``detail`` and ``failed_servers`` (those that the engine names as the cause) are set once it is ENDED. ``user``: the
    system user who has submitted it, None where only the user of the service can have done so. ``stuck``: why a PENDING one will
    never start unless somebody changes it or the engine, empty if waiting may help.
    """

    id: str
    attempt: AttemptId
    state: EngineJobState
    servers: tuple[str, ...] = ()
    gpu_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    end: EngineEnd | None = None
    detail: str = ""
    failed_servers: tuple[str, ...] = ()
    user: str | None = None
    stuck: str = ""


class NodeState(StrEnum):
    """The state of a server in the engine."""

    UP = "up"
    DRAINED = "drained"
    """An operator of the engine keeps new jobs away. Running ones continue."""
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class EngineNode:
    """A server of the engine with GPUs. ``detail``: the reason for its state. ``address``: under which others reach it."""

    server: Server
    state: NodeState
    address: str
    detail: str = ""


class EngineDriver(Protocol):
    """One engine. Methods may be called from several threads. All but :meth:`close` raise :class:`EngineUnavailable`."""

    @property
    def name(self) -> str:
        """Of the engine, with its version where known: for messages."""

    @property
    def abilities(self) -> Abilities:
        """What the engine can do."""

    @property
    def kill_wait_s(self) -> float:
        """From SIGTERM to SIGKILL where the engine ends a submission."""

    def submit(self, launch: NodeLaunch) -> str:
        """Submit and return the engine's id of the submission. Does not wait for the start. Raises :class:`EngineRefused`,
        and :class:`EngineNotNow` where a later try may succeed.

        A submission that cannot start at once waits in the engine, on the same servers, until it can or is cancelled.
        """

    def cancel(self, ids: Sequence[str]) -> None:
        """End submissions at once, with all their processes. Unknown and ended ones are ignored."""

    def jobs(self) -> Sequence[EngineJob]:
        """All submissions made through this driver's kind that the engine remembers, by every service: one call to the engine."""

    def nodes(self) -> Sequence[EngineNode]:
        """All servers with GPUs, by name: one call to the engine."""

    def close(self) -> None:
        """Release connections. Submissions run on."""
