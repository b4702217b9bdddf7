"""The lock of a data folder. The kernel frees it when the process that holds it ends, however it ends.

A standby on the same machine so learns at once that the leader has died, and need not wait until its lease expires. The file
holds the id of the machine's boot: what another kernel says of the lock means nothing.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.runtime.processes import boot_id
from service.runtime.untrusted import open_file, read_small
from service.server.startup import HOST_ID_FILE, StartError

LOCK_FILE = "serve.lock"

LOOKS = 5
LOOK_S = 0.02
"""The lock is tried so often, with such pauses: a standby that looks at it holds it for an instant."""

_BYTES_MAX = 256


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Lock the data folder, until the process ends. Raises StartError if another service holds the lock."""
    descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for look in range(LOOKS):
            time.sleep(LOOK_S * (look > 0))
            if _lock(descriptor, fcntl.LOCK_EX):
                break
        else:
            raise StartError(f"a service is running on {data_dir} already")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, boot_id().encode(), 0)
        yield
    finally:
        os.close(descriptor)


def has_ended(data_dir: Path, host: str) -> bool:
    """Whether the last process that served this data folder has ended for certain.

    False where that cannot be known: the folder is not that of ``host``, cannot be read, or was last served by another machine,
    or before a reboot.
    """
    try:
        if read_small(open_file(data_dir / HOST_ID_FILE), _BYTES_MAX).strip() != host.encode():
            return False
        descriptor = open_file(data_dir / LOCK_FILE)
    except OSError:
        return False
    try:
        # A process writes its boot's id once it has the lock, so one that starts meanwhile is no older than what is read.
        return os.pread(descriptor, _BYTES_MAX, 0) == boot_id().encode() and _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
