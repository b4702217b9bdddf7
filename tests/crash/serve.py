"""The real service, which kills itself at the n-th passage of a crash point: ``python -m tests.crash.serve committed 2``."""

import os
import signal
import sys

from service.runtime.garbage import uncollected

with uncollected():
    from service.config.settings import load_settings
    from service.engine.crash_points import CrashPoint, on_reached
    from service.server.app import serve
    from tests.crash.dying import Death, Reaper


def die(_: CrashPoint) -> None:
    """No goodbye: nothing is flushed, closed or released."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    on_reached(Reaper([Death(CrashPoint(sys.argv[1]), int(sys.argv[2]))], die))
    sys.exit(serve(load_settings()))
