"""Programs that try to outlive their attempts: ``nasty_program.py NAME FOLDER``.

Each creates ``FOLDER/NAME.ready`` when the processes that it leaves are there. Each of these holds a shared lock on
``FOLDER/NAME.alive``, or has that path among its arguments.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_FOREVER_S = 3600.0
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PTRACE_TRACEME = 15, 36, 0
_libc = ctypes.CDLL(None)
NASTY: dict[str, Callable[[], None]] = {}
NAME, FOLDER = (sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 1 else ("", Path())


def nasty(program: Callable[[], None]) -> Callable[[], None]:
    """Enter a program under its name."""
    NASTY[program.__name__] = program
    return program


def ready() -> None:
    (FOLDER / f"{NAME}.ready").touch()


def rest() -> None:
    ready()
    while True:
        time.sleep(_FOREVER_S)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def quiet() -> None:
    """No output to the attempt's log, and another folder."""
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def in_daemon(then: Callable[[], None]) -> None:
    """Run ``then`` in a process of another session whose parent has ended."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            quiet()
            then()
        os._exit(0)
    os.waitpid(child, 0)


def wipe() -> None:
    """Become a process without an environment; the lock is inherited."""
    code = "import sys, time; open(sys.argv[1] + '.ready', 'w').close(); time.sleep(3600)"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(FOLDER / NAME)], {})


def hop() -> None:
    """Another process and another session all the time."""
    ready()
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()


def kill(*pids: int, signum: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def supervisors() -> tuple[int, int]:
    """The keeper and the supervisor: killed in this order by a program that wants no time between."""
    return parent_of(os.getppid()), os.getppid()


def when_ready(then: Callable[[], None]) -> None:
    """Go on when the processes that are left behind are there, and the start was recorded."""
    started = attempt_folder() / "started.json"
    while not ((FOLDER / f"{NAME}.ready").exists() and started.exists()):
        time.sleep(0.01)
    then()


def attempt_folder() -> Path:
    return Path(os.environ["SOONER_PROGRESS_FILE"]).parent


@nasty
def daemon() -> None:
    in_daemon(rest)
    rest()


@nasty
def ends_before_its_daemon() -> None:
    in_daemon(rest)
    when_ready(sys.exit)


@nasty
def nested_daemons() -> None:
    in_daemon(lambda: in_daemon(lambda: in_daemon(rest)))
    rest()


@nasty
def orphans() -> None:
    for _ in range(20):
        in_daemon(lambda: time.sleep(_FOREVER_S))
    rest()


@nasty
def ignores_signals() -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    rest()


@nasty
def wiped_environment() -> None:
    in_daemon(wipe)
    rest()


@nasty
def another_title() -> None:
    """As setproctitle does: the name and the environment that /proc shows are overwritten."""
    _libc.prctl(_PR_SET_NAME, b"kworker/0:0", 0, 0, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, last = int(fields[47]), int(fields[48])
    ctypes.memset(first, 0, last - first)
    in_daemon(rest)
    rest()


@nasty
def closes_everything() -> None:
    code = "import time; time.sleep(3600)"

    def close_and_become() -> None:
        os.closerange(0, 1024)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(FOLDER / f"{NAME}.alive")], {})

    in_daemon(close_and_become)
    rest()


@nasty
def spawned() -> None:
    """By posix_spawn, which uses vfork."""
    for _ in range(5):
        os.posix_spawn("/bin/sleep", ["sleep", str(_FOREVER_S)], {}, setsid=True)
    rest()


@nasty
def forks_all_the_time() -> None:
    in_daemon(hop)
    rest()


@nasty
def fork_storm() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(4):
        os.fork()
    ready()
    while True:
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        time.sleep(0.01)


@nasty
def suspends_its_supervisor() -> None:
    kill(os.getppid(), signum=signal.SIGSTOP)
    rest()


@nasty
def suspends_both_all_the_time() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    both = supervisors()
    ready()
    while True:
        kill(*both, signum=signal.SIGSTOP)
        time.sleep(0.0005)


@nasty
def kills_its_supervisor() -> None:
    in_daemon(wipe)
    when_ready(lambda: kill(os.getppid()))


@nasty
def kills_the_keeper() -> None:
    in_daemon(wipe)
    when_ready(lambda: kill(supervisors()[0]))
    rest()


@nasty
def kills_both() -> None:
    in_daemon(wipe)
    when_ready(lambda: kill(*supervisors()))


@nasty
def kills_both_and_forks_on() -> None:
    in_daemon(hop)
    when_ready(lambda: kill(*supervisors()))


@nasty
def takes_the_lock() -> None:
    """The lock of the attempt's folder, as soon as both are dead."""
    lock = os.open(attempt_folder() / "lock", os.O_RDONLY)

    def take() -> None:
        ready()
        fcntl.flock(lock, fcntl.LOCK_SH)
        time.sleep(_FOREVER_S)

    in_daemon(take)
    when_ready(lambda: kill(*supervisors()))


@nasty
def leaves_its_group() -> None:
    """Only root may."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            with contextlib.suppress(OSError):
                Path(line.split()[4], "cgroup.procs").write_text("0")
    in_daemon(wipe)
    when_ready(lambda: kill(*supervisors()))


@nasty
def suspends_itself() -> None:
    in_daemon(rest)
    when_ready(lambda: kill(os.getpid(), signum=signal.SIGSTOP))


@nasty
def is_a_subreaper() -> None:
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    in_daemon(wipe)
    rest()


@nasty
def is_traced() -> None:
    if os.fork() == 0:
        _libc.ptrace(_PTRACE_TRACEME, 0, None, None)
        kill(os.getpid(), signum=signal.SIGSTOP)
    rest()


@nasty
def ends_its_main_thread() -> None:
    threading.Thread(target=rest).start()
    _libc.pthread_exit(None)


@nasty
def deletes_its_folder() -> None:
    in_daemon(wipe)
    when_ready(lambda: shutil.rmtree(attempt_folder(), ignore_errors=True))
    rest()


@nasty
def forges_its_records() -> None:
    in_daemon(wipe)

    def forge() -> None:
        for name in ("supervisor.json", "ranks.json"):
            (attempt_folder() / name).write_text('{"pid": 1, "start_ticks": 1, "keeper": [1, 1], "cgroup": "/"}')
        kill(*supervisors())

    when_ready(forge)


if __name__ == "__main__":
    alive = os.open(FOLDER / f"{NAME}.alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive, fcntl.LOCK_SH)
    os.set_inheritable(alive, True)
    NASTY[NAME]()
