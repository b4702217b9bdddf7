"""The small process that supervises one attempt: it starts the ranks, stops them, and records how they ended.

It outlives the service that launched it. It is a child subreaper, so no process of the job escapes it, and it puts the job into a
control group where it may. Its parent is its keeper (:mod:`service.executors.keeper`), a subreaper as well: when the supervisor
dies, the keeper kills what it left. Both hold the lock of the attempt's folder as long as they live: a free lock without an
``exit.json`` means that both died, and that the processes they left may be killed. The supervisor stops its attempt when the
service's lease was not renewed for ``lease_s``. It must stay small, start in milliseconds and import the standard library alone.

The order of its writes makes a crash at any time harmless: the folder with lock and own identity (one rename), then the ranks'
identities, then the commands are executed, then ``started.json``, then ``exit.json`` when no process is left.
"""

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.executors import folder as names
from service.executors.files import is_disk_full, reserve, write_json
from service.executors.keeper import keep, wait_for
from service.executors.logs import LogWriter
from service.executors.output import Output
from service.executors.ranks import (
    NOT_EXECUTABLE,
    Program,
    Rank,
    attempt_exit_code,
    can_enter,
    exists,
    fork_rank,
    open_gate,
    prepare_signals,
    reap,
    redirect_standard_streams,
)
from service.executors.seal import Seal
from service.executors.warning import Warner
from service.runtime.cgroups import Cgroup
from service.runtime.processes import (
    become_subreaper,
    boot_id,
    boot_time_s,
    close_inherited,
    descendants,
    die_with_parent,
    forbid_tracing,
    kill_descendants,
    proc_hides,
    process_info,
    signal_process,
    spare_as_victim,
)
from service.runtime.untrusted import open_folder

EXIT_TAKEN = 3
"""The supervisor's own exit code when the attempt's folder exists already."""
EXIT_DISK_FULL = 28
"""The exit code when there was no disk space for the folder."""
EXIT_ERRNO = 64
"""Added to the errno, if it is smaller, it is the exit code when the folder could not be made for another reason."""

_IDLE_S = 0.5
_URGENT_S = 0.05
_EXIT_RECORD_BYTES = 4096
_LEFTOVER_GRACE_S = 2.0
_RETRY_S = 1.0
_USERS_UMASK = 0o022
"""Umask of programs that run as their users: what a login gives."""
_ENTERED_BY_GROUP = 0o710
_KILL_S = 0.05
"""Time of one look for processes to kill: the output of the ranks is copied in between."""


def now_s(plan: dict[str, Any]) -> float:
    """The time on the service's clock as it was at the launch, independent of changes of the system clock since.

    On another machine than the service's (``clock_s`` is None), it is the time of that machine.
    """
    return time.time() if plan["clock_s"] is None else float(plan["clock_s"]) + boot_time_s()


