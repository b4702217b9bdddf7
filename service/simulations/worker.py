"""The program of the process in which the service simulates (:mod:`service.simulations.process`).

It reads one pickled question from standard input, and writes JSON messages to standard output: progress, and at the end the
report or the reason why there is none. It has no threads, so it forks a worker for each core that it may use.
"""

import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from policies.options import OptionError
from service.config.cluster_file import ClusterFileError
from service.config.settings import Settings
from service.db.session import open_database
from service.forecast.forecast import ForecastOptions, NoForecast
from service.forecast.whatif import outlooks
from service.history.cycles import CycleSnapshot
from service.runtime.child import read_message, write_message
from service.runtime.workers import WorkerLost, with_trace
from service.sim.drive import SimulationStuck
from service.sim.predictors import PredictorNameError
from service.sim.workloads.files import WorkloadError
from service.simulations.course import Course
from service.simulations.past import Past, prepare_past, read_past
from service.simulations.present import JOBS_MAX, candidates_of, outlook_report
from service.simulations.request import SimulationRequest, machines_of
from service.simulations.runs import Finished, Plan, Progress
from service.simulations.sweep import Failed, sweep
from service.simulations.words import nothing_to_run

PROGRESS_EVERY_S = 0.5


class NoReport(Exception):
    """There is no report. The message says why."""


_REFUSALS = (
    NoReport,
    NoForecast,
    WorkloadError,
    PredictorNameError,
    SimulationStuck,
    ClusterFileError,
    OptionError,
)
"""Exceptions whose message is a reason for a user."""


@dataclass(frozen=True, slots=True)
class Question:
    """A run of the service. ``recorded``: the queue as it is, for a run from now on; the past is read from the database."""

    request: SimulationRequest
    plans: Sequence[Plan]
    settings: Settings
    recorded: CycleSnapshot | None = None


def report(question: Question, progress: Progress) -> dict[str, Any]:
    """The document of ``sooner sim what-if --json``. Raises the exceptions of ``_REFUSALS``."""
    if question.recorded is not None:
        return _from_now_on(question, question.recorded, progress)
    past = _past(question)
    plans = past.as_recorded(question.plans)
    total = len(past.history.jobs) * len(plans)

    def show(course: Course) -> None:
        done = (course.made + sum(course.running.values())) / len(plans)
        progress(round(done * total), total)

    outcomes = sweep(past.setting, plans, show=show)
    for each in outcomes:
        if isinstance(each, Failed):
            if isinstance(each.error, SimulationStuck | WorkerLost):
                plan = each.plan
                raise NoReport(f"{each.error} (in the run of {plan.label} with predictor {plan.predictor})")
            raise with_trace(each.error, each.trace)
    return past.report([each.result for each in outcomes if isinstance(each, Finished)])


def _past(question: Question) -> Past:
    request, settings = question.request, question.settings
    with closing(open_database(settings.database_url)) as database:
        history, present, _ = read_past(database, settings, request.window, carry=True)
    if not history.jobs:
        raise NoReport(nothing_to_run(history))
    machines = machines_of(present, request.servers)
    if not machines.servers:
        raise NoReport("all servers are down")
    return prepare_past(history, present, machines, settings, request.network, request.seed)


def _from_now_on(question: Question, recorded: CycleSnapshot, progress: Progress) -> dict[str, Any]:
    request = question.request
    options = ForecastOptions(request.samples, JOBS_MAX, request.seed)
    found = outlooks(recorded.world, candidates_of(recorded, question.plans), options, progress)
    return outlook_report(recorded.cycle, recorded.policy, found)


class _Messages:
    """The messages to the service. Progress at most each :data:`PROGRESS_EVERY_S`."""

    def __init__(self) -> None:
        # What anything else writes to standard output goes to standard error: between the messages it would break the stream.
        self._stream = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._not_before_s = 0.0

    def progress(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._not_before_s:
            self._not_before_s = now_s + PROGRESS_EVERY_S
            self.write({"done": done, "total": total})

    def write(self, message: dict[str, Any]) -> None:
        write_message(self._stream, json.dumps(message, allow_nan=False).encode())


def main() -> None:
    """Answer the question. An unexpected exception ends the process with a traceback."""
    messages = _Messages()
    question: Question = pickle.loads(read_message(sys.stdin.buffer) or b"")  # noqa: S301 (our own parent)
    try:
        messages.write({"report": report(question, messages.progress)})
    except _REFUSALS as error:
        messages.write({"failed": str(error)})
    except MemoryError:
        messages.write({"failed": "out of memory"})


if __name__ == "__main__":
    main()
