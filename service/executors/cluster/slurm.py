"""Slurm as the engine: each attempt is one job of Slurm, submitted at the time of the decision onto exactly its nodes.

The batch script becomes the node program on one node, and starts it once on each of several nodes by ``srun``. The plan is part
of the script, so it appears in no list of processes. State comes from one ``squeue`` for all jobs; those of a cluster executor
carry its id in their comment.
"""

import functools
import logging
import math
import os
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from policies.model.cluster import Server
from policies.model.ids import AttemptId
from service.config.settings import Settings
from service.config.slurm_cluster import UNTYPED
from service.domain.counts import count_of
from service.engine.ports import Abilities
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNode,
    EngineNotNow,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from service.executors.keys import ATTEMPT_NAME
from service.slurm.cluster import TESTED_VERSION, Slurm, SlurmPartition
from service.slurm.commands import SlurmCommands, SlurmError, SlurmNotNow, SlurmRefused, own_user
from service.slurm.jobs import JobLine, SlurmJob
from service.slurm.nodes import SlurmNode
from service.slurm.pending import never_starts
from service.slurm.reservations import SlurmReservation, closed_for, next_of, time_limit_min
from service.slurm.text import expand_hosts, number_before_unit

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_COMMANDS: Final = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
_TESTED_RELEASE: Final = TESTED_VERSION.rpartition(".")[0]
_KILL_WAIT_S: Final = 30.0
_SCRIPT_BYTES_MAX: Final = 4 * 1024**2
"""Slurm's default limit on a batch script (max_script_size)."""

_READING_PAUSE: Final = 4.0
"""Time from one reading of all jobs to the next, at the least: as a multiple of how long a reading takes."""
_FEW: Final = 16
"""Changes that are followed one by one: each may need a call of 5 ms, and reading a thousand jobs takes 0.3 s."""

_STATES: Final = {
    "PENDING": EngineJobState.PENDING,
    "CONFIGURING": EngineJobState.PENDING,
    "REQUEUED": EngineJobState.PENDING,
    "REQUEUE_HOLD": EngineJobState.PENDING,
    "REQUEUE_FED": EngineJobState.PENDING,
    "SPECIAL_EXIT": EngineJobState.PENDING,
    "RESV_DEL_HOLD": EngineJobState.PENDING,
    "COMPLETING": EngineJobState.ENDING,
    "STAGE_OUT": EngineJobState.ENDING,
}
"""States other than those of ended jobs; all that are not listed count as running."""
_ENDS: Final = {
    "BOOT_FAIL": (EngineEnd.NOT_STARTED, "a node could not be booted"),
    "CANCELLED": (EngineEnd.CANCELLED, "the Slurm job was cancelled"),
    "COMPLETED": (EngineEnd.COMPLETED, ""),
    "DEADLINE": (EngineEnd.TIME_LIMIT, "the Slurm job reached its deadline"),
    "FAILED": (EngineEnd.COMPLETED, ""),
    "LAUNCH_FAILED": (EngineEnd.NOT_STARTED, "the Slurm job could not be launched"),
    "NODE_FAIL": (EngineEnd.NODE_FAILED, "a node of the Slurm job failed"),
    "OUT_OF_MEMORY": (EngineEnd.OUT_OF_MEMORY, "it used more memory than its share"),
    "PREEMPTED": (EngineEnd.CANCELLED, "another Slurm job preempted it"),
    "REVOKED": (EngineEnd.CANCELLED, "the Slurm job was revoked"),
    "TIMEOUT": (EngineEnd.TIME_LIMIT, "the Slurm job reached its time limit"),
}
_TELLING_STATES: Final = ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
"""States of one component that tell why the others have ended, the most telling first."""
_PLAIN_STATES: Final = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED", "CANCELLED"})
"""States that need no exit code and no look at the nodes to be understood."""
_LAUNCH_REASONS: Final = ("BadConstraints", "JobLaunchFailure", "PartitionConfig", "NonZeroPrologExit", "Prolog")
"""Reasons of a FAILED job of which nothing ran."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """How jobs are submitted. ``partition`` and ``account`` None: Slurm's defaults.

    ``extra_args``: further arguments of sbatch, the last, so that they replace those of the driver. ``uneven_gangs``: gangs
    with different numbers of GPUs on their nodes are submitted as heterogeneous jobs, which only Slurm's backfill starts.
    ``users``: a launch may name its system user.
    """

    partition: str | None = None
    account: str | None = None
    extra_args: tuple[str, ...] = ()
    uneven_gangs: bool = False
    users: bool = False


def slurm_driver(settings: Settings, cluster_id: str) -> "SlurmDriver":
    """The driver that the settings describe. Asks Slurm nothing. Raises SlurmMissing where its commands are not installed."""
    options = SlurmOptions(
        partition=settings.slurm_partition,
        account=settings.slurm_account,
        extra_args=settings.slurm_extra_args,
        uneven_gangs=settings.slurm_uneven_gangs,
        users=settings.run_as == "submitter",
    )
    commands = SlurmCommands(timeout_s=settings.slurm_timeout_s)
    for command in _COMMANDS:
        commands.path(command)
    return SlurmDriver(Slurm(commands), cluster_id, options)


def _engine_errors(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Errors of Slurm's commands as errors of the port. Whether a failed call had an effect counts as unknown."""

    @functools.wraps(method)
    def translated(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*arguments, **named)
        except SlurmError as error:
            raise EngineUnavailable(str(error)) from error

    return translated