class CannotLaunch(Exception):
    """The attempt never ran; ``reason`` is a word of ``policies.model.reasons``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class StoppedFirst(Exception):
    """The stop of the attempt came before any of its programs ran."""


class KeeperLost(Exception):
    """The parent of this supervisor was killed, so that nothing would end the job if this supervisor was killed, too."""


class Supervisor:
    """One attempt's life after its folder has been published. ``keeper`` is the number of the parent process.

    ``wakeups``: descriptors that become readable when there is something to do; they give one byte a signal.
    """

    def __init__(self, plan: dict[str, Any], folder: Path, keeper: int, wakeups: tuple[int, ...] = ()) -> None:
        self.plan = plan
        self.folder = folder
        self.keeper = keeper
        self.wakeups = wakeups
        self.account: dict[str, Any] | None = plan["account"]
        self.seal = Seal(plan["seal"])
        self.lock = names.lock_number(folder)
        self.started = False
        self.cgroup = Cgroup(Path(plan["cgroup"])) if plan["cgroup"] is not None else None
        self.group_failed = False
        self.ranks: list[Rank] = []
        self.by_pid: dict[int, Rank] = {}
        self.codes: list[int] = []
        self.children = True
        self.stop_signalled = False
        self.lease_expired = False
        self.phase = "running"
        self.deadline = 0.0
        self.warner: Warner | None = None
        self.grace_s = float(plan["grace_s"])
        self.lease_file = Path(plan["lease_file"])
        self.lease_mark = self._lease_mark()
        self.lease_seen = time.monotonic() - self._lease_used_s()
        self.output = Output(LogWriter(folder / names.OUTPUT, int(plan["log_bytes_max"])), len(plan["ranks"]) > 1)
        self.poller = select.poll()

    # Starting.

    def launch(self) -> None:
        """Start all ranks. Raises an error of this module before any of them has run the command."""
        self._check_wanted()
        if refusal := self.plan["refusal"]:
            raise CannotLaunch(refusal["reason"], refusal["detail"])
        working_dir = self._working_dir()
        self._open_checkpoints()
        gate = os.pipe()
        for env in self.plan["ranks"]:
            program = Program(
                self.plan["command"],
                self.plan["env"] | env,
                working_dir,
                self.plan["umask"] if self.account is None else _USERS_UMASK,
                self.plan["mark"],
                self.account,
            )
            rank = fork_rank(int(env.get("RANK", env["NODE_RANK"])), program, gate)
            self.ranks.append(rank)
            self.by_pid[rank.id.pid] = rank
        self._enter_cgroup()
        identities = [list(rank.id) for rank in self.ranks]
        pipes = [os.fstat(rank.output).st_ino for rank in self.ranks]
        self._write(names.RANKS, {"ranks": identities, "pipes": pipes})
        # Without its keeper this attempt may be reported as one that never ran.
        self._check_keeper()
        # The folders may be on a disk that has not answered for longer than the lease.
        self._check_wanted()
        if failure := open_gate(gate, self.ranks):
            command = self.plan["command"][0]
            reason = "command_not_found" if failure in NOT_EXECUTABLE else "launch_failed"
            why = os.strerror(failure)
            if failure == errno.ENOENT and exists(program):
                why = "it exists, but the interpreter that it names (#!) does not"
            raise CannotLaunch(reason, f"{command}: {why}")
        self._write(names.STARTED, {"at_s": now_s(self.plan)})
        self.started = True

    def _check_wanted(self) -> None:
        if names.read_stop(self.folder, self.seal) is not None:
            raise StoppedFirst
        if self._starts_late():
            # The service was suspended for so long that the job may run elsewhere by now.
            raise CannotLaunch("launch_failed", "the service's lease had run out before anything was started")

    def _write(self, name: str, record: dict[str, Any]) -> None:
        write_json(self.folder / name, self.seal.sealed(name, record))

    def _enter_cgroup(self) -> None:
        if self.cgroup is None:
            return
        try:
            self.cgroup.create()
            self.cgroup.limit(self.plan["limits"].get("cpus"), self.plan["limits"].get("memory_mib"))
            for rank in self.ranks:
                self.cgroup.add(rank.id.pid)
        except OSError as error:
            raise CannotLaunch("launch_failed", f"control group {self.cgroup.path}: {error.strerror}") from error

    def _working_dir(self) -> Path:
        wanted = self.plan["working_dir"]
        if wanted is None:
            work = names.make_private(self.folder / names.WORK)
            self._hand_over(work)
            return work
        folder = Path(wanted)
        if not folder.is_absolute() or not folder.is_dir() or not os.access(folder, os.X_OK):
            raise CannotLaunch(
                "working_dir_not_found", f"working_dir {wanted}: not an absolute path of a folder that can be entered"
            )
        if self.account is not None and not can_enter(folder, self.account):
            raise CannotLaunch(
                "working_dir_not_found", f"working_dir {wanted}: cannot be entered by user {self.account['name']}"
            )
        return folder

    def _open_checkpoints(self) -> None:
        folder = Path(self.plan["checkpoint_dir"])
        try:
            names.make_private(folder)
            self._hand_over(folder)
            next(folder.iterdir(), None)
        except OSError as error:
            if is_disk_full(error):
                raise
            raise CannotLaunch("checkpoint_unreadable", f"{folder}: {error.strerror}") from error
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise CannotLaunch("checkpoint_unreadable", f"{folder}: cannot be read and written")

    def _hand_over(self, folder: Path) -> None:
        """Give a folder to the user of the job. Raises OSError if it belongs to another user than the service's."""
        if self.account is None:
            return
        place = open_folder(folder)
        try:
            owner = os.fstat(place).st_uid
            if owner not in (os.geteuid(), self.account["uid"]):
                raise PermissionError(errno.EPERM, f"belongs to user {owner}, not to {self.account['name']}")
            os.fchown(place, self.account["uid"], self.account["gid"])
        finally:
            os.close(place)

    # Running.

    def supervise(self) -> None:
        """Run until no process of the attempt is left."""
        for descriptor in self.wakeups:
            self.poller.register(descriptor, select.POLLIN)
        for rank in self.ranks:
            self.poller.register(rank.output, select.POLLIN)
        while True:
            ended = self._reap()
            if not self.children:
                return
            self._react(ended)
            self._wait()

    def _reap(self) -> list[Rank]:
        ended, self.children = reap(self.by_pid)
        self.codes += [rank.code for rank in ended if rank.code is not None]
        return ended

    def _children_left(self) -> bool:
        self._reap()
        return self.children

    def _check_keeper(self) -> None:
        if os.getppid() != self.keeper:
            raise KeeperLost("the parent of its supervisor was killed")

    def _wait(self) -> None:
        pause_s = _IDLE_S
        if self.phase == "killing":
            pause_s = _URGENT_S
        elif self.phase != "running":
            pause_s = min(pause_s, max(0.0, self.deadline - time.monotonic()))
        if self.phase == "warned" and self.warner is not None:
            pause_s = min(pause_s, self.warner.pause_s)
        by_output = {rank.output: rank for rank in self.ranks if rank.output >= 0}
        for descriptor, _ in self.poller.poll(pause_s * 1000):
            if descriptor in self.wakeups:
                if b"%c" % signal.SIGTERM in os.read(descriptor, 4096):
                    self._on_sigterm()
            elif self.output.pump(by_output[descriptor]) is False:
                self.poller.unregister(descriptor)
                os.close(descriptor)
                by_output[descriptor].output = -1

    def _on_sigterm(self) -> None:
        self._stop(self.plan["warning_signal"])

    def _react(self, ended: list[Rank]) -> None:
        """Check every reason to stop the attempt, and take the next step of stopping when a deadline has passed.

        Raises :class:`KeeperLost`, and FileNotFoundError if the attempt's folder was deleted or its lock replaced, because the
        attempt could no longer be stopped through it.
        """
        if names.is_gone(self.folder, self.lock):
            raise FileNotFoundError(self.folder / names.LOCK)
        self._check_keeper()
        # A job may have suspended the keeper, as the keeper sees and undoes for this process.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.keeper, signal.SIGCONT)
        request = names.read_stop(self.folder, self.seal)
        if request is not None:
            warning, self.grace_s = request
            self._stop(warning)
        if self.phase == "running" and self._lease_is_over():
            self.lease_expired = True
            self._stop(self.plan["warning_signal"])
        if any(rank.code not in (0, 75) for rank in ended):
            self._terminate(float(self.plan["term_grace_s"]))
        if ended and self.phase != "killing" and all(rank.code is not None for rank in self.ranks):
            # The main processes have ended: stop the processes that they left behind.
            self.phase = "leftovers"
            self._terminate(_LEFTOVER_GRACE_S)
        if self.phase == "warned" and self.warner is not None:
            self.warner.look([rank.id for rank in self.ranks if rank.code is None])
        if self.phase == "killing":
            self._kill_all()
        elif self.phase != "running" and time.monotonic() >= self.deadline:
            if self.phase == "warned":
                self._mark_signalled()
                self._terminate(self.grace_s)
            else:
                self.phase = "killing"
                self._kill_all()

    def _starts_late(self) -> bool:
        return names.lease_is_over(self.lease_file)

    def _lease_used_s(self) -> float:
        """Seconds of the lease that have passed since its renewal, in [0, ``lease_s``]."""
        return names.lease_used_s(self.lease_file, float(self.plan["lease_s"]))

    def _lease_is_over(self) -> bool:
        # The file's time shows only *that* the lease was renewed. The age is measured here, so that setting the clock or
        # suspending the machine ends nothing.
        mark = self._lease_mark()
        now = time.monotonic()
        if mark != self.lease_mark and mark >= 0:
            self.lease_mark, self.lease_seen = mark, now
        return now - self.lease_seen > float(self.plan["lease_s"])

    def _lease_mark(self) -> int:
        try:
            return self.lease_file.stat().st_mtime_ns
        except OSError:
            return -1

    # Stopping.

    def _stop(self, warning_signal: str | None) -> None:
        """Begin to stop: warn first if there is a warning signal, else terminate. Never weakens an earlier stop."""
        if warning_signal not in signal.Signals.__members__:
            warning_signal = None
        if self.phase == "running" and warning_signal is not None:
            self.phase = "warned"
            self.deadline = time.monotonic() + self.grace_s
            self.warner = Warner(signal.Signals[warning_signal], self._mark_signalled)
        elif self.phase == "running" or (self.phase == "warned" and warning_signal is None):
            self._mark_signalled()
            self._terminate(self.grace_s)
        elif self.phase == "terminating":
            # It began for another reason, with a grace period of its own.
            self.deadline = min(self.deadline, time.monotonic() + self.grace_s)

    def _terminate(self, grace_s: float) -> None:
        if self.phase not in ("terminating", "killing"):
            self.phase = "terminating"
            self.deadline = time.monotonic() + grace_s
            for info in descendants(os.getpid()):
                signal_process(info.id, signal.SIGTERM)

    def _kill_all(self) -> bool:
        if self.cgroup is not None:
            try:
                self.cgroup.kill()
            except OSError as error:
                # The children can be killed without the group.
                self._note_group_error(error)
        return kill_descendants(self._children_left, _KILL_S)

    def clear_group(self) -> None:
        """Remove the control group after the last process. A group that cannot be removed does not delay the record."""
        if self.cgroup is not None:
            try:
                self.cgroup.clear()
            except OSError as error:
                self._note_group_error(error)

    def _note_group_error(self, error: OSError) -> None:
        if not self.group_failed:
            self.group_failed = True
            print(f"control group: {error}", file=sys.stderr)

    def _mark_signalled(self) -> None:
        """Record that the signal came before the end. The record must outlive this process, not the machine."""
        if not self.stop_signalled and any(rank.code is None for rank in self.ranks):
            self.stop_signalled = True
            try:
                names.mark_signalled(self.folder)
            except OSError as error:
                if not is_disk_full(error):
                    raise

    def kill(self) -> None:
        """Kill all processes at once, after the launch or this supervisor has failed. What they have written is kept."""
        self.phase = "killing"
        while self._kill_all():
            time.sleep(_URGENT_S)
        with contextlib.suppress(OSError):
            self.output.finish(self.ranks)

    # Recording the end.

    def exit_record(self) -> dict[str, Any]:
        """How the attempt ended, after its last process did."""
        code = attempt_exit_code(self.codes)
        outcome, reason, detail, server = "exited", None, "", None
        if code not in (0, 75):
            reason = "disk_full" if self.output.names_full_disk else None
            if self.cgroup is not None and "memory_mib" in self.plan["limits"] and self.cgroup.ran_out_of_memory():
                reason = "out_of_memory"
            detail = "; ".join(f"rank {rank.index}: exit code {rank.code}" for rank in self.ranks if rank.code)
            if self.lease_expired:
                # For the service, which was away, and for its other machines, this server is one that does not answer.
                outcome, server = "lost", self.plan["server"]
                detail = f"the service did not renew its lease for {self.plan['lease_s']} s; {detail}"
        return names.end_record(
            outcome,
            now_s(self.plan),
            exit_code=code,
            reason=reason,
            detail=detail,
            stop_signalled=self.stop_signalled,
            warning=self.warner.outcome if self.warner is not None else None,
            server=server,
        )

    def failure_record(self, reason: str, detail: str) -> dict[str, Any]:
        """The record of an attempt without an exit status: it never ran, or this supervisor failed."""
        outcome = "lost" if self.started else "launch_failed"
        return names.end_record(
            outcome, now_s(self.plan), reason=reason, detail=detail, stop_signalled=self.stop_signalled
        )

    def last_record(self, record: dict[str, Any]) -> dict[str, Any]:
        """What is written as the end, after the last process has ended."""
        return record


