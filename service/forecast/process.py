"""Forecasts made in a process of their own: the loop goes on undisturbed while somebody looks ahead.

The process starts with the first forecast and stays. It ends when this one does, however that comes about: its input ends, and
it looks for its parent while it computes.
"""

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from policies.base import Policy
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast
from service.forecast.worker import Answer, Question, read_message, write_message
from service.history.snapshot import WorldSnapshot

GRACE_S = 20.0
"""Beyond its time limit: a start on a busy machine, and one decision that takes long. Then the process is taken to hang."""


class ForecastProcess:
    """Implements :data:`service.forecast.forecaster.Compute`. Callers take turns; safe to call from several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._closed = False

    def __call__(
        self,
        world: WorldSnapshot,
        policy: Policy[Any],
        dump: dict[str, Any],
        options: ForecastOptions,
        timeout_s: float,
    ) -> Forecast:
        """Make a forecast. Raises :class:`NoForecast`, also where the process died."""
        question = pickle.dumps(Question(world, policy, dump, options, timeout_s))
        with self._turn:
            answer = self._ask(question, timeout_s + GRACE_S)
        if isinstance(answer, str):
            raise NoForecast(answer)
        return answer

    def close(self) -> None:
        """End the process; nothing starts afterwards, and a forecast under way is given up."""
        with self._starting:
            self._closed = True
            process = self._process
        if process is not None:
            _end(process)

    def _ask(self, question: bytes, patience_s: float) -> Answer:
        process = self._running()
        watchdog = threading.Timer(patience_s, process.kill)
        watchdog.daemon = True
        watchdog.start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_message(process.stdin, question)
            message = read_message(process.stdout)
        except (OSError, ValueError):
            message = None
        finally:
            watchdog.cancel()
        if message is None:
            _end(process)
            return "The process that makes forecasts has ended; ask again."
        answer: Answer = pickle.loads(message)  # noqa: S301 (our own child)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._closed:
                raise NoForecast("The service is shutting down.")
            if self._process is not None and self._process.poll() is not None:
                _end(self._process)
                self._process = None
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "service.forecast.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # It needs nothing of the service's settings, and nobody should take it for a job of this service.
                    env={name: value for name, value in os.environ.items() if not name.startswith("SOONER_")},
                    start_new_session=True,
                )
            return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and close both pipes (a reader in another thread sees their end first)."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was never sent cannot be sent any more
                pipe.close()
