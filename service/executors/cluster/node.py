"""The node program: what an engine runs once on each server of an attempt. It is the supervisor of :mod:`service.executors`.

It picks its part of the plan by the name of its node, starts its ranks when all nodes are there, and watches for what ends the
whole attempt: a stop of the executor, another node that cannot go on, SIGTERM of the engine, the end of the process that started
it, and the lease. Its keeper ends the part when the shared folder does not answer for longer than the lease, in which the
supervisor itself may hang. Standard library only.

Its environment: ``SOONER_NODE`` (else ``SLURMD_NODENAME``) is the name of its node, ``SOONER_LAUNCH`` the word of the launch,
``CUDA_VISIBLE_DEVICES`` the GPUs that the engine gave. Exit codes: 0 when its end is recorded, ``EXIT_TAKEN`` when another launch
has the attempt, and others when it could not begin.
"""

import contextlib
import errno
import os
import pwd
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.files import is_disk_full, write_json
from service.executors.keeper import CONTINUE_S
from service.executors.ranks import Rank
from service.executors.seal import Seal
from service.executors.supervisor import (
    EXIT_DISK_FULL,
    EXIT_TAKEN,
    CannotLaunch,
    StoppedFirst,
    Supervisor,
    begin,
    now_s,
    read_plan,
    why_not_begun,
)

EXIT_REFUSED = 64
"""The exit code when the environment does not fit the plan."""
HALT_SLACK_S = 5.0
"""Time beyond lease and grace periods after which the keeper ends a part whose supervisor hangs."""
PORTS = range(20000, 30000)
"""Below the range from which Linux takes ports for outgoing connections (32768 and up)."""

_BY_ENGINE = "ended by the engine (SIGTERM)"
_LOOK_S = 0.25
"""Longest pause between two looks into the shared folder while output comes."""
_GATHER_LOOK_S = 0.03
_SIGNALLED = 128
"""Exit codes above this are 128 + n after signal n."""
_SIGTERM_CODE = 128 + signal.SIGTERM
_SAME_SIGTERM_S = 0.1
"""An engine sends SIGTERM to all processes of a part, so that a rank may end before this process has got it."""
_READ_BY_SERVICE = (names.LOCK, names.SUPERVISOR, names.RANKS, names.STARTED, names.RESERVED, names.PROGRESS)
"""Files that a service which runs as another user reads; ``reserved`` becomes the record of the end."""
_WARNED_PART = 0.7
"""Part of the time until an engine kills that is left to the warning."""
_KILL_MARGIN_S = 1.5
"""Time to record the end before an engine kills."""


class Refused(Exception):
    """The environment does not fit the plan."""