def run(supervisor: Supervisor) -> None:
    """Launch, supervise and record the end. In every case no process is left and one ``exit.json`` is written."""
    plan = supervisor.plan
    try:
        supervisor.launch()
        supervisor.supervise()
        supervisor.output.finish(supervisor.ranks)
        record = supervisor.exit_record()
    except StoppedFirst:
        supervisor.kill()
        record = names.end_record("exited", now_s(plan), detail=names.STOPPED_FIRST, stop_signalled=True)
    except CannotLaunch as failure:
        supervisor.kill()
        record = supervisor.failure_record(failure.reason, str(failure))
    except KeeperLost as failure:
        supervisor.kill()
        record = names.end_record(
            "lost", now_s(plan), reason="node_lost", detail=str(failure), stop_signalled=supervisor.stop_signalled
        )
    except Exception as error:
        supervisor.kill()
        full = isinstance(error, OSError) and is_disk_full(error)
        record = supervisor.failure_record("disk_full" if full else "launch_failed", f"supervisor: {error!r}")
        sys.excepthook(type(error), error, error.__traceback__)  # the module traceback takes long to import
    supervisor.clear_group()
    record = supervisor.last_record(record)
    record_end(supervisor.folder, supervisor.lock, supervisor.seal.sealed(names.EXIT, record))


