"""Opens files in places where a job can write: without following a link, and without waiting for a FIFO or a device.

A job may have put anything in place of a file. A path is walked from one folder's descriptor to the next, so a link in its middle
is refused too. Standard library only: the supervisor uses it.
"""

import errno
import os
import stat
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_folder(name: str | Path, parent: int | None = None) -> int:
    """A descriptor of the folder ``name`` (relative to the descriptor ``parent``). Raises OSError for anything else.

    The owner's permissions are restored if they were removed, so that a job cannot lock its own folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | _CAREFUL
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | _CAREFUL, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{place}", PRIVATE_FOLDER)  # noqa: PTH101 a descriptor, no path
        finally:
            os.close(place)
        return os.open(name, flags, dir_fd=parent)


def open_file(name: str | Path, flags: int = os.O_RDONLY, parent: int | None = None) -> int:
    """A descriptor of the regular file ``name`` (relative to the descriptor ``parent``). Raises OSError for anything else.

    The owner's permissions are restored if they were removed, so that a job cannot lock its own files.
    """
    try:
        descriptor = os.open(name, flags | _CAREFUL, PRIVATE_FILE, dir_fd=parent)
    except PermissionError:
        if not _unlocked(name, parent):
            raise
        descriptor = os.open(name, flags | _CAREFUL, PRIVATE_FILE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(name))
    return descriptor


def _unlocked(name: str | Path, parent: int | None) -> bool:
    """Restore the permissions of a regular file of this process' user; False if it is none, or they cannot be restored."""
    try:
        place = os.open(name, os.O_PATH | _CAREFUL, dir_fd=parent)
    except OSError:
        return False
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        os.chmod(f"/proc/self/fd/{place}", PRIVATE_FILE)  # noqa: PTH101 a descriptor, no path
    except OSError:
        return False
    finally:
        os.close(place)
    return True


def open_below(folder: Path, *parts: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file at ``parts`` below ``folder``, whose parent folders are trusted. Raises OSError."""
    at = open_folder(folder)
    try:
        for part in parts[:-1]:
            inner = open_folder(part, at)
            os.close(at)
            at = inner
        return open_file(parts[-1], flags, at)
    finally:
        os.close(at)


def read_small(descriptor: int, bytes_max: int) -> bytes:
    """The content of an open file, and close it. Raises OSError, also if the file is longer than ``bytes_max``."""
    with open(descriptor, "rb", buffering=0) as stream:
        content = b""
        while len(content) <= bytes_max:
            part = stream.read(bytes_max + 1 - len(content))
            if not part:
                return content
            content += part
    raise OSError(errno.EFBIG, f"longer than {bytes_max} bytes")
