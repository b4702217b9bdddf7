"""Forecasts from another process: the same numbers, and an end in every way in which things end."""

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from io import BytesIO

import psutil
import pytest

from policies.registry import BUILT_IN, make_policy
from service.forecast.forecast import ForecastOptions, NoForecast, forecast
from service.forecast.process import ForecastProcess
from service.forecast.worker import NICENESS, Question, answer
from service.runtime.child import read_message, write_message
from tests.local_executor import wait_for
from tests.unit.service.forecast.test_forecast import job, running, snapshot


@pytest.fixture
def process() -> Iterator[ForecastProcess]:
    made = ForecastProcess()
    yield made
    made.close()


WORLD = snapshot(running(job(1, (50.0, 100.0)), 10.0), job(2, (5.0, 20.0)))
OPTIONS = ForecastOptions(8)
AMPLE_S = 120.0


def _child(made: ForecastProcess) -> subprocess.Popen[bytes]:
    assert made._child._process is not None
    return made._child._process


def test_the_process_gives_the_same_forecast_and_ends_with_its_parent(process: ForecastProcess) -> None:
    policy = make_policy("asrpt")
    assert process(Question(WORLD, policy, {}, OPTIONS, AMPLE_S)) == forecast(WORLD, policy, {}, OPTIONS)
    child = _child(process)
    with pytest.raises(NoForecast, match="at most 1"):
        process(Question(WORLD, policy, {}, ForecastOptions(8, jobs_max=1), AMPLE_S))
    assert _child(process) is child, "one process serves all"
    assert psutil.Process(child.pid).nice() == min(19, psutil.Process().nice() + NICENESS)

    child.kill()
    child.wait()
    assert process(Question(WORLD, policy, {}, OPTIONS, AMPLE_S)).samples == 8, "a dead one is replaced"

    process.close()
    assert _child(process).poll() is not None
    with pytest.raises(NoForecast, match="shutting down"):
        process(Question(WORLD, policy, {}, OPTIONS, AMPLE_S))


def test_a_process_that_ends_during_a_request_raises_no_forecast(process: ForecastProcess) -> None:
    policy = make_policy("fifo")
    process(Question(WORLD, policy, {}, OPTIONS, AMPLE_S))
    child = _child(process)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)  # until it stands still, it may read on
    threading.Thread(target=_kill_when_asked, args=(child,)).start()
    with pytest.raises(NoForecast, match="try again"):
        process(Question(WORLD, policy, {}, OPTIONS, AMPLE_S))


def _kill_when_asked(child: subprocess.Popen[bytes]) -> None:
    """Not before: one that is dead when somebody comes to ask is replaced."""
    assert child.stdin is not None
    pipe = child.stdin.fileno()
    wait_for(lambda: any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))), "a question in the pipe")
    child.kill()


def test_the_worker_ends_with_its_input() -> None:
    question = pickle.dumps(Question(WORLD, make_policy("fifo"), {}, OPTIONS, AMPLE_S))
    asked = BytesIO()
    write_message(asked, question)
    done = subprocess.run(
        [sys.executable, "-m", "service.forecast.worker"],
        input=asked.getvalue(),
        capture_output=True,
        check=True,
        timeout=AMPLE_S,
    )
    message = read_message(BytesIO(done.stdout))
    assert message is not None
    assert pickle.loads(message) == forecast(WORLD, make_policy("fifo"), {}, OPTIONS)


def test_an_incomplete_message_is_none() -> None:
    stream = BytesIO()
    write_message(stream, b"whole")
    whole = stream.getvalue()
    assert read_message(BytesIO(whole)) == b"whole"
    for length in (0, 7, 8, len(whole) - 1):
        assert read_message(BytesIO(whole[:length])) is None


def test_a_worker_without_its_parent_stops() -> None:
    question = Question(WORLD, make_policy("fifo"), {}, OPTIONS, AMPLE_S)
    assert answer(question, parent=os.getppid()) == forecast(WORLD, make_policy("fifo"), {}, OPTIONS)
    with pytest.raises(NoForecast, match="exceeded its time limit"):
        answer(question, parent=os.getppid() + 1)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_can_be_sent(name: str) -> None:
    policy = make_policy(name)
    there = pickle.loads(pickle.dumps(policy))
    assert forecast(WORLD, there, {}, OPTIONS) == forecast(WORLD, policy, {}, OPTIONS)