def record_end(folder: Path, lock: int, record: dict[str, Any]) -> None:
    """Write the record, unless the folder with this ``lock`` was deleted: what is in its place holds the end that was told."""
    while not names.is_gone(folder, lock):
        try:
            write_json(folder / names.EXIT, record, reserved=folder / names.RESERVED)
        except OSError as error:
            # The lock stays held, so the attempt counts as alive until its end is recorded.
            print(f"cannot write the exit record yet: {error}", file=sys.stderr)
            time.sleep(_RETRY_S)
        else:
            return


def fill_folder(plan: dict[str, Any], drafted: Path, keeper: int) -> tuple[Path, tuple[int, ...]]:
    """Write all initial files into a draft and give it its final name; returns the folder, and its wake-up FIFO if it has one."""
    try:
        me, parent = process_info(os.getpid()), process_info(keeper)
        assert me is not None
        if parent is None:
            raise KeeperLost("the parent of its supervisor was killed")
        identity = {"pid": me.id.pid, "start_ticks": me.id.start_ticks, "boot_id": boot_id(), "at_s": now_s(plan)}
        identity |= {"keeper": list(parent.id), "cgroup": plan["cgroup"], "master_port": plan["master_port"]}
        identity["server"] = plan["server"]
        (drafted / names.OUTPUT).mkdir(mode=0o700)
        (drafted / names.PROGRESS).touch(mode=0o600)
        if account := plan["account"]:
            # The user of the job passes through this folder, and owns its progress file and, below, its working folder.
            os.chown(drafted, -1, account["gid"])
            drafted.chmod(_ENTERED_BY_GROUP)
            os.chown(drafted / names.PROGRESS, account["uid"], account["gid"])
        reserve(drafted / names.RESERVED, _EXIT_RECORD_BYTES)
        wakeups: tuple[int, ...] = ()
        if "nodes" in plan:
            # A FIFO connects no machines, and not every shared file system has one.
            identity["gpus"] = plan["gpus"]
        else:
            os.mkfifo(drafted / names.WAKE, 0o600)
            # Both ends are open, so the FIFO never reports an end of file when an executor closes it.
            wakeups = (os.open(drafted / names.WAKE, os.O_RDWR | os.O_NONBLOCK),)
        write_json(drafted / names.SUPERVISOR, Seal(plan["seal"]).sealed(names.SUPERVISOR, identity))
        return names.publish(drafted, plan["attempt"]), wakeups
    except BaseException:
        names.delete_draft(drafted)
        raise


