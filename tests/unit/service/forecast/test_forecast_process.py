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
from pathlib import Path

import psutil
import pytest

from policies.registry import BUILT_IN, make_policy
from service.forecast.forecast import ForecastOptions, NoForecast, forecast
from service.forecast.process import ForecastProcess
from service.forecast.worker import NICENESS, Question, answer
from service.runtime.child import read_message, write_message
from service.runtime.limited_process import ONE_THREAD
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
_ROOT = Path(__file__).parents[4]


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


FORKED = """
import os
from policies.registry import make_policy
from service.forecast.forecast import ForecastOptions, NoForecast, forecast
from service.forecast.whatif import Sampler, sampled, side_by_side
from tests.unit.service.forecast.test_forecast import job, snapshot

forks = []
os.register_at_fork(after_in_parent=lambda: forks.append(1))
world = snapshot(*(job(number, (5.0 * number, 50.0 + number, 900.0)) for number in range(1, 31)))
policies = [make_policy(name) for name in ("asrpt", "fifo")]
options = ForecastOptions(8)

def made(workers):
    done = []
    samplers = [Sampler(world, each, None, options) for each in policies]
    futures = sampled(samplers, on_future=lambda *of: done.append(of), workers=workers)
    beside = side_by_side(world, dict(zip(("asrpt", "fifo"), futures)))
    return done, beside, forecast(world, policies[0], None, options, workers=workers)

alone = made(1)
assert not forks
together = made(3)
assert len(forks) == 6, forks
assert together == alone
assert alone[0] == [(number, 16) for number in range(1, 17)]

def stopped(**how):
    try:
        forecast(world, policies[0], None, options, workers=3, **how)
    except NoForecast as error:
        return str(error)

def raises():
    raise NoForecast("an end")

assert "time limit" in stopped(keep_going=lambda: False)
assert stopped(tick=raises) == "an end"
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no worker is left")
"""


def test_several_processes_make_the_same_futures() -> None:
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, env=environment, cwd=_ROOT, timeout=AMPLE_S
    )
    assert (done.stdout, done.stderr) == ("no worker is left\n", "")


def test_the_process_has_no_threads_that_keep_it_from_forking(process: ForecastProcess) -> None:
    process(Question(WORLD, make_policy("fifo"), {}, OPTIONS, AMPLE_S))
    assert psutil.Process(_child(process).pid).num_threads() == 1
