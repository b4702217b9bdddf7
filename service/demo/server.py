"""The demo's service: a process with a temporary folder. The demo ends both."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from service.api.token import load_or_create
from service.client import Client
from service.config.environment import ENV_PREFIX
from service.executors.folder import is_supervised, write_stop
from service.executors.keys import AttemptKeys

RESTART_S = 1.0
"""Duration of a restart of the demo's jobs: Python and numpy start in about a second."""

CLUSTER = """schema: sooner.cluster/1
name: demo (pretended GPUs)
virtual: true
servers:
  - {count: 2, gpus: 4, gpu_type: virtual, gpu_speed: 1.0}
"""

SETTINGS = {
    "HOST": "127.0.0.1",
    "PORT": "0",
    "EXECUTOR": "local",
    "POLICY": "asrpt",
    "PREEMPTION": "guided",
    "RESCHEDULE_PERIOD_S": "1",
    "POLL_PERIOD_S": "0.1",
    "ATTEMPT_DURATION_S_MIN": "2",
    "RESTART_S": str(RESTART_S),
    "STOP_GRACE_S": "5",
    # If the demo is killed, its jobs end soon after.
    "LEASE_S": "30",
    # The demo starts trainings itself; another one would slow it down.
    "RETRAIN_JOBS_MIN": "1000000",
}
"""Shorter times than the defaults. All other settings have their defaults."""

_START_S = 60.0
_STOP_S = 15.0
_POLL_S = 0.05
_LISTENING = re.compile(r"listening on (http://\S+)")
_LOG_LINES = 15


class ServerError(RuntimeError):
    """The service did not start, or ended; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of the demo's service."""

    folder: Path

    @property
    def data_dir(self) -> Path:
        """Setting data_dir."""
        return self.folder / "data"

    @property
    def database_url(self) -> str:
        """Setting database_url."""
        return f"sqlite:///{self.data_dir / 'sooner.db'}"

    @property
    def cluster_file(self) -> Path:
        """Setting cluster."""
        return self.folder / "cluster.yaml"

    @property
    def log(self) -> Path:
        """The output of the service."""
        return self.folder / "service.log"


@contextmanager
def temporary_place(*, keep: bool = False) -> Iterator[Place]:
    """A folder that is deleted afterwards unless ``keep``. Every process that still works in it is ended."""
    place = Place(Path(tempfile.mkdtemp(prefix="sooner-demo-")))
    try:
        place.data_dir.mkdir(mode=0o700)
        place.cluster_file.write_text(CLUSTER, encoding="utf-8")
        yield place
    finally:
        # A second Ctrl-C must not stop the cleaning up, whose waits are bounded.
        with signals_handled(signal.SIG_IGN):
            _end_attempts(place.data_dir / "attempts")
            _end_processes(place.folder)
            if not keep:
                _remove(place.folder)


@contextmanager
def running_service(place: Place) -> Iterator[Client]:
    """The service, and a client of it. Raises :class:`ServerError` if it does not come up."""
    with place.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve"],
            cwd=place.folder,
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches only the demo, which then stops the service.
            start_new_session=True,
        )
    try:
        url = _await_url(process, place)
        token = load_or_create(place.data_dir)
        with Client(url, token, proven=True) as client:
            _await_ready(process, client, place)
            yield client
    finally:
        with signals_handled(signal.SIG_IGN):
            _end(process)


def _environment(place: Place) -> dict[str, str]:
    """This process's environment without its own settings of Sooner, and the demo's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    ours = {
        **SETTINGS,
        "DATA_DIR": str(place.data_dir),
        "DATABASE_URL": place.database_url,
        "CLUSTER": str(place.cluster_file),
    }
    return inherited | {ENV_PREFIX + name: value for name, value in ours.items()}


def _await_url(process: "subprocess.Popen[bytes]", place: Place) -> str:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        found = _LISTENING.search(place.log.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return found.group(1)
        _check_alive(process, place)
        time.sleep(_POLL_S)
    raise ServerError(f"the service does not listen after {_START_S:g} s:\n{log_tail(place)}")


def _await_ready(process: "subprocess.Popen[bytes]", client: Client, place: Place) -> None:
    deadline_s = time.monotonic() + _START_S
    while not client.ready():
        _check_alive(process, place)
        if time.monotonic() > deadline_s:
            raise ServerError(f"the service is not ready after {_START_S:g} s:\n{log_tail(place)}")
        time.sleep(_POLL_S)


def _check_alive(process: "subprocess.Popen[bytes]", place: Place) -> None:
    if process.poll() is not None:
        raise ServerError(f"the service ended with exit code {process.returncode}:\n{log_tail(place)}")


def log_tail(place: Place) -> str:
    """The last lines that the service wrote."""
    lines = place.log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LOG_LINES:])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for a process that does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_attempts(attempts: Path) -> None:
    """Stop attempts, whose supervisors outlive the service, and wait until all have ended."""
    if not attempts.is_dir():
        return
    asked: set[Path] = set()
    keys = AttemptKeys(attempts.parent)
    deadline_s = time.monotonic() + _STOP_S
    while time.monotonic() < deadline_s:
        alive = [folder for folder in attempts.iterdir() if folder.is_dir() and is_supervised(folder)]
        if not alive:
            return
        for folder in alive:
            if folder not in asked:
                asked.add(folder)
                write_stop(folder, None, 1.0, keys.seal(folder.name))
        time.sleep(_POLL_S)


def _end_processes(folder: Path) -> None:
    """Kill processes that use this folder: a training, or ranks of a killed supervisor."""
    left = [process for process in psutil.process_iter() if process.pid != os.getpid() and _names(process, folder)]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, _STOP_S)


def _names(process: psutil.Process, folder: Path) -> bool:
    """Whether a process of this user has the folder in its command or works in it."""
    with suppress(psutil.Error):
        if process.uids().real == os.getuid():
            return any(str(folder) in word for word in process.cmdline()) or process.cwd().startswith(str(folder))
    return False


def _remove(folder: Path) -> None:
    """Remove the folder; a dying process may still write a last file into it."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_POLL_S)


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and the closing of the terminal by ``handler`` within the block."""
    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)