class SlurmDriver:
    """Implements :class:`service.executors.cluster.driver.EngineDriver`. Safe to call from several threads.

    ``cluster_id`` tells the jobs of this executor from those of other ones. What it remembers are answers of Slurm.
    """

    def __init__(self, slurm: Slurm, cluster_id: str, options: SlurmOptions | None = None) -> None:
        self._slurm = slurm
        self._options = options or SlurmOptions()
        self._mark = f"sooner:{cluster_id}:"
        self._own_user = own_user()
        self._nodes: Mapping[str, SlurmNode] = {}
        self._racks: Mapping[str, str] | None = None
        self._reservations: Sequence[SlurmReservation] = ()
        self._found_partition: SlurmPartition | None = None
        self._owners: Mapping[str, str] = {}
        self._failed_nodes: dict[int, tuple[str, ...]] = {}
        self._counting, self._reading = threading.Condition(), threading.Lock()
        self._closed = False
        self._lines: Mapping[int, JobLine] = {}
        self._found: Mapping[int, SlurmJob] = {}
        self._jobs: Sequence[EngineJob] = ()
        self._next_reading_s = -math.inf
        self._submitted = self._read_submitted = 0
        self._version = ""
        self._kill_wait_s = _KILL_WAIT_S
        self._needs_steps = True
        self._mixed: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Slurm, with its version once that is known."""
        return f"Slurm {self._version}".rstrip()

    @property
    def abilities(self) -> Abilities:
        """Slurm chooses the GPU indices; equal numbers of GPUs on all nodes unless heterogeneous jobs are switched on."""
        return Abilities(
            several_servers=True,
            uneven_shares=self._options.uneven_gangs,
            exact_gpus=False,
            warning=True,
            users=self._options.users,
            containers=False,
        )

    @property
    def kill_wait_s(self) -> float:
        """From SIGTERM to SIGKILL where Slurm ends a job; Slurm's default until :meth:`check` has read it."""
        return self._kill_wait_s

    @_engine_errors
    def check(self) -> list[str]:
        """What an operator should know about this Slurm, one sentence each. Called once, at the start of the service.

        Raises :class:`EngineUnavailable` where Slurm does not answer or has no such partition.
        """
        self._version = self._slurm.version()
        config = self._slurm.config()
        self._kill_wait_s = number_before_unit(config.get("KillWait")) or _KILL_WAIT_S
        # At the begin of a preemption's GraceTime Slurm sends SIGTERM to steps alone, not to the batch script.
        preempts = config.get("PreemptMode") != "OFF"
        self._needs_steps = preempts or not config.keys().isdisjoint(("TaskProlog", "TaskEpilog"))
        partition = self._partition()
        notes = []
        logger.info(
            "Slurm %s runs the jobs, in the partition %s; tested on %s", self._version, partition.name, TESTED_VERSION
        )
        if not self._version.startswith(f"{_TESTED_RELEASE}."):
            notes.append(f"this is Slurm {self._version}; Sooner is tested on {TESTED_VERSION}")
        own = [job for job in self._slurm.jobs() if not job.ended and job.partition == partition.name]
        foreign = sum(1 for job in own if not job.comment.startswith(self._mark))
        if foreign:
            notes.append(
                f"{_foreign_jobs(foreign)} in the partition {partition.name!r}: "
                "jobs of Sooner that meet them on a node wait in Slurm"
            )
        if partition.time_limit_s is not None:
            notes.append(f"the partition {partition.name!r} ends jobs after {partition.time_limit_s:.0f} s")
        return notes

    # The port.

    @_engine_errors
    def submit(self, launch: NodeLaunch) -> str:
        """One ``sbatch``; returns Slurm's job id. Raises :class:`EngineRefused` or :class:`EngineNotNow` with Slurm's message."""
        groups = self._groups(launch.shares)
        word = uuid.uuid4().hex
        # On one node nothing has to be started elsewhere, unless Slurm does for steps alone what the program needs.
        alone = len(launch.shares) == 1 and not self._needs_steps
        script = _script(launch, 0 if alone else len(groups), word, self._slurm.commands.path("srun"))
        if len(script) > _SCRIPT_BYTES_MAX:
            raise EngineRefused(
                f"the batch script of attempt {launch.attempt} would have {len(script)} bytes; the limit is {_SCRIPT_BYTES_MAX}"
            )
        arguments = self._common(launch)
        for position, group in enumerate(groups):
            arguments += [":"] if position else []
            arguments += self._resources(group) + list(self._options.extra_args)
        try:
            answer = self._slurm.commands.run("sbatch", *arguments, input=script, user=launch.user)
        except SlurmNotNow as error:
            raise EngineNotNow(str(error)) from error
        except SlurmRefused as error:
            raise EngineRefused(str(error)) from error
        job = answer.strip().partition(";")[0]
        if not job.isdecimal():
            raise EngineUnavailable(f"sbatch answered {answer[:80]!r} instead of a job id")
        with self._counting:
            self._owners = {**self._owners, job: launch.user or self._own_user}
            self._submitted += 1
            self._counting.notify_all()
        return job

    @_engine_errors
    def cancel(self, ids: Sequence[str]) -> None:
        """``scancel``. Processes get SIGTERM, and SIGKILL after Slurm's KillWait (30 s by default)."""
        by_user: dict[str | None, list[str]] = {}
        for job in ids:
            owner = self._owners.get(job, self._own_user)
            by_user.setdefault(owner if owner != self._own_user and self._own_user != "root" else None, []).append(job)
        for user, jobs in by_user.items():
            self._slurm.commands.run("scancel", "--quiet", *jobs, user=user)

    @_engine_errors
    def jobs(self) -> Sequence[EngineJob]:
        """The jobs of this executor that Slurm remembers: ended ones for MinJobAge (300 s by default).

        A cheap list shows which of them have changed. A few changes are followed by that list. For others all jobs are read.
        Where that takes long because Slurm has many jobs, it is done at most a fifth of the time: a call waits for its turn, so
        that no answer is older than the call. A submission ends the wait.
        """
        with self._reading:
            lines = self._own_lines()
            changed = [job for job in {*self._lines, *lines} if self._lines.get(job) != lines.get(job)]
            if not changed:
                return self._jobs
            if not self._follow(lines, changed):
                if self._wait_for_turn():
                    lines = self._own_lines()
                submitted, begun_s = self._submitted, time.monotonic()
                self._read_jobs()
                self._read_submitted = submitted
                self._next_reading_s = begun_s + _READING_PAUSE * (time.monotonic() - begun_s)
            self._lines = lines
            return self._jobs

    def _own_lines(self) -> Mapping[int, JobLine]:
        """The list without what others have submitted in the name of this executor, unless its jobs run as their users."""
        return {job: line for job, line in self._slurm.job_lines(self._mark).items() if self._is_own(line)}

    def _is_own(self, job: JobLine | SlurmJob) -> bool:
        """Anyone may choose a comment that begins as this executor's. What follows names files, so it must be an attempt."""
        named = ATTEMPT_NAME.fullmatch(job.comment.removeprefix(self._mark))
        return named is not None and (self._options.users or job.user_id == os.geteuid())

    def _follow(self, lines: Mapping[int, JobLine], changed: Sequence[int]) -> bool:
        """Take over the changes of these jobs from the list; False if that does not say enough, and nothing is changed."""
        if len(changed) > _FEW or not self._lines:
            return False
        found: dict[int, SlurmJob | None] = {}
        for job in changed:
            line, known = lines.get(job), self._found.get(job)
            if line is None:
                found[job] = None
            elif line.state not in _PLAIN_STATES:
                return False
            elif known is None or (line.state == "RUNNING" and not known.gpu_ids):
                try:
                    found[job] = self._slurm.job(line)
                except SlurmRefused:
                    return False  # forgotten meanwhile
            else:
                nodes = expand_hosts(line.nodes)
                found[job] = replace(known, state=line.state, reason=line.reason, nodes=nodes, comment=line.comment)
        self._take({job: entry for job, entry in {**self._found, **found}.items() if entry is not None})
        return True

    def _wait_for_turn(self) -> bool:
        """Wait until all may be read again, or something was submitted since the last reading; whether that took time."""
        with self._counting:
            pause_s = self._next_reading_s - time.monotonic()
            if pause_s <= 0.0:
                return False
            self._counting.wait_for(lambda: self._closed or self._submitted != self._read_submitted, pause_s)
        return True

    def _read_jobs(self) -> None:
        self._take({job.id: job for job in self._slurm.jobs(self._mark) if self._is_own(job)})

    def _take(self, found: Mapping[int, SlurmJob]) -> None:
        own_id, marked = os.geteuid(), dict[int, list[SlurmJob]]()
        for job in found.values():
            marked.setdefault(job.het_job_id or job.id, []).append(job)
        self._owners = {
            str(job): self._own_user if components[0].user_id == own_id else components[0].user
            for job, components in marked.items()
        }
        self._failed_nodes = {job: nodes for job, nodes in self._failed_nodes.items() if job in marked}
        self._jobs = [self._engine_job(job, components) for job, components in sorted(marked.items())]
        self._found = found

    @_engine_errors
    def nodes(self) -> Sequence[EngineNode]:
        """The nodes with GPUs of one type in the partition, by name. Racks are read once.

        All that are up count as drained while the partition is not UP: Slurm starts no job there.
        """
        self._read_partition()
        partition = self._partition()
        self._nodes = {node.name: node for node in self._slurm.nodes()}
        usable = [node for node in self._nodes.values() if partition.name in node.partitions and node.gpus > 0]
        mixed = frozenset(node.name for node in usable if len(node.gpu_types) > 1)
        if mixed - self._mixed:
            logger.warning("nodes with GPUs of several types are left out: %s", ", ".join(sorted(mixed)))
        self._mixed = mixed
        if self._racks is None:
            self._racks = self._slurm.racks()
        kept = sorted((node for node in usable if node.name not in mixed), key=lambda node: node.name)
        # Jobs that are submitted into a reservation are Slurm's to place in time.
        inside = any(option.startswith("--reservation") for option in self._options.extra_args)
        self._reservations = () if inside else self._slurm.reservations()
        if inside:
            kept = [replace(node, flags=node.flags - {"RESERVED"}) for node in kept]
        closed = "" if partition.up else f"the partition {partition.name!r} is not UP"
        return [self._engine_node(node, self._racks.get(node.name, "r1"), closed) for node in kept]

    def _engine_node(self, node: SlurmNode, rack: str, closed: str) -> EngineNode:
        server, now_s = Server(node.name, node.gpus, gpu_type=node.gpu_type or UNTYPED, rack=rack), time.time()
        if node.down or node.drained:
            return EngineNode(server, NodeState.DOWN if node.down else NodeState.DRAINED, node.address, node.why)
        closed = closed or closed_for(next_of(self._reservations, [node.name], now_s), now_s)
        return EngineNode(server, NodeState.DRAINED if closed else NodeState.UP, node.address, closed)

    def close(self) -> None:
        """End the waits of :meth:`jobs`. There is nothing else to release: each call is a process of its own."""
        with self._counting:
            self._closed = True
            self._counting.notify_all()

    # Submission.

    def _partition(self) -> SlurmPartition:
        """The partition of the settings, else the default one, as last read."""
        if self._found_partition is None:
            self._read_partition()
        assert self._found_partition is not None
        return self._found_partition

    def _read_partition(self) -> None:
        """A partition that was deleted counts as not UP. Raises EngineUnavailable if none was ever found."""
        partitions = self._slurm.partitions()
        before = self._found_partition
        wanted = before.name if before is not None else self._options.partition
        found = [one for one in partitions if (one.name == wanted if wanted is not None else one.default)]
        if found:
            self._found_partition = found[0]
        elif before is not None:
            self._found_partition = replace(before, up=False)
        else:
            names = ", ".join(one.name for one in partitions) or "none"
            missing = f"no partition {wanted!r}" if wanted is not None else "no default partition"
            raise EngineUnavailable(f"slurm_partition: Slurm has {missing}; its partitions: {names}")

    def _groups(self, shares: Sequence[NodeShare]) -> list[list[NodeShare]]:
        """The shares by their number of GPUs, one component of a heterogeneous job each."""
        groups: dict[int, list[NodeShare]] = {}
        for share in shares:
            groups.setdefault(share.gpus, []).append(share)
        if len(groups) > 1 and not self._options.uneven_gangs:
            counts = ", ".join(f"{share.server}: {share.gpus}" for share in shares)
            raise EngineRefused(f"different numbers of GPUs on the nodes of one job ({counts}) need slurm_uneven_gangs")
        return list(groups.values())

    def _common(self, launch: NodeLaunch) -> list[str]:
        """The arguments that are the same for all nodes; later components inherit them."""
        options, now_s = self._options, time.time()
        reserved = next_of(self._reservations, [share.server for share in launch.shares], now_s)
        limit_min = time_limit_min(self._partition().time_limit_s, launch.limit_s, reserved, now_s)
        return [
            "--parsable",
            f"--job-name=sooner-{launch.attempt}",
            f"--comment={self._mark}{launch.attempt}",
            "--no-requeue",
            # The environment of the command, which is small. NONE would make each node run the user's login shell first.
            "--export=ALL",
            "--propagate=NONE",
            "--chdir=/",
            "--input=/dev/null",
            "--output=/dev/null",
            "--error=/dev/null",
            # Sooner itself ends a job at its walltime. Slurm only plans with it, and starts nothing that may meet a reservation.
            f"--time={'UNLIMITED' if limit_min is None else limit_min}",
            f"--partition={self._partition().name}",
            *([f"--account={options.account}"] if options.account is not None else []),
        ]

    def _resources(self, group: Sequence[NodeShare]) -> list[str]:
        """Nodes and GPUs, with the memory and the processors that the job asks for.

        One that asks for none gets as much as belongs to these GPUs on the smallest of the nodes.
        """
        nodes = [(self._node(share), share.gpus) for share in group]
        gpus = group[0].gpus
        gpu_type = nodes[0][0].gpu_type
        memory_mib = group[0].memory_mib or min(node.memory_mib * gpus // node.gpus for node, gpus in nodes)
        return [
            f"--nodes={len(group)}",
            f"--nodelist={','.join(share.server for share in group)}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={group[0].cpus or self._cpus(group)}",
            f"--mem={max(1, memory_mib)}M",
            f"--gres=gpu:{gpu_type}:{gpus}" if gpu_type else f"--gres=gpu:{gpus}",
        ]

    def _cpus(self, group: Sequence[NodeShare]) -> int:
        """Whole cores: Slurm rounds up to them, and two jobs rounded up would not fit on one node."""
        shares = []
        for share in group:
            node = self._node(share)
            cpus = node.cpus * share.gpus // node.gpus
            shares.append(max(1, cpus - cpus % node.threads))
        return min(shares)

    def _node(self, share: NodeShare) -> SlurmNode:
        node = self._nodes.get(share.server)
        if node is None:
            self._nodes = {node.name: node for node in self._slurm.nodes()}
            node = self._nodes.get(share.server)
        if node is None or node.gpus < share.gpus:
            there = f"has {count_of(node.gpus, 'GPU')}" if node is not None else "is not known to Slurm"
            wanted = f"{count_of(share.gpus, 'GPU')} {'is' if share.gpus == 1 else 'are'} wanted"
            raise EngineRefused(f"{wanted} on the node {share.server!r}, which {there}")
        return node

    # State.

    def _engine_job(self, job: int, components: Sequence[SlurmJob]) -> EngineJob:
        """One submission; of a heterogeneous job, its components together. The first runs the batch script."""
        ordered = sorted(components, key=lambda component: component.het_offset or 0)
        first = ordered[0]
        state = _combined([_state(component) for component in ordered])
        gpu_ids = {node: ids for component in ordered for node, ids in component.gpu_ids.items()}
        nodes = tuple(node for component in ordered for node in component.nodes or component.required_nodes)
        attempt = AttemptId(first.comment.removeprefix(self._mark))
        user = first.user if self._options.users else None
        if state is not EngineJobState.ENDED:
            if state is not EngineJobState.PENDING:
                return EngineJob(str(job), attempt, state, nodes, gpu_ids, user=user)
            stuck = next(filter(None, (never_starts(component.reason) for component in ordered)), "")
            return EngineJob(str(job), attempt, state, nodes, gpu_ids, detail=first.reason, user=user, stuck=stuck)
        telling = (one for state in _TELLING_STATES for one in ordered if one.state == state)
        cause = next(telling, first)
        end, detail = _end(cause)
        failed = self._failed(job, nodes) if end is EngineEnd.NODE_FAILED else ()
        return EngineJob(str(job), attempt, state, nodes, gpu_ids, end, detail, failed, user)

    def _failed(self, job: int, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those of a failed job's nodes that are down, as seen first: 22.05 does not say which node was the cause."""
        if job not in self._failed_nodes:
            down = {node.name for node in self._slurm.nodes() if node.down}
            self._failed_nodes[job] = tuple(node for node in nodes if node in down)
        return self._failed_nodes[job]


def _script(launch: NodeLaunch, components: int, word: str, srun: str) -> bytes:
    """The batch script: the program on each node, with the plan as its standard input.

    ``components`` of the job, each of which gets a step; 0: the script becomes the program.
    """
    if b"\0" in launch.plan:
        raise EngineRefused(f"the plan of attempt {launch.attempt} holds a zero byte, which no batch script may")
    end = f"END-{word}"
    line_end = b"" if launch.plan.endswith(b"\n") else b"\n"
    plan = launch.plan + line_end + end.encode()
    lines = [
        b"#!/bin/sh",
        f"PATH={shlex.quote(str(Path(srun).parent))}:/usr/local/bin:/usr/bin:/bin".encode(),
        f"SOONER_LAUNCH={word}".encode(),
        b"export PATH SOONER_LAUNCH",
    ]
    if components == 0:
        lines += [_NAME_NODE.encode(), f"exec {shlex.join(launch.program)} <<'{end}'".encode(), plan]
    elif components == 1:
        lines += [f"exec {_step(launch, srun)} <<'{end}'".encode(), plan]
    else:
        # The standard input of one srun reaches one component alone.
        for number in range(components):
            step = _step(launch, srun, f"--het-group={number}")
            lines += [f"{step} <<'{end}' &".encode(), plan, b'steps="$steps $!"']
        lines.append(_WAIT_FOR_ALL)
    return b"\n".join(lines) + b"\n"


_NAME_NODE: Final = "SOONER_NODE=$SLURMD_NODENAME; export SOONER_NODE"
_WAIT_FOR_ALL: Final = b"""code=0
while [ -n "$steps" ]; do
    left=
    for step in $steps; do
        if kill -0 "$step" 2>/dev/null; then left="$left $step"; else wait "$step" || code=$?; fi
    done
    steps=$left
    if [ "$code" != 0 ] && [ -n "$steps" ]; then kill $steps 2>/dev/null; fi
    if [ -n "$steps" ]; then sleep 1; fi
done
exit "$code\""""
"""As --kill-on-bad-exit does within one step: a component that fails ends the others."""


def _step(launch: NodeLaunch, srun: str, *more: str) -> str:
    """The command that starts the node program once on each node, with all processors of the job."""
    command = [
        srun,
        *more,
        "--ntasks-per-node=1",
        "--cpu-bind=none",
        "--kill-on-bad-exit=1",
        "--wait=0",
        "--mpi=none",
        "--chdir=/",
        *("/bin/sh", "-c", f'{_NAME_NODE}; exec "$@"', "sooner"),
        *launch.program,
    ]
    return shlex.join(command)


def _state(job: SlurmJob) -> EngineJobState:
    return EngineJobState.ENDED if job.ended else _STATES.get(job.state, EngineJobState.RUNNING)


def _combined(states: Sequence[EngineJobState]) -> EngineJobState:
    """Of a heterogeneous job: it runs once all components do, and has ended once all have."""
    if len(set(states)) == 1:
        return states[0]
    ending = (EngineJobState.ENDED, EngineJobState.ENDING)
    return EngineJobState.ENDING if any(state in ending for state in states) else EngineJobState.PENDING


def _end(job: SlurmJob) -> tuple[EngineEnd, str]:
    end, detail = _ENDS[job.state]
    if job.state == "FAILED":
        if job.reason in _LAUNCH_REASONS or not job.nodes:
            return EngineEnd.NOT_STARTED, f"the Slurm job could not start: {job.reason or 'no reason given'}"
        code = f"signal {job.exit_signal}" if job.exit_signal else f"exit code {job.exit_code}"
        return end, f"the batch script of the Slurm job ended with {code}"
    reason = f" ({job.reason})" if job.reason and end is not EngineEnd.COMPLETED else ""
    return end, detail + reason


def _foreign_jobs(count: int) -> str:
    return (
        "1 job that is not Sooner's waits or runs"
        if count == 1
        else f"{count:,} jobs that are not Sooner's wait or run"
    )