def supervise(plan: dict[str, Any], drafted: Path, keeper: int, kind: type[Supervisor]) -> int:
    """Live until the attempt has ended. Returns this process' exit code."""
    # A signal to the process group of the keeper does not reach this process.
    os.setsid()
    die_with_parent(signal.SIGCHLD)  # wakes the supervisor, which then ends the job
    try:
        folder, wakeups = fill_folder(plan, drafted, keeper)
    except names.Taken:
        return EXIT_TAKEN
    except OSError as error:
        return _exit_code(error)
    redirect_standard_streams(folder / "supervisor.log")
    os.chdir(folder)
    become_subreaper()
    run(kind(plan, folder, keeper, (prepare_signals(), *wakeups)))
    return 0


def _exit_code(error: OSError) -> int:
    if is_disk_full(error):
        return EXIT_DISK_FULL
    number = error.errno or 0
    return EXIT_ERRNO + number if number in range(1, EXIT_ERRNO) else 1


def why_not_begun(code: int) -> str:
    """What the exit code of a supervisor says that has made no folder."""
    if code - EXIT_ERRNO in range(1, EXIT_ERRNO):
        return f"the folder of the attempt could not be made: {os.strerror(code - EXIT_ERRNO)}"
    return f"its supervisor ended with {code} before it began"


