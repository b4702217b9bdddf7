"""Refuses commands of a former leader: the highest fencing token seen is kept in a file under a lock."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from service.runtime.untrusted import open_file


class Fence:
    """One file per data folder, shared by all executors on it. Tokens only grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._highest = 0

    @contextlib.contextmanager
    def held(self) -> Iterator["Fence"]:
        """Keep others from raising the token while commands that were admitted are carried out."""
        descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = os.pread(descriptor, 32, 0).strip()
            on_disk = int(text) if text.isdigit() else 0
            self._highest = max(self._highest, on_disk)
            try:
                yield self
            finally:
                if self._highest > on_disk:
                    with contextlib.suppress(OSError):  # a full disk must not keep commands from being carried out
                        os.pwrite(descriptor, b"%-31d\n" % self._highest, 0)
        finally:
            os.close(descriptor)

    def admits(self, token: int) -> bool:
        """Whether a command with this token may be carried out. A higher token becomes the new minimum."""
        if token < self._highest:
            return False
        self._highest = token
        return True
