"""The contract of an engine's driver: what the cluster executor relies on.

To conform, subclass :class:`DriverContract` and give it a ``bench`` fixture over an engine of two or more idle servers.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from policies.model.ids import AttemptId
from service.executors.cluster.driver import (
    EngineDriver,
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineRefused,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from tests.local_executor import wait_for

_ANSWER_S = 100.0
"""Longest time of one call: less than the programs run, on a machine that others use."""

_TELL = """
import json, os, signal, sys, time
from pathlib import Path
plan = json.load(sys.stdin)
def terminated(*_):
    tell("term")
    os._exit(0)
def tell(what):
    place = Path(plan["folder"]) / (os.environ["SOONER_NODE"] + "-" + os.environ["SOONER_LAUNCH"])
    draft = place.with_suffix(".draft")
    names = ("SOONER_NODE", "SOONER_LAUNCH", "CUDA_VISIBLE_DEVICES")
    draft.write_text(json.dumps({"what": what, "pid": os.getpid()} | {n: os.environ.get(n, "") for n in names}))
    draft.rename(place)
signal.signal(signal.SIGTERM, signal.SIG_IGN if plan.get("deaf") else terminated)
tell("began")
end = time.monotonic() + plan["seconds"]
while time.monotonic() < end:
    time.sleep(0.05)
