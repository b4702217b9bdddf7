"""An engine for tests: it runs the real node programs on this machine, as if on servers of their own, which can fail.

:class:`ProcessEngine` is the engine, which outlives its drivers as Slurm outlives a service. It keeps its rules: a submission
waits until its servers are up and have enough free GPUs, GPUs are free when every process of a submission is gone, and a node
program that ends with another code than 0 or 3 ends the others.
"""

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from policies.model.cluster import Cluster, Server
from service.engine.ports import Abilities
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeState,
)
from service.runtime.processes import ProcessId, all_processes, descendants, process_info, signal_process

NODES = ("node1", "node2", "node3", "node4")
GPUS = 4
CLUSTER = Cluster("test", tuple(Server(name, GPUS) for name in NODES))
_TICK_S = 0.01
_EXIT_TAKEN = 3


@dataclass
class _Job:
    id: str
    launch: NodeLaunch
    state: EngineJobState = EngineJobState.PENDING
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    gpu_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    end: EngineEnd | None = None
    ending: EngineEnd | None = None
    detail: str = ""
    failed: tuple[str, ...] = ()
    kill_at_s: float = 0.0
    unseen: set[str] = field(default_factory=set)


class ProcessEngine:
    """``kill_wait_s``: between SIGTERM and SIGKILL of a cancelled submission. ``nodes``: names of the servers."""

    def __init__(self, nodes: Sequence[str] = NODES, kill_wait_s: float = 10.0) -> None:
        self.nodes = dict.fromkeys(nodes, NodeState.UP)
        self.kill_wait_s = kill_wait_s
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] = {}
        self._unseen: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count(1)
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._run, name="process-engine", daemon=True)
        self._ticker.start()

    def driver(self) -> "ProcessDriver":
        """One more driver, as a restarted service makes it."""
        return ProcessDriver(self)

    # What tests do to it.

    def restart(self, forget: str = "ended") -> None:
        """The engine restarts and forgets its ended submissions, or ``all``: then what runs goes on, unseen by it."""
        with self._lock:
            for engine_id, job in list(self._jobs.items()):
                if forget == "all" or job.state is EngineJobState.ENDED:
                    self._unseen += job.programs.values()
                    del self._jobs[engine_id]

    def cancel_behind(self, attempt: str) -> None:
        """An operator of the engine cancels the submissions of an attempt."""
        with self._lock:
            for job in self._jobs.values():
                if job.launch.attempt == attempt:
                    self._end(job, EngineEnd.CANCELLED, "by operator")

    def lose_node(self, node: str, *, alive: bool = False) -> None:
        """A server fails: its processes die, or live on where the engine does not see them. The engine ends what ran there."""
        with self._lock:
            self.nodes[node] = NodeState.DOWN
            for job in self._jobs.values():
                if node not in job.programs or job.state is EngineJobState.ENDED:
                    continue
                program = job.programs[node]
                if alive:
                    job.unseen.add(node)
                    self._unseen.append(program)
                else:
                    kill_tree(program)
                job.failed = (*job.failed, node)
                self._end(job, EngineEnd.NODE_FAILED, f"{node} does not respond")

    def return_node(self, node: str) -> None:
        """The server is back."""
        self.nodes[node] = NodeState.UP

    def suspend(self, node: str, *, resume: bool = False) -> None:
        """The server hangs: its processes stop, and the engine does not notice."""
        with self._lock:
            for job in self._jobs.values():
                if node in job.programs:
                    for process in tree(job.programs[node]):
                        signal_process(process, signal.SIGCONT if resume else signal.SIGSTOP)

    def states(self, attempt: str) -> list[EngineJobState]:
        """The states of the submissions of an attempt."""
        with self._lock:
            return [job.state for job in self._jobs.values() if job.launch.attempt == attempt]

    def limits_s(self, attempt: str) -> list[float | None]:
        """How long the submissions of an attempt were said to take at most."""
        with self._lock:
            return [job.launch.limit_s for job in self._jobs.values() if job.launch.attempt == attempt]

    def held(self) -> int:
        """GPUs that are not free."""
        with self._lock:
            return sum(len(gpus) for job in self._holding() for gpus in job.gpu_ids.values())

    def close(self) -> None:
        """End all programs, those that are unseen as well."""
        self._closed.set()
        self._ticker.join()
        with self._lock:
            programs = [program for job in self._jobs.values() for program in job.programs.values()] + self._unseen
            for program in programs:
                kill_tree(program)
                program.wait()

    # What drivers call.

    def submit(self, launch: NodeLaunch) -> str:
        """Queue a submission. Once closed, none starts: nobody would end its programs."""
        with self._lock:
            if self._closed.is_set():
                raise EngineUnavailable("the engine is closed")
            job = _Job(str(next(self._numbers)), launch)
            self._jobs[job.id] = job
            self._schedule()
            return job.id

    def cancel(self, ids: Sequence[str]) -> None:
        """End submissions."""
        with self._lock:
            for engine_id in ids:
                if engine_id in self._jobs:
                    self._end(self._jobs[engine_id], EngineEnd.CANCELLED, "")

    def jobs(self) -> list[EngineJob]:
        """All submissions that are not forgotten."""
        with self._lock:
            return [
                EngineJob(
                    job.id,
                    job.launch.attempt,
                    job.state,
                    tuple(share.server for share in job.launch.shares),
                    dict(job.gpu_ids),
                    job.end,
                    job.detail,
                    job.failed,
                )
                for job in self._jobs.values()
            ]

    # Inside.

    def _run(self) -> None:
        while not self._closed.wait(_TICK_S):
            with self._lock:
                for job in self._jobs.values():
                    self._advance(job)
                self._schedule()

    def _holding(self) -> list[_Job]:
        return [job for job in self._jobs.values() if job.state in (EngineJobState.RUNNING, EngineJobState.ENDING)]

    def _schedule(self) -> None:
        for job in self._jobs.values():
            if job.state is not EngineJobState.PENDING:
                continue
            free = {share.server: self._free(share.server) for share in job.launch.shares}
            if all(
                self.nodes.get(share.server) is NodeState.UP and len(free[share.server]) >= share.gpus
                for share in job.launch.shares
            ):
                job.gpu_ids = {share.server: tuple(free[share.server][: share.gpus]) for share in job.launch.shares}
                job.state = EngineJobState.RUNNING
                self._start(job)

    def _free(self, node: str) -> list[int]:
        taken = {gpu for job in self._holding() for gpu in job.gpu_ids.get(node, ())}
        return [gpu for gpu in range(GPUS) if gpu not in taken]

    def _start(self, job: _Job) -> None:
        word = secrets.token_hex(8)
        for share in job.launch.shares:
            environ = {
                "PATH": os.environ["PATH"],
                "SOONER_NODE": share.server,
                "SOONER_LAUNCH": word,
                "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in job.gpu_ids[share.server]),
            }
            with tempfile.TemporaryFile() as plan:
                plan.write(job.launch.plan)
                plan.seek(0)
                job.programs[share.server] = subprocess.Popen(job.launch.program, stdin=plan, env=environ)

    def _advance(self, job: _Job) -> None:
        if job.state not in (EngineJobState.RUNNING, EngineJobState.ENDING):
            return
        codes = {node: program.poll() for node, program in job.programs.items() if node not in job.unseen}
        if job.state is EngineJobState.RUNNING and any(code not in (None, 0, _EXIT_TAKEN) for code in codes.values()):
            self._end(job, EngineEnd.COMPLETED, f"a program ended with {codes}")
        if all(code is not None for code in codes.values()):
            job.state, job.end = EngineJobState.ENDED, job.ending or EngineEnd.COMPLETED
        elif job.state is EngineJobState.ENDING and time.monotonic() > job.kill_at_s:
            for node, code in codes.items():
                if code is None:
                    kill_tree(job.programs[node])

    def _end(self, job: _Job, end: EngineEnd, detail: str) -> None:
        if job.state is EngineJobState.ENDED or (job.ending is not None and end is not EngineEnd.NODE_FAILED):
            return
        job.ending, job.detail = end, detail
        if job.state is EngineJobState.PENDING:
            job.state, job.end = EngineJobState.ENDED, end
            return
        job.state = EngineJobState.ENDING
        job.kill_at_s = time.monotonic() + self.kill_wait_s
        for node, program in job.programs.items():
            if node not in job.unseen and program.poll() is None:
                program.send_signal(signal.SIGTERM)


