"""The real service on a machine whose clock is set while it runs: SIGUSR1 sets it forward by an hour, SIGUSR2 back by one.

Nobody may set the clock of the machine that tests run on, so what reads it is replaced before the service is imported: the
wall clock of Python, and the dates of APScheduler. The kernel's clock since boot, SQLite's own and that of the jobs stay true.
"""

import datetime as datetimes
import importlib
import signal
import sys
import time
from typing import Any

HOUR_S = 3600.0
_true_s = time.time
_offset = {"s": 0.0}


def wall_s() -> float:
    """What the machine's clock shows."""
    return _true_s() + _offset["s"]


class Shown(datetimes.datetime):
    """Dates by that clock."""

    @classmethod
    def now(cls, tz: Any = None) -> datetimes.datetime:  # type: ignore[override]
        return datetimes.datetime.fromtimestamp(wall_s(), tz)


def _set(by_s: float) -> None:
    _offset["s"] += by_s


if __name__ == "__main__":
    time.time = wall_s
    for module in ("schedulers.base", "triggers.interval", "executors.base", "triggers.date"):
        importlib.import_module(f"apscheduler.{module}").datetime = Shown  # type: ignore[attr-defined]
    from service.config.settings import load_settings
    from service.server.app import serve

    signal.signal(signal.SIGUSR1, lambda *_: _set(HOUR_S))
    signal.signal(signal.SIGUSR2, lambda *_: _set(-HOUR_S))
    sys.exit(serve(load_settings()))
