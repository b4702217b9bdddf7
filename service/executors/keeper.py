"""The parent of a supervisor: it outlives the supervisor, and ends what the supervisor leaves.

It is a child subreaper: when the supervisor dies, everything that the job has forked gets this parent, whatever its session,
output or environment. It holds the lock of the attempt's folder until no process is left. Until then it sleeps in one system
call, and shares its memory with the supervisor, which is its fork. Standard library only.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from service.executors.ranks import IGNORED, reap, redirect_standard_streams
from service.runtime.cgroups import Cgroup
from service.runtime.processes import kill_descendants

CONTINUE_S = 0.05
"""Pause before a suspended supervisor is continued, so that a job that suspends it again takes no processor time."""
_KILL_S = 0.05
_PRIORITY_MAX = -20


def keep(supervisor: int, cgroup: Path | None, wait: Callable[[int], int]) -> int:
    """Wait with ``wait`` until the supervisor ends, kill what it left, and return its exit code (128 + n after signal n)."""
    redirect_standard_streams(Path(os.devnull))
    for signum in (*IGNORED, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(wait(supervisor))
    if code != 0:
        # A job that forks all the time must not get all of the processor.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY_MAX)
    group = Cgroup(cgroup) if cgroup is not None else None
    if group is not None:
        # The children can be killed without the group.
        with contextlib.suppress(OSError):
            group.kill()
    while kill_descendants(_children_left, _KILL_S):
        time.sleep(_KILL_S)
    if group is not None:
        with contextlib.suppress(OSError):
            group.clear()
    return code if code >= 0 else 128 - code


def wait_for(supervisor: int) -> int:
    """The status with which the supervisor ended. A job may suspend it: it is continued at once."""
    while True:
        _, status = os.waitpid(supervisor, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return status
        time.sleep(CONTINUE_S)
        os.kill(supervisor, signal.SIGCONT)


def _children_left() -> bool:
    return reap({})[1]
