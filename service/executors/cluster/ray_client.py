"""The process that talks to Ray: ``python -m service.executors.cluster.ray_client``, a child of the service.

Ray's library has threads, signal handlers, output and aborts of its own, none of which may reach the service. The process keeps
nothing that Ray does not have (:mod:`service.executors.cluster.ray_records`), so it can be killed at any time.

The placement group and the actors of a submission are named by the attempt, and Ray has each name once: a repeated submission
finds the first one. Between requests the process looks after the submissions: it stops what must not go on, and frees the GPUs of
those of which nothing is left.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from policies.model.ids import AttemptId
from service.domain.counts import count_of
from service.executors.cluster import ray_actor
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
)
from service.executors.cluster.ray_actor import NAMESPACE, NodeRun
from service.executors.cluster.ray_nodes import NODE_LABEL, RayNodes, engine_nodes
from service.executors.cluster.ray_records import REMEMBER_S, RayRecords, Record, Submission
from service.runtime.child import serve

_ATTEND_S = 0.5
_PARENT_S = 1.0
_REACH_S = 3.0
_CONTINUES = (0, 3)
"""Exit codes of a node program after which those on the other servers run on; after another one nothing records its end."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where Ray is, and whose submissions are meant.

    ``cluster``: the id of the executor, as several may use one Ray. ``token_file``: None for Ray's own rules (RAY_AUTH_TOKEN,
    RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token). ``kill_wait_s``: from SIGTERM to SIGKILL.
    """

    address: str
    cluster: str
    token_file: str | None
    kill_wait_s: float


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a method of :class:`RayClient`."""

    connection: Connection
    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why the program on a server has no end. ``node``: the server itself failed. ``began``: it may have run."""

    why: str
    node: bool = False
    began: bool = True


class RayClient:
    """The calls, in the process that is connected to Ray."""

    def __init__(self, connection: Connection) -> None:
        import ray
        from ray._private.state import state
        from ray._private.worker import global_worker

        ray.init(connection.address, namespace=NAMESPACE, log_to_driver=False, logging_level="CRITICAL")
        self._ray = ray
        self._state = state
        self._cluster = connection.cluster
        self._kill_wait_s = connection.kill_wait_s
        self._records = RayRecords(global_worker.gcs_client, connection.cluster)
        self._nodes = RayNodes()
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._actor = ray.remote(NodeRun)
        self._remove_abandoned()

    def submit(self, launch: NodeLaunch, seen: Mapping[str, int]) -> str:
        """See :meth:`service.executors.cluster.driver.EngineDriver.submit`. The id is that of the attempt.

        ``seen``: servers that Ray has had, with their GPUs. A restarted head does not know them until their nodes are back; the
        submission waits for them.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        attempt = str(launch.attempt)
        if self._records.has_ended(attempt):
            return attempt
        self._check(launch, seen)
        job = {
            "servers": [share.server for share in launch.shares],
            "gpus": [share.gpus for share in launch.shares],
            "program": list(launch.program),
            "launch": secrets.token_hex(16),
        }
        self._records.begin(attempt, job, launch.plan)
        group = self._make_group(launch)
        for index, share in enumerate(launch.shares):
            self._actor.options(
                name=self._actor_name(attempt, index),
                get_if_exists=True,
                lifetime="detached",
                num_gpus=share.gpus,
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote(self._cluster, attempt, index)
        self._records.note(attempt, "created", {})
        return attempt

    def cancel(self, ids: Sequence[str]) -> None:
        """See :meth:`service.executors.cluster.driver.EngineDriver.cancel`."""
        wanted = {attempt for attempt in ids if self._records.is_live(attempt)}
        for attempt in wanted:
            self._records.note(attempt, "stop", {"cancelled": True})
        for submission in self._live() if wanted else []:
            if submission.attempt in wanted:
                self._stop_programs(submission)

    def jobs(self) -> list[EngineJob]:
        """See :meth:`service.executors.cluster.driver.EngineDriver.jobs`."""
        live = self.attend()
        return live + [_ended(attempt, end) for attempt, end in self._records.ends().items()]

    def attend(self) -> list[EngineJob]:
        """Stop programs that must not go on, and end the submissions of which nothing is left. Returns the others."""
        health = self._nodes.health(self._ray.nodes())
        # Before the records: an actor that is not alive here, and has no record of its end there, may be dead.
        actors = {entry["Name"] for entry in self._state.actor_table(None, None, "ALIVE").values()}
        live = []
        for submission in self._live():
            lost = self._lost(submission, health, actors)
            if self._is_over(submission, lost):
                self._end(submission, lost)
            else:
                live.append(self._continue(submission, lost))
        for attempt, end in self._records.ends().items():
            if time.time() - end["at_s"] > REMEMBER_S:
                self._records.forget_end(attempt)
        return live

    def nodes(self) -> list[EngineNode]:
        """See :meth:`service.executors.cluster.driver.EngineDriver.nodes`."""
        table = self._ray.nodes()
        return engine_nodes(table, self._nodes.health(table), self._state.get_draining_nodes())

    def _live(self) -> list[Submission]:
        """The submissions that have not ended. What a late process or actor made for an ended one is removed."""
        live, ended = self._records.live()  # also ended are those whose other records a killed process had not deleted
        for attempt in ended:
            self._remove_group(attempt)
            self._records.forget_live(attempt)
        return live

    def _group_name(self, attempt: str) -> str:
        return f"{NAMESPACE}/{self._cluster}/{attempt}"

    def _actor_name(self, attempt: str, index: int) -> str:
        return f"{NAMESPACE}/{self._cluster}/{attempt}/{index}"

    # Submitting.

    def _check(self, launch: NodeLaunch, seen: Mapping[str, int]) -> None:
        known = {**seen, **{node.server.name: node.server.gpus for node in self.nodes()}}
        for share in launch.shares:
            if share.server not in known:
                raise EngineRefused(
                    f"server {share.server}: no node of Ray with GPUs has the label {NODE_LABEL}={share.server}"
                )
            if share.gpus > known[share.server]:
                raise EngineRefused(
                    f"server {share.server}: {count_of(share.gpus, 'GPU')} wanted, it has {known[share.server]}"
                )

    def _make_group(self, launch: NodeLaunch) -> Any:
        from ray.util.placement_group import placement_group

        attempt = str(launch.attempt)
        if (group := self._group(attempt)) is not None:
            return group
        return placement_group(
            [{"GPU": share.gpus} for share in launch.shares],
            strategy="PACK",
            name=self._group_name(attempt),
            lifetime="detached",
            bundle_label_selector=[{NODE_LABEL: share.server} for share in launch.shares],
        )

    # Judging.

    def _lost(self, submission: Submission, health: dict[str, str], actors: set[str]) -> dict[int, _Loss]:
        """The servers on which the program has no record of its end, and will have none."""
        lost = {}
        for index, run in submission.runs.items():
            if index in submission.exits:
                continue
            trouble = health.get(run["node"], "Ray does not know the node any more")
            if trouble:
                lost[index] = _Loss(trouble, node=True)
            elif self._actor_name(submission.attempt, index) not in actors:
                entry = self._state.actor_table(run["actor"])
                if not entry or entry["State"] == "DEAD":
                    lost[index] = _Loss(f"its actor died, not by this service: {_death(entry)}")
        waiting = set(range(len(submission.servers))) - set(submission.runs) if submission.created else set()
        grouped = not waiting or self._group(submission.attempt) is not None
        for index in waiting:
            if not grouped or self._waiting_actor(submission.attempt, index) is None:
                lost[index] = _Loss("Ray has not created its actor", began=False)
        return lost

    def _waiting_actor(self, attempt: str, index: int) -> Any:
        with suppress(ValueError):
            return self._ray.get_actor(self._actor_name(attempt, index))
        return None

    def _is_over(self, submission: Submission, lost: dict[int, _Loss]) -> bool:
        gone = set(submission.exits) | set(lost)
        if submission.stop is not None:
            # A program that starts now sees the record of the stop.
            gone |= set(range(len(submission.servers))) - set(submission.runs)
        return len(gone) == len(submission.servers)

    def _continue(self, submission: Submission, lost: dict[int, _Loss]) -> EngineJob:
        failed = any(run["error"] or run["code"] not in (None, *_CONTINUES) for run in submission.exits.values())
        if submission.stop is None and (lost or failed):
            # The actor of a failed server may outlive its node for a while, be stopped too, and record an end of its program.
            failures = {index: loss.why for index, loss in lost.items() if loss.node}
            if failures:
                self._records.note(submission.attempt, "lost", {str(index): why for index, why in failures.items()})
            submission.stop = {"cancelled": False}
            self._records.note(submission.attempt, "stop", submission.stop)
        state = EngineJobState.RUNNING if submission.runs else EngineJobState.PENDING
        if submission.stop is not None:
            state = EngineJobState.ENDING
            self._stop_programs(submission)
        return EngineJob(
            submission.attempt, AttemptId(submission.attempt), state, submission.servers, submission.gpu_ids
        )

    def _stop_programs(self, submission: Submission) -> None:
        """Ask the actors to end their programs. Repeated until they have."""
        for index in set(submission.runs) - set(submission.exits):
            with suppress(ValueError):  # there is no such actor any more
                self._ray.get_actor(self._actor_name(submission.attempt, index)).stop.remote(self._kill_wait_s)

    # Ending.

    def _end(self, submission: Submission, lost: dict[int, _Loss]) -> None:
        """Free the GPUs, then record the end."""
        for index in set(range(len(submission.servers))) - set(submission.runs):
            # Without its group, an actor that waits would wait for ever.
            if (actor := self._waiting_actor(submission.attempt, index)) is not None:
                self._ray.kill(actor)
        removed = self._remove_group(submission.attempt)
        lost = {index: _Loss(why, node=True) for index, why in submission.lost.items()} | lost
        servers = submission.servers
        cancelled = submission.stop is not None and submission.stop["cancelled"]
        said = [exit_["error"] or exit_.get("said", "") for _, exit_ in sorted(submission.exits.items())]
        said += [f"{servers[index]}: {loss.why}" for index, loss in sorted(lost.items())]
        if any(loss.began for loss in lost.values()):
            end = EngineEnd.NODE_FAILED
        elif cancelled or (lost and not removed):  # an operator of Ray has removed the group
            end = EngineEnd.CANCELLED
        elif lost or any(exit_["error"] for exit_ in submission.exits.values()):
            end = EngineEnd.NOT_STARTED
        else:
            end = EngineEnd.COMPLETED
        record = {
            "end": end.value,
            "detail": "; ".join(line for line in said if line),
            "servers": list(servers),
            "gpu_ids": {server: list(gpus) for server, gpus in submission.gpu_ids.items()},
            "failed_servers": [servers[index] for index, loss in sorted(lost.items()) if loss.node],
            "at_s": time.time(),
        }
        self._records.end(submission.attempt, record)

    def _group(self, attempt: str) -> Any:
        from ray.util.placement_group import get_placement_group

        with suppress(ValueError):
            return get_placement_group(self._group_name(attempt))
        return None

    def _remove_group(self, attempt: str) -> bool:
        """Remove the group and its actors. Returns whether there was one."""
        from ray.util.placement_group import remove_placement_group

        group = self._group(attempt)
        if group is not None:
            remove_placement_group(group)
        return group is not None

    def _remove_abandoned(self) -> None:
        """Remove the groups that a killed process created after the end of their submissions."""
        known = {self._group_name(submission.attempt) for submission in self._live()}
        for group in self._state.placement_group_table().values():
            name = group["name"]
            if name.startswith(self._group_name("")) and group["state"] != "REMOVED" and name not in known:
                self._remove_group(name.removeprefix(self._group_name("")))


def _death(entry: Any) -> str:
    said = entry["DeathCause"].actor_died_error_context.error_message.strip() if entry else ""
    return said.splitlines()[0] if said else "its actor died"


def _ended(attempt: str, end: Record) -> EngineJob:
    return EngineJob(
        attempt,
        AttemptId(attempt),
        EngineJobState.ENDED,
        tuple(end["servers"]),
        {server: tuple(gpus) for server, gpus in end["gpu_ids"].items()},
        EngineEnd(end["end"]),
        end["detail"],
        tuple(end["failed_servers"]),
    )


class _Answerer:
    """Answers requests. After an error the parent starts a new process, as the connection may be broken."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._client: RayClient | None = None

    def __call__(self, request: Request) -> Any:
        try:
            _reach(request.connection.address)
        except OSError as error:
            # Ray itself would wait for it for a minute.
            return EngineUnavailable(f"Ray at {request.connection.address}: {error.strerror or error}")
        with self._turn:
            try:
                if self._client is None:
                    _authenticate(request.connection)
                    self._client = RayClient(request.connection)
                return getattr(self._client, request.method)(*request.arguments)
            except EngineRefused as error:
                return error
            except Exception as error:
                return EngineUnavailable(f"Ray at {request.connection.address}: {_first_line(error)}")

    def attend(self) -> None:
        """Look after the submissions until the process ends."""
        while True:
            time.sleep(_ATTEND_S)
            with self._turn, suppress(Exception):  # the next request meets the same fault, and answers with it
                if self._client is not None:
                    self._client.attend()


def _reach(address: str) -> None:
    """Raise OSError if nothing listens at the address of the head."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def _authenticate(connection: Connection) -> None:
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if connection.token_file is not None:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ["RAY_AUTH_TOKEN_PATH"] = connection.token_file


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _end_with(parent: int) -> None:
    """End this process with its parent, also within a call that does not return."""
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(0)


def main() -> None:
    """Answer the parent. Whatever Ray prints goes nowhere."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)
    answerer = _Answerer()
    threading.Thread(target=answerer.attend, daemon=True).start()
    serve(answerer, EngineUnavailable)


if __name__ == "__main__":
    main()