def separate() -> int:
    """Separate this process from the one that started it, and hide its memory; returns the umask that it had."""
    close_inherited()
    spare_as_victim()
    # Other programs of this user must not read the plan here: it holds secrets and the key of the seals. But the supervisor, its
    # keeper and the service must see each other.
    if not proc_hides():
        forbid_tracing()
    return os.umask(0o077)


def read_plan() -> dict[str, Any]:
    """The plan on standard input, after this process has been separated from the one that started it."""
    umask = separate()
    plan: dict[str, Any] = json.load(sys.stdin)
    return plan | {"umask": umask}


def begin(plan: dict[str, Any], kind: type[Supervisor] = Supervisor, wait: Callable[[int], int] = wait_for) -> int:
    """Become the keeper of a supervisor, for whose end it waits with ``wait``. Returns this process' exit code."""
    become_subreaper()
    try:
        # The lock is taken before the fork, so that both processes hold it.
        drafted, _ = names.draft(Path(plan["attempts_dir"]), plan["attempt"])
    except OSError as error:
        return _exit_code(error)
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        return supervise(plan, drafted, keeper, kind)
    return keep(child, Path(plan["cgroup"]) if plan["cgroup"] is not None else None, wait)


def main() -> int:
    """Run the attempt that the plan on standard input describes. Returns this process' exit code."""
    os.setsid()
    return begin(read_plan())