sys.exit(plan.get("code", 0))
"""


class DriverBench(Protocol):
    """An engine whose servers are idle at the beginning of a test. ``folder`` is shared by all of them."""

    driver: EngineDriver
    folder: Path
    servers: Sequence[str]
    """Names of two servers with four GPUs each."""

    def another_driver(self) -> EngineDriver:
        """As another service makes it for the same engine and the same attempts."""


class Trial:
    """Submissions of a program that reports into a folder, and then runs for some seconds."""

    def __init__(self, bench: DriverBench) -> None:
        self.bench = bench
        self.ids: list[str] = []

    def launch(self, attempt: str, shares: Sequence[tuple[str, int]], **plan: object) -> NodeLaunch:
        """A launch with so many GPUs on these servers. ``plan``: seconds, code, and deaf (to SIGTERM)."""
        folder = self.bench.folder / attempt
        folder.mkdir(exist_ok=True)
        text = json.dumps({"folder": str(folder), "seconds": 600.0} | plan).encode()
        program = (sys.executable, "-I", "-S", "-c", _TELL)
        return NodeLaunch(AttemptId(attempt), tuple(NodeShare(*share) for share in shares), program, text)

    def submit(self, attempt: str, shares: Sequence[tuple[str, int]], **plan: object) -> str:
        """Submit such a launch."""
        engine_id = self.bench.driver.submit(self.launch(attempt, shares, **plan))
        self.ids.append(engine_id)
        return engine_id

    def told(self, attempt: str) -> list[Mapping[str, str]]:
        """What the programs of an attempt have reported, by server."""
        found = sorted((self.bench.folder / attempt).glob("*"))
        return [json.loads(path.read_text()) for path in found if path.suffix != ".draft"]

    def job(self, engine_id: str) -> EngineJob | None:
        """A submission as the engine sees it now."""
        return next((job for job in self.bench.driver.jobs() if job.id == engine_id), None)

    def until_state(self, engine_id: str, *states: EngineJobState) -> EngineJob:
        """Wait until the engine shows one of these states."""

        def look() -> EngineJob | None:
            job = self.job(engine_id)
            return job if job is not None and job.state in states else None

        return wait_for(look, f"{states} of {engine_id}; now {self.job(engine_id)}")

    def until_told(self, attempt: str, programs: int, what: str = "began") -> list[Mapping[str, str]]:
        """Wait until so many programs of an attempt have reported this."""

        def look() -> list[Mapping[str, str]] | None:
            told = self.told(attempt)
            return told if len(told) == programs and {entry["what"] for entry in told} == {what} else None

        return wait_for(look, f"{programs} programs of {attempt} that {what}; told {self.told(attempt)}")

    def close(self) -> None:
        """Leave the servers idle."""
        self.bench.driver.cancel(self.ids)
        for engine_id in self.ids:
            wait_for(partial(self._is_over, engine_id), f"the end of {engine_id}")

    def _is_over(self, engine_id: str) -> bool:
        job = self.job(engine_id)
        return job is None or job.state is EngineJobState.ENDED


def in_time(call: Callable[[], object]) -> None:
    """The call returns soon enough for a thread that waits for it."""
    begun_s = time.monotonic()
    call()
    assert time.monotonic() - begun_s < _ANSWER_S


class DriverContract:
    """What the cluster executor relies on."""

    @pytest.fixture
    def trial(self, bench: DriverBench) -> Iterator[Trial]:
        """Submissions on the bench; all are cancelled at the end."""
        trial = Trial(bench)
        yield trial
        trial.close()

    def test_it_names_its_servers(self, bench: DriverBench) -> None:
        nodes = bench.driver.nodes()
        assert [node.server.name for node in nodes] == sorted(node.server.name for node in nodes)
        known = {node.server.name: node for node in nodes}
        for server in bench.servers:
            assert (known[server].server.gpus, known[server].state) == (4, NodeState.UP)
            assert known[server].address
        assert bench.driver.name

    def test_a_program_runs_once_on_each_server(self, bench: DriverBench, trial: Trial) -> None:
        first, second = bench.servers[:2]
        engine_id = trial.submit("1.1", [(second, 2), (first, 2)])
        told = trial.until_told("1.1", 2)
        assert {entry["SOONER_NODE"] for entry in told} == {first, second}
        assert len({entry["SOONER_LAUNCH"] for entry in told}) == 1
        for entry in told:
            assert len(set(entry["CUDA_VISIBLE_DEVICES"].split(","))) == 2
        job = trial.until_state(engine_id, EngineJobState.RUNNING)
        assert job.attempt == "1.1"
        assert set(job.servers) == {first, second}
        assert {server: len(gpus) for server, gpus in job.gpu_ids.items()} == {first: 2, second: 2}
        assert job.end is None

    @pytest.mark.parametrize("code", [0, 3])
    def test_an_end_by_itself_is_completed(self, bench: DriverBench, trial: Trial, code: int) -> None:
        engine_id = trial.submit("1.1", [(bench.servers[0], 1), (bench.servers[1], 1)], seconds=0.1, code=code)
        job = trial.until_state(engine_id, EngineJobState.ENDED)
        assert (job.end, job.failed_servers) == (EngineEnd.COMPLETED, ())

    def test_a_program_that_could_not_begin_ends_the_others(self, bench: DriverBench, trial: Trial) -> None:
        launch = trial.launch("1.1", [(bench.servers[0], 1), (bench.servers[1], 1)])
        code = f"import os, sys\nif os.environ['SOONER_NODE'] == {bench.servers[1]!r}: sys.exit(5)\n" + _TELL
        launch = NodeLaunch(launch.attempt, launch.shares, (*launch.program[:-1], code), launch.plan)
        engine_id = bench.driver.submit(launch)
        trial.ids.append(engine_id)
        assert trial.until_state(engine_id, EngineJobState.ENDED).end is not None

    def test_one_that_does_not_fit_waits_and_can_be_cancelled(self, bench: DriverBench, trial: Trial) -> None:
        server = bench.servers[0]
        holder = trial.submit("1.1", [(server, 4)])
        trial.until_state(holder, EngineJobState.RUNNING)
        in_time(lambda: trial.submit("2.1", [(server, 1)]))
        waiting = trial.ids[-1]
        trial.until_state(waiting, EngineJobState.PENDING)
        in_time(lambda: bench.driver.cancel([waiting]))
        wait_for(lambda: trial._is_over(waiting), "the end of the one that waits")
        job = trial.job(waiting)
        assert job is None or job.end is EngineEnd.CANCELLED
        assert trial.told("2.1") == []
        assert trial.until_state(holder, EngineJobState.RUNNING).end is None

    def test_one_that_waits_starts_when_gpus_are_free(self, bench: DriverBench, trial: Trial) -> None:
        server = bench.servers[0]
        trial.until_state(trial.submit("1.1", [(server, 3)]), EngineJobState.RUNNING)
        trial.submit("2.1", [(server, 2)])
        trial.until_state(trial.ids[-1], EngineJobState.PENDING)
        bench.driver.cancel([trial.ids[0]])
        trial.until_told("2.1", 1)

    def test_a_cancelled_one_gets_sigterm_first(self, bench: DriverBench, trial: Trial) -> None:
        engine_id = trial.submit("1.1", [(bench.servers[0], 1), (bench.servers[1], 1)])
        trial.until_told("1.1", 2)
        in_time(lambda: bench.driver.cancel([engine_id]))
        trial.until_told("1.1", 2, "term")
        assert trial.until_state(engine_id, EngineJobState.ENDED).end is EngineEnd.CANCELLED

    def test_a_cancelled_one_that_goes_on_is_killed(self, bench: DriverBench, trial: Trial) -> None:
        engine_id = trial.submit("1.1", [(bench.servers[0], 1)], deaf=True)
        (told,) = trial.until_told("1.1", 1)
        bench.driver.cancel([engine_id])
        assert trial.until_state(engine_id, EngineJobState.ENDED).end is EngineEnd.CANCELLED
        assert not Path(f"/proc/{told['pid']}").exists()

    def test_cancelling_what_is_unknown_or_over_does_nothing(self, bench: DriverBench, trial: Trial) -> None:
        engine_id = trial.submit("1.1", [(bench.servers[0], 1)], seconds=0.1)
        end = trial.until_state(engine_id, EngineJobState.ENDED)
        bench.driver.cancel([])
        bench.driver.cancel([engine_id, engine_id, "999999"])
        after = trial.job(engine_id)
        assert after is None or after.end is end.end

    def test_two_submissions_of_one_attempt_can_be_told_apart(self, bench: DriverBench, trial: Trial) -> None:
        for _ in range(2):
            trial.submit("1.1", [(bench.servers[0], 1)])
        if trial.ids[0] == trial.ids[1]:
            trial.until_told("1.1", 1)  # this engine starts it once
            return
        told = trial.until_told("1.1", 2)
        assert len({entry["SOONER_LAUNCH"] for entry in told}) == 2
        assert [job.attempt for job in bench.driver.jobs() if job.id in trial.ids] == ["1.1", "1.1"]

    def test_what_can_never_run_is_refused(self, bench: DriverBench, trial: Trial) -> None:
        for shares in ([("no-such-server", 1)], [(bench.servers[0], 99)]):
            with pytest.raises(EngineRefused) as refusal:
                bench.driver.submit(trial.launch("1.1", shares))
            assert str(refusal.value)
        assert [job for job in bench.driver.jobs() if job.state is not EngineJobState.ENDED] == []

    def test_another_driver_sees_and_cancels_it(self, bench: DriverBench, trial: Trial) -> None:
        engine_id = trial.submit("1.1", [(bench.servers[0], 1)])
        trial.until_told("1.1", 1)
        other = bench.another_driver()
        try:
            assert [job.attempt for job in other.jobs() if job.id == engine_id] == ["1.1"]
            other.cancel([engine_id])
            assert trial.until_state(engine_id, EngineJobState.ENDED).end is EngineEnd.CANCELLED
        finally:
            other.close()

    def test_shares_may_differ_if_the_engine_can(self, bench: DriverBench, trial: Trial) -> None:
        if not bench.driver.abilities.uneven_shares:
            pytest.skip("this engine gives every server of an attempt the same number of GPUs")
        engine_id = trial.submit("1.1", [(bench.servers[0], 1), (bench.servers[1], 3)])
        told = trial.until_told("1.1", 2)
        counts = {entry["SOONER_NODE"]: len(entry["CUDA_VISIBLE_DEVICES"].split(",")) for entry in told}
        assert counts == {bench.servers[0]: 1, bench.servers[1]: 3}
        job = trial.until_state(engine_id, EngineJobState.RUNNING)
        assert {server: len(gpus) for server, gpus in job.gpu_ids.items()} == counts
