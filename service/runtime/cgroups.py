"""Control groups (cgroup v2), each with the processes of one attempt. Linux only.

The kernel puts a process into the group of its parent, whatever its session, environment or output. So the group answers which
processes an attempt has, and ``cgroup.kill`` ends them all at once, also while they fork. The supervisor imports this module, so
it uses the standard library only.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

_PROC_SELF = Path("/proc/self")
_GONE = (errno.ENOENT, errno.ENODEV)
"""Errors of reading and writing the files of a group that has been removed."""
_PAUSE_S = 0.01
_FOLDER_MODE, _FILE_MODE = 0o755, 0o644

_CPU_PERIOD_US = 100_000
DELEGATED = "sooner"
"""The name of a service's own group by which the group above it is known to be delegated too (``DelegateSubgroup=``)."""
CONTROLLERS = ("cpu", "memory")

T = TypeVar("T")


class CgroupsUnavailable(Exception):
    """This process may not make groups; the text says why."""


class Cgroup(NamedTuple):
    """One group. ``path`` is its folder; a group without a folder has no processes."""

    path: Path

    def create(self) -> None:
        """Make the group. Raises OSError."""
        self.path.mkdir(exist_ok=True)

    def limit(self, cpus: int | None, memory_mib: int | None) -> None:
        """Let all processes of the group together use at most so many CPUs and so much memory. Raises OSError.

        Beyond the memory the kernel kills all of them at once: a gang without one of its processes would hang.
        """
        if cpus is not None:
            self._access("cpu.max", lambda file: file.write_text(f"{cpus * _CPU_PERIOD_US} {_CPU_PERIOD_US}"))
        if memory_mib is not None:
            self._access("memory.max", lambda file: file.write_text(str(memory_mib << 20)))
            self._access("memory.oom.group", lambda file: file.write_text("1"))
            # Else the group could go on in the swap. A kernel without swap has no such file.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                self._access("memory.swap.max", lambda file: file.write_text("0"))

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed processes of the group because it used more memory than it may."""
        try:
            events = self._access("memory.events", Path.read_text)
        except OSError:
            return False
        counts = dict(line.split() for line in events.splitlines() if len(line.split()) == 2)
        return counts.get("oom_kill", "0") != "0"

    def add(self, pid: int) -> None:
        """Move a process into the group. What it forks afterwards is in the group as well. Raises OSError."""
        self._access("cgroup.procs", lambda file: file.write_text(str(pid)))

    def kill(self) -> None:
        """Send SIGKILL to every process of the group and of the groups below it. Raises OSError."""
        try:
            self._access("cgroup.kill", lambda file: file.write_text("1"))
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def is_empty(self) -> bool:
        """Whether no process runs in the group or below it. Raises OSError if that cannot be known."""
        try:
            events = self._access("cgroup.events", Path.read_text)
        except OSError as error:
            if error.errno in _GONE:
                return True
            raise
        return "populated 0" in events.splitlines()

    def clear(self) -> None:
        """Kill until no process is left, then remove the group. Raises OSError."""
        while not self.is_empty():
            self.kill()
            time.sleep(_PAUSE_S)
        self.remove()

    def remove(self) -> None:
        """Remove an empty group and the groups that its processes made below it. A group that has processes again stays."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # noqa: PTH106 os.walk gives strings

    def _access(self, name: str, action: Callable[[Path], T]) -> T:
        """Do something with a file of the group. A job of the same user may have taken the rights away: they are restored."""
        file = self.path / name
        try:
            return action(file)
        except PermissionError:
            self.path.chmod(_FOLDER_MODE)
            file.chmod(_FILE_MODE)
            return action(file)


def usable_parent() -> Path:
    """The folder below which this process may make groups. Raises :class:`CgroupsUnavailable`.

    That is its own group, or the one above it if its own is named :data:`DELEGATED`.
    """
    own = _own_group()
    if own.name == DELEGATED and os.access(own.parent / "cgroup.procs", os.W_OK):
        own = own.parent
    trial = Cgroup(own / f"sooner-trial-{os.getpid()}")
    try:
        if not os.access(own / "cgroup.procs", os.W_OK):
            # Moving a process needs this right on the group that it leaves.
            raise CgroupsUnavailable(f"{own}/cgroup.procs may not be written")
        trial.create()
        try:
            if (trial.path / "cgroup.type").read_text().strip() != "domain":
                raise CgroupsUnavailable(f"{own} takes threads only")
            if not (trial.path / "cgroup.kill").exists():
                raise CgroupsUnavailable("this kernel has no cgroup.kill (Linux 5.14)")
        finally:
            trial.remove()
    except OSError as error:
        raise CgroupsUnavailable(f"{own}: {error.strerror}") from error
    return own


def limits_below(parent: Path) -> tuple[frozenset[str], str]:
    """The controllers that limit groups below the folder, switched on where that is possible; and why one is missing ("": none).

    A group with processes of its own, other than the root, cannot pass controllers on.
    """
    try:
        switched_on = frozenset((parent / "cgroup.subtree_control").read_text().split())
        had = (parent / "cgroup.controllers").read_text().split()
    except OSError as error:
        return frozenset(), f"{error.filename}: {error.strerror}"
    absent = [name for name in CONTROLLERS if name not in had]
    reason = f"{parent} has no controller {' and '.join(absent)}" if absent else ""
    for name in CONTROLLERS:
        if name in had and name not in switched_on:
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError as error:
                busy = f"it has processes of its own; the unit needs DelegateSubgroup={DELEGATED}"
                reason = f"{parent}: {busy if error.errno == errno.EBUSY else error.strerror}"
            else:
                switched_on |= {name}
    return switched_on & frozenset(CONTROLLERS), reason


def is_cgroup_path(path: Path) -> bool:
    """Whether a path lies in the cgroup2 file system, in which nobody can make files or links."""
    mount = _cgroup2_mount()
    return mount is not None and ".." not in path.parts and path.is_relative_to(mount[1])


def _own_group() -> Path:
    mount = _cgroup2_mount()
    if mount is None:
        raise CgroupsUnavailable("no cgroup2 file system is mounted")
    root, folder = mount
    lines = (_PROC_SELF / "cgroup").read_text().splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    # A mount may show a part of the hierarchy only; outside a namespace's root the path starts with "..".
    if not Path(own).is_relative_to(root) or ".." in Path(own).parts:
        raise CgroupsUnavailable(f"the mount at {folder} does not show the group {own} of this process")
    return folder / Path(own).relative_to(root)


def _cgroup2_mount() -> tuple[str, Path] | None:
    """The part of the hierarchy that is mounted, and where."""
    for line in (_PROC_SELF / "mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, folder = place.split()[3:5]
            return _unescaped(root), Path(_unescaped(folder))
    return None


def _unescaped(path: str) -> str:
    """The kernel writes spaces and backslashes of a path as octal numbers."""
    return path.encode().decode("unicode_escape").encode("latin-1").decode()