class ProcessDriver:
    """Implements :class:`service.executors.cluster.driver.EngineDriver` over a :class:`ProcessEngine`."""

    name = "process engine"
    abilities = Abilities(exact_gpus=False)

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine

    @property
    def kill_wait_s(self) -> float:
        return self.engine.kill_wait_s

    def submit(self, launch: NodeLaunch) -> str:
        for share in launch.shares:
            if share.server not in self.engine.nodes or share.gpus > GPUS:
                raise EngineRefused(f"there is no server {share.server} of {share.gpus} GPUs")
        return self.engine.submit(launch)

    def cancel(self, ids: Sequence[str]) -> None:
        self.engine.cancel(ids)

    def jobs(self) -> Sequence[EngineJob]:
        return self.engine.jobs()

    def nodes(self) -> Sequence[EngineNode]:
        with self.engine._lock:
            states = sorted(self.engine.nodes.items())
        return [EngineNode(Server(name, GPUS), state, "127.0.0.1", f"{name} is {state}") for name, state in states]

    def close(self) -> None:
        pass


def tree(program: subprocess.Popen[bytes]) -> list[ProcessId]:
    """A program with all its descendants."""
    info = process_info(program.pid)
    return ([info.id] if info is not None else []) + [below.id for below in descendants(program.pid)]


def kill_tree(program: subprocess.Popen[bytes]) -> None:
    """Kill a program with all its descendants at once, so that none of them sees the end of another."""
    stopped = tree(program)
    for process in stopped:
        signal_process(process, signal.SIGSTOP)
    for process in {*stopped, *tree(program)}:
        signal_process(process, signal.SIGKILL)


def processes_of(folder: str) -> list[ProcessId]:
    """All living programs that have been started for an attempt whose environment names the folder."""
    found = []
    for info in all_processes():
        with contextlib.suppress(OSError):
            if not info.zombie and folder.encode() in Path(f"/proc/{info.id.pid}/environ").read_bytes():
                found.append(info.id)
    return found