class NodeSupervisor(Supervisor):
    """The part of an attempt on one node. ``plan`` is that of the attempt, narrowed by :func:`narrowed`."""

    def __init__(self, plan: dict[str, Any], folder: Path, keeper: int, wakeups: tuple[int, ...]) -> None:
        self.node: int = plan["node"]
        self.inbox = folder.parent
        self.halted: shared.Halt | None = None
        self.stopped = False
        self.by_engine = False
        self.kill_by = float("inf")
        self.look_at = 0.0
        self.readable: set[str] = set()
        super().__init__(plan, folder, keeper, wakeups)
        self._let_service_read()

    # Starting.

    def launch(self) -> None:
        """Start the ranks of this node when all nodes are there. Raises as :meth:`Supervisor.launch`."""
        self._check_wanted()
        self._check_gpus()
        self.plan["env"]["MASTER_PORT"] = str(self._gather())
        super().launch()

    def _check_wanted(self) -> None:
        if shared.read_stop(self.inbox, self.seal) is not None:
            raise StoppedFirst
        self.halted = self._other_halt()
        if self.halted is not None:
            raise StoppedFirst
        super()._check_wanted()

    def _check_gpus(self) -> None:
        wanted, given = self.plan["gpus_wanted"], self.plan["gpus"]
        if wanted is not None and len(given) < wanted:
            raise CannotLaunch(
                "launch_failed",
                f"{self.plan['node_name']}: the launch has {wanted} GPU{'' if wanted == 1 else 's'} on this node, and the "
                f"engine gave {len(given)}: CUDA_VISIBLE_DEVICES={','.join(given)}",
            )

    def _gather(self) -> int:
        """Wait until all nodes are there; returns the port on which the first rank listens."""
        until_s = time.monotonic() + float(self.plan["gather_s"])
        poller = select.poll()
        for descriptor in self.wakeups:
            poller.register(descriptor, select.POLLIN)
        while True:
            port = (
                self._port_if_all_there()
                if self.node == self.plan.get("master", 0)
                else shared.read_rendezvous(self.inbox, self.seal)
            )
            if port is not None:
                return port
            if time.monotonic() >= until_s:
                raise CannotLaunch("launch_failed", self._missing())
            for descriptor, _ in poller.poll(_GATHER_LOOK_S * 1000):
                if b"%c" % signal.SIGTERM in os.read(descriptor, 4096):
                    self._on_sigterm()
                    raise StoppedFirst
            self._check_keeper()
            self._check_wanted()

    def _port_if_all_there(self) -> int | None:
        if self._absent():
            return None
        port = free_port(int(self.plan["first_port"]))
        if len(self.plan["nodes"]) > 1:
            shared.write_rendezvous(self.inbox, port, self.seal)
        return port

    def _absent(self) -> list[str]:
        present = set(os.listdir(self.inbox))  # noqa: PTH208 names only
        return [name for rank, name in enumerate(self.plan["nodes"]) if shared.node_name(rank) not in present]

    def _missing(self) -> str:
        if absent := self._absent():
            return f"no program began within {self.plan['gather_s']:g} s on {', '.join(absent)}"
        return f"the node of rank 0 did not let the ranks start within {self.plan['gather_s']:g} s"

    def _open_checkpoints(self) -> None:
        # First, because the error of a folder that cannot be read names no owner; then, because another user may be faster.
        self._check_owner_of_checkpoints()
        super()._open_checkpoints()
        self._check_owner_of_checkpoints()

    def _check_owner_of_checkpoints(self) -> None:
        folder = Path(self.plan["checkpoint_dir"])
        if not self.plan["users_apart"] or not os.path.lexists(folder):
            return
        owner, user = folder.lstat().st_uid, os.geteuid()
        if owner != user:
            raise CannotLaunch(
                "checkpoint_unreadable",
                f"{folder}: belongs to user {user_name(owner)}, not to {user_name(user)}; its owner or root has to delete it",
            )

    def _write(self, name: str, record: dict[str, Any]) -> None:
        super()._write(name, record)
        self._let_service_read()

    def _let_service_read(self) -> None:
        """If this process runs as the user of the job: open the files that the service reads. Their folder cannot be guessed."""
        if not self.plan["users_apart"]:
            return
        entries: list[str] = []
        with contextlib.suppress(OSError):  # a job may have deleted it
            entries = [f"{names.OUTPUT}/{entry}" for entry in os.listdir(self.folder / names.OUTPUT)]  # noqa: PTH208 names only
        for name in (".", names.OUTPUT, *_READ_BY_SERVICE, *entries):
            if name not in self.readable:
                with contextlib.suppress(OSError):
                    (self.folder / name).chmod(0o755 if name in (".", names.OUTPUT) else 0o644)
                    self.readable.add(name)

    def _starts_late(self) -> bool:
        return self._lease_age_s() > float(self.plan["lease_s"]) + names.START_SLACK_S

    # Running.

    def supervise(self) -> None:
        """As :meth:`Supervisor.supervise`; a SIGTERM of the engine counts although all ranks have died of theirs before."""
        super().supervise()
        if any(rank.code == _SIGTERM_CODE for rank in self.ranks):
            self._read_wakeups(self.ranks)

    def _react(self, ended: list[Rank]) -> None:
        # Each look asks the file server, which programs that write much must not multiply.
        now = time.monotonic()
        if not ended and self.phase == "running" and now < self.look_at:
            return
        self.look_at = now + _LOOK_S
        self._read_wakeups(ended)
        if self.phase == "running" and any(rank.code not in (0, 75) for rank in ended):
            codes = "; ".join(f"rank {rank.index}: exit code {rank.code}" for rank in ended if rank.code)
            self._halt(codes, None, float(self.plan["term_grace_s"]))
        self._heed_stop()
        self._lease_is_over()
        self._let_service_read()
        super()._react(ended)
        if self.lease_expired:
            # At once: the ranks of other nodes may fail when they miss this one's.
            self._halt("its lease was not renewed", self.plan["warning_signal"], self.grace_s)
        self._keep_time()

    def _read_wakeups(self, ended: list[Rank]) -> None:
        poller = select.poll()
        for descriptor in self.wakeups:
            poller.register(descriptor, select.POLLIN)
        killed = any(rank.code == _SIGTERM_CODE for rank in ended) and self.phase == "running"
        until_s = time.monotonic() + (_SAME_SIGTERM_S if killed else 0.0)
        while ready := poller.poll(max(0.0, until_s - time.monotonic()) * 1000):
            for descriptor, _ in ready:
                if b"%c" % signal.SIGTERM in os.read(descriptor, 4096):
                    self._on_sigterm()
                    return

    def _heed_stop(self) -> None:
        request = shared.read_stop(self.inbox, self.seal)
        if request is not None:
            self.stopped = True
            warning, self.grace_s = request
            self._stop(warning)
        elif self.phase == "running":
            self.halted = self._other_halt()
            if self.halted is not None:
                self.grace_s = self.halted.grace_s
                self._stop(self.halted.warning_signal)

    def _other_halt(self) -> shared.Halt | None:
        halt = shared.read_halt(self.inbox, self.seal)
        return halt if halt is not None and halt.node != self.node else None

    def _halt(self, detail: str, warning_signal: str | None, grace_s: float) -> None:
        if self.stopped or self.halted is not None:
            return
        self.stopped = True
        halt = shared.Halt(self.node, now_s(self.plan), self.by_engine, detail, warning_signal, grace_s)
        try:
            shared.write_halt(self.inbox, halt, self.seal)
        except OSError as error:
            # The other nodes end when their ranks miss this one's, or by the executor, which sees this end.
            print(f"cannot stop the other nodes: {error}", file=sys.stderr)

    def _on_sigterm(self) -> None:
        wait_s = float(self.plan["kill_wait_s"])
        margin_s = min(_KILL_MARGIN_S, wait_s / 2)
        self.kill_by = min(self.kill_by, time.monotonic() + wait_s - margin_s)
        self.by_engine = True
        self._halt(_BY_ENGINE, self.plan["warning_signal"], self.grace_s)
        self._stop(self.plan["warning_signal"])
        if self.phase == "warned":
            self.deadline = min(self.deadline, time.monotonic() + (wait_s - margin_s) * _WARNED_PART)

    def _keep_time(self) -> None:
        """Shorten the steps of stopping, so that the end is recorded before the engine kills all processes."""
        if self.phase != "running":
            self.deadline = min(self.deadline, self.kill_by)

    def _lease_is_over(self) -> bool:
        before = self.lease_mark
        super()._lease_is_over()
        if self.lease_mark != before:
            # A client of the file server may see a renewal late.
            self.lease_seen -= self._lease_used_s()
            os.write(self.plan["pulse"], b"!")
        return time.monotonic() - self.lease_seen > float(self.plan["lease_s"])

    def _lease_used_s(self) -> float:
        return min(max(self._lease_age_s(), 0.0), float(self.plan["lease_s"]))

    def _lease_age_s(self) -> float:
        """Seconds since the lease was renewed, by the clock of the file system; 0 if there is no lease or no answer."""
        try:
            lock = self.folder / names.LOCK
            os.utime(lock)
            return lock.stat().st_mtime - self.lease_file.stat().st_mtime
        except OSError:
            return 0.0

    # Recording the end.

    def last_record(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with the node that made this one stop. A part that failed stops the other nodes first."""
        self._let_service_read()
        if self.halted is not None:
            because = f"stopped because node {self.halted.node} could not go on: {self.halted.detail}"
            detail = "; ".join(filter(None, (because, record["detail"])))
            return record | {"halted_by": self.halted.node, "detail": detail}
        if self.by_engine:
            return record | {"detail": "; ".join(filter(None, (_BY_ENGINE, record["detail"])))}
        if record["outcome"] != "exited" or record["exit_code"] not in (0, 75, None):
            self._halt(record["detail"], None, float(self.plan["term_grace_s"]))
        return record


def user_name(uid: int) -> str:
    """The number of a user, with the name if this host has it."""
    try:
        return f"{uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return str(uid)


def free_port(first: int) -> int:
    """A free port of this host, searched from ``first`` on (modulo the number of :data:`PORTS`). Raises :class:`CannotLaunch`."""
    import socket  # takes as long to import as all else of the standard library here, and only one node needs it

    for step in range(len(PORTS)):
        port = PORTS[(first + step) % len(PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise CannotLaunch("launch_failed", f"no free port in {PORTS.start}-{PORTS.stop - 1} for the first rank")


def narrowed(plan: dict[str, Any], name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The plan of one node, for :class:`NodeSupervisor`. Raises :class:`Refused` for a name that the plan does not have."""
    nodes = plan["nodes"]
    rank = next((rank for rank, node in enumerate(nodes) if node["name"] == name), None)
    if rank is None:
        known = ", ".join(node["name"] for node in nodes)
        raise Refused(f"SOONER_NODE={name}: the launch is for {known}")
    node = nodes[rank]
    gpus = [gpu for gpu in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    wanted = node["gpus"]
    ranks = node["ranks"]
    if wanted is not None:
        gpus = gpus[:wanted]
        ranks = [env | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} for env in ranks]
    inherited = {
        key: value
        for key, value in environ.items()
        if key in plan["inherited"] or key.startswith(plan["inherited_prefix"])
    }
    own = {"SOONER_PROGRESS_FILE": str(shared.node_folder(Path(plan["attempts_dir"]), rank) / names.PROGRESS)}
    if plan["users_apart"]:
        # The engine may have the environment of the user that has submitted.
        try:
            entry = pwd.getpwuid(os.geteuid())
        except KeyError:
            raise Refused(f"{name}: this server has no system user with the number {os.geteuid()}") from None
        inherited |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return plan | {
        "attempt": shared.node_name(rank),
        "node": rank,
        "node_name": name,
        "server": name,
        "nodes": [other["name"] for other in nodes],
        "gpus": gpus if wanted is not None else [],
        "gpus_wanted": wanted,
        "ranks": ranks,
        "env": plan["defaults"] | inherited | plan["env"] | own,
    }


def admitted(plan: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The plan of this node if this launch may run; None if another launch or a stop came first.

    Raises :class:`Refused`, and OSError if the shared folder cannot be used.
    """
    word = environ.get("SOONER_LAUNCH", "")
    if not word:
        raise Refused("SOONER_LAUNCH is not set: it is the word of the launch")
    inbox = Path(plan["attempts_dir"])
    if shared.claim(inbox, word) != word:
        return None
    name = environ.get("SOONER_NODE") or environ.get("SLURMD_NODENAME") or ""
    try:
        if not name:
            raise Refused("neither SOONER_NODE nor SLURMD_NODENAME is set: one is the name of this node")
        return narrowed(plan, name, environ)
    except Refused as refusal:
        halt = shared.Halt(-1, now_s(plan), False, str(refusal), None, float(plan["term_grace_s"]))
        shared.write_halt(inbox, halt, Seal(plan["seal"]))
        raise


def watch(asked: list[int], pulse: int, limit_s: float, starter: int) -> Callable[[int], int]:
    """What the keeper does until the supervisor ends; the result returns its status.

    It passes SIGTERM on (``asked`` is not empty), also when its parent is not ``starter`` any more, continues a suspended
    supervisor, and kills it ``limit_s`` after the last byte from ``pulse``, which the supervisor writes when it sees a renewed
    lease.
    """

    def wait_for(supervisor: int) -> int:
        signal.signal(signal.SIGTERM, lambda *_: asked.append(signal.SIGTERM))
        poller = select.poll()
        poller.register(os.pidfd_open(supervisor), select.POLLIN)
        poller.register(pulse, select.POLLIN)
        until_s = time.monotonic() + limit_s
        while True:
            pid, status = os.waitpid(supervisor, os.WNOHANG | os.WUNTRACED)
            if pid != 0 and not os.WIFSTOPPED(status):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                return status
            if pid != 0:
                time.sleep(CONTINUE_S)
                os.kill(supervisor, signal.SIGCONT)
            if asked or os.getppid() != starter:
                # Again and again: a supervisor that has just begun misses a signal.
                os.kill(supervisor, signal.SIGTERM)
            for descriptor, _ in poller.poll(_LOOK_S * 1000):
                if descriptor == pulse and os.read(pulse, 4096):
                    until_s = time.monotonic() + limit_s
            if time.monotonic() >= until_s:
                os.kill(supervisor, signal.SIGKILL)

    return wait_for


def main() -> int:
    """Run the part of this node. Returns this process' exit code."""
    starter = os.getppid()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(signal.SIGTERM))
    plan = read_plan()
    try:
        part = admitted(plan, os.environ)
    except Refused as refusal:
        print(f"sooner: {refusal}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"sooner: the shared folder {plan['attempts_dir']}: {error.strerror}", file=sys.stderr)
        return EXIT_DISK_FULL if is_disk_full(error) else errno.EIO
    if part is None:
        return EXIT_TAKEN
    # The keeper keeps the writing end, so that it sees no end of the pipe when the supervisor ends.
    pulse, part["pulse"] = os.pipe()
    os.set_blocking(part["pulse"], False)
    limit_s = float(plan["lease_s"]) + 2 * float(plan["grace_s"]) + HALT_SLACK_S
    keeper = os.getpid()
    code = begin(part, NodeSupervisor, watch(asked, pulse, limit_s, starter))
    # An interpreter that ends gives up its handlers, and would die of the signal with another exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpid() == keeper and code not in (0, EXIT_TAKEN):
        note_death(part, code)
    return code


def note_death(plan: dict[str, Any], code: int) -> None:
    """Stop the other nodes, and record the end of this one, whose supervisor ended with ``code`` and left no process."""
    seal = Seal(plan["seal"])
    inbox = Path(plan["attempts_dir"])
    folder = shared.node_folder(inbox, plan["node"])
    detail = "its supervisor was killed" if code > _SIGNALLED else why_not_begun(code)
    # If the shared folder does not answer, the engine sees this end by the exit code.
    with contextlib.suppress(OSError):
        if names.read_end(folder, seal) is not None:
            return
        signalled = names.has(folder, names.SIGNALLED)
        record = names.end_record(
            "lost", now_s(plan), reason="node_lost", detail=f"{plan['node_name']}: {detail}", stop_signalled=signalled
        )
        halt = shared.Halt(plan["node"], record["at_s"], False, record["detail"], None, float(plan["term_grace_s"]))
        shared.write_halt(inbox, halt, seal)
        if names.exists(folder):
            write_json(folder / names.EXIT, seal.sealed(names.EXIT, record), reserved=folder / names.RESERVED)
