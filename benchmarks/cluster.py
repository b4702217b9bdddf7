"""Prints how long the cluster executor holds up the scheduling thread while the engine is slow.

python -m benchmarks.cluster [--attempts 1000] [--call-s 5] [--seconds 30] [--folder DIR]

An engine in memory takes ``--call-s`` for every call. It runs the attempts, whose node programs are represented by their files;
a tenth of them report progress every second. The executor adopts them, as after a restart of the service. Then a cycle a quarter
second, as the live loop runs them: poll and acknowledge, observed, and send with a launch and a stop. Printed are the wall times
of each call in milliseconds (the goal is at most 50), beside those of a pause of 1 ms, which show what the machine itself adds,
and the processor time that the executor takes, in percent of a core.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.calibration import calibrate, line
from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id, job_of
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from service.engine.commands import Command, Launch, Stop
from service.engine.ports import Abilities, ExecutorUnavailable
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.driver import EngineJob, EngineJobState, EngineNode, NodeLaunch, NodeState
from service.executors.cluster.executor import ClusterExecutor
from service.executors.cluster.shared import AttemptFolder, LaunchRecord, LiveIndex
from service.executors.files import write_json
from service.executors.keys import AttemptKeys
from service.runtime.steady_clock import SteadyClock

CYCLE_S = 0.25
GOAL_MS = 50.0
_GPUS = 8
_WARM_UP_S = 20.0


class SlowEngine:
    """An engine that needs ``call_s`` for every call."""

    name = "slow engine"
    abilities = Abilities(exact_gpus=False)
    kill_wait_s = 10.0

    def __init__(self, call_s: float, servers: int) -> None:
        self._call_s = call_s
        self._servers = [Server(f"node{number:04}", _GPUS) for number in range(servers)]
        self._jobs: dict[str, EngineJob] = {}

    def run(self, engine_id: str, attempt: AttemptId, server: str) -> None:
        """It has this submission already."""
        gpus = {server: (0,)}
        self._jobs[engine_id] = EngineJob(engine_id, attempt, EngineJobState.RUNNING, (server,), gpus)

    def submit(self, launch: NodeLaunch) -> str:
        time.sleep(self._call_s)
        engine_id = str(len(self._jobs) + 1)
        self._jobs[engine_id] = EngineJob(engine_id, launch.attempt, EngineJobState.PENDING)
        return engine_id

    def cancel(self, ids: Sequence[str]) -> None:
        time.sleep(self._call_s)

    def jobs(self) -> Sequence[EngineJob]:
        time.sleep(self._call_s)
        return list(self._jobs.values())

    def nodes(self) -> Sequence[EngineNode]:
        time.sleep(self._call_s)
        return [EngineNode(server, NodeState.UP, server.name) for server in self._servers]

    def close(self) -> None:
        pass


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=1000, help="attempts that run")
    parser.add_argument("--call-s", type=float, default=5.0, help="time of each call of the engine")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the calls are timed")
    parser.add_argument("--folder", type=Path, help="where the shared folder is made")
    arguments = parser.parse_args()
    print(line(calibrate()))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        _run(Path(folder), arguments.attempts, arguments.call_s, arguments.seconds)


def _run(folder: Path, attempts: int, call_s: float, seconds: float) -> None:
    servers = -(-attempts // _GPUS)
    engine = SlowEngine(call_s, servers)
    cluster = Cluster("slow", tuple(Server(f"node{number:04}", _GPUS) for number in range(servers)))
    progress = [_running(folder, engine, attempt_id(JobId(job), 1)) for job in range(1, attempts + 1)]
    executor = ClusterExecutor(engine, folder, cluster, clock=SteadyClock())
    _wait_until_known(executor, attempts)
    times: dict[str, list[float]] = {"nothing, for 1 ms": [], "poll + acknowledge": [], "observed": [], "send": []}
    used_s, begun_s, cycle = time.process_time(), time.monotonic(), 0
    while time.monotonic() - begun_s < seconds:
        cycle += 1
        for path in progress[cycle % 40 :: 40]:
            with path.open("a") as stream:
                stream.write(json.dumps({"iteration": cycle, "total_iterations": 1_000_000}) + "\n")
        times["nothing, for 1 ms"].append(_timed(partial(time.sleep, 0.001)))
        times["poll + acknowledge"].append(_timed(lambda: executor.acknowledge(executor.poll())))
        times["observed"].append(_timed(executor.observed))
        commands: list[Command] = [
            _launch(JobId(attempts + cycle), servers),
            Stop(attempt_id(JobId(attempts + cycle), 1), False),
        ]
        times["send"].append(_timed(partial(executor.send, commands)))
        time.sleep(CYCLE_S)
    share = (time.process_time() - used_s) / (time.monotonic() - begun_s)
    print(f"{attempts} attempts, {call_s:g} s a call, {cycle} cycles; the executor takes {share:.0%} of a core")
    print(f"{'milliseconds':22}{'median':>9}{'p99':>9}{'most':>9}")
    for name, found in times.items():
        figures = [1000.0 * float(np.quantile(found, part)) for part in (0.5, 0.99, 1.0)]
        print(f"{name:22}" + "".join(f"{figure:9.2f}" for figure in figures))
    worst = 1000.0 * max(float(np.quantile(times[name], 0.99)) for name in list(times)[1:])
    print(f"goal of {GOAL_MS:g} ms at the 99th percentile: {'met' if worst < GOAL_MS else 'missed'}")
    executor.close()


def _running(folder: Path, engine: SlowEngine, attempt: AttemptId) -> Path:
    """The files of an attempt that runs; returns its progress file."""
    names.make_private(folder / "attempts")
    seal = AttemptKeys(folder).seal(attempt)
    server = f"node{(job_of(attempt) - 1) // _GPUS:04}"
    LiveIndex(folder).add(attempt)
    inbox = shared.make_inbox(folder / "attempts", attempt)
    record = LaunchRecord((server,), shared.INBOX, None, 10.0, (str(job_of(attempt)),))
    AttemptFolder(folder / "attempts" / attempt, seal).write_launch(record)
    shared.claim(inbox, "launch")
    node = shared.node_folder(inbox, 0)
    node.mkdir()
    write_json(node / names.SUPERVISOR, seal.sealed(names.SUPERVISOR, {"gpus": ["0"]}))
    write_json(node / names.STARTED, seal.sealed(names.STARTED, {"at_s": time.time()}))
    engine.run(str(job_of(attempt)), attempt, server)
    return node / names.PROGRESS


def _launch(job: JobId, servers: int) -> Launch:
    spec = JobSpec("benchmark", "user", 1, command=("true",))
    placement = place([ServerShare(ServerIndex(job % servers), 1)])
    return Launch(attempt_id(job, 1), job, 1, spec, placement, ((0,),), 0)


def _wait_until_known(executor: ClusterExecutor, attempts: int) -> None:
    """Poll until every attempt has been looked at, which are reported as started."""
    begun_s, started = time.monotonic(), 0
    while started < attempts or time.monotonic() - begun_s < _WARM_UP_S:
        reports = executor.poll()
        started += sum(report.attempt is not None for report in reports)
        executor.acknowledge(reports)
        time.sleep(CYCLE_S)
    try:
        assert len(executor.observed()) == attempts
    except ExecutorUnavailable as error:
        raise SystemExit(str(error)) from error


def _timed(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


if __name__ == "__main__":
    main()
