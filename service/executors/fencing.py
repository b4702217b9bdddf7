"""Refuses commands of a former leader: the highest fencing token seen is kept in a file under a lock."""

import contextlib
import errno
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from service.runtime.untrusted import open_file

_PAUSE_S = 0.01


class Fence:
    """One file per data folder, shared by all executors on it. Tokens only grow.

    ``wait_s``: longest time to wait for another one that holds it. In a shared folder that may be a machine without its network.
    """

    def __init__(self, path: Path, wait_s: float = math.inf) -> None:
        self._path = path
        self._wait_s = wait_s
        self._mine = threading.Lock()
        self._highest = 0
        self._descriptor: int | None = None
        """The open file while the fence is held."""

    @contextlib.contextmanager
    def held(self) -> Iterator["Fence"]:
        """Keep others from raising the token while commands that were admitted are carried out.

        Raises OSError, and of these TimeoutError if it is held elsewhere for longer than ``wait_s``.
        """
        until_s = time.monotonic() + self._wait_s
        if not self._mine.acquire(timeout=min(self._wait_s, threading.TIMEOUT_MAX)):
            raise self._timeout()
        try:
            with self._held(until_s):
                yield self
        finally:
            self._mine.release()

    @contextlib.contextmanager
    def _held(self, until_s: float) -> Iterator[None]:
        descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(descriptor, until_s)
            text = os.pread(descriptor, 32, 0).strip()
            on_disk = int(text) if text.isdigit() else 0
            self._descriptor = descriptor
            if self._highest > on_disk:
                self._store()
            self._highest = max(self._highest, on_disk)
            yield
        finally:
            self._descriptor = None
            os.close(descriptor)

    def _store(self) -> None:
        """Write the highest token, before a command with it: its leader may be killed while it holds the fence."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep commands from being carried out
                os.pwrite(self._descriptor, b"%-31d\n" % self._highest, 0)

    def _lock(self, descriptor: int, until_s: float) -> None:
        if until_s == math.inf:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise self._timeout() from None
                time.sleep(_PAUSE_S)
            else:
                return

    def _timeout(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"locked for longer than {self._wait_s:g} s", str(self._path))

    def admits(self, token: int) -> bool:
        """Whether a command with this token may be carried out. A higher token becomes the new minimum."""
        if token < self._highest:
            return False
        if token > self._highest:
            self._highest = token
            self._store()
        return True
