"""A shared folder with executors on it over a :class:`tests.cluster_engine.ProcessEngine`, for tests."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, job_of
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, ExecutorUnavailable
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.driver import EngineDriver
from service.executors.cluster.executor import ClusterExecutor
from service.executors.cluster.shared import ATTEMPTS
from service.executors.seal import Seal
from service.runtime.processes import signal_process
from tests.cluster_engine import CLUSTER, ProcessEngine, processes_of
from tests.faulty_driver import Faults, FaultyDriver
from tests.local_executor import ENDS, WallClock, launch, newest_attempt, python, wait_for

GRACE_S = 5.0


class ClusterHouse:
    """``make_driver`` makes one more driver of an engine with the servers of ``cluster``, which outlives the executors.

    At the end no process of any attempt may be left.
    """

    def __init__(self, folder: Path, cluster: Cluster, make_driver: Callable[[], EngineDriver], **options: Any) -> None:
        self.folder = folder
        self.cluster = cluster
        self.make_driver = make_driver
        self.faults = Faults()
        self.options = {"term_grace_s": GRACE_S, "poll_s": 0.1, "node_python": sys.executable, **options}
        self.reports: list[Report] = []
        self.executors: list[ClusterExecutor] = []
        self.executor = self.new_executor()
        self.settle_servers()

    def new_executor(self, **options: Any) -> ClusterExecutor:
        """One more executor on the folder, as a restarted service has; it becomes the current one."""
        self.executor = ClusterExecutor(
            FaultyDriver(self.make_driver(), self.faults),
            self.folder,
            self.cluster,
            clock=WallClock(),
            environ={"PATH": os.environ["PATH"]},
            **(self.options | options),
        )
        self.executors.append(self.executor)
        return self.executor

    def restart(self, **options: Any) -> ClusterExecutor:
        """The service ends without a word, and another one begins on the folder."""
        self.executor.close()
        self.new_executor(**options)
        self.settle_servers()
        return self.executor

    def settle_servers(self) -> None:
        """Wait until the executor knows its attempts, and acknowledge what it says of servers at first."""
        wait_for(lambda: self.statuses() is not None, "the attempts to be known")
        self.executor.find_servers()

    def statuses(self) -> Mapping[AttemptId, AttemptStatus] | None:
        """What the executor observes; None while it does not know."""
        try:
            return self.executor.observed()
        except ExecutorUnavailable:
            return None

    def poll(self) -> list[Report]:
        """One poll; everything it reported is kept in ``reports``."""
        self.executor.renew_leases()
        found = list(self.executor.poll())
        self.reports += found
        return found

    def wait_report(self, *kinds: ReportKind, attempt: str | None = "1.1") -> Report:
        """The first report of one of these kinds."""

        def look() -> Report | None:
            return next((r for r in self.poll() if r.kind in kinds and r.attempt == attempt), None)

        return wait_for(look, f"{kinds} of {attempt}; reports so far: {self.reports[-5:]}")

    def wait_started(self, attempt: str = "1.1") -> Report:
        """The report of an attempt's start, acknowledged."""
        report = self.wait_report(ReportKind.STARTED, attempt=attempt)
        self.executor.acknowledge([report])
        return report

    def wait_end(self, attempt: str = "1.1") -> Report:
        """The report of an attempt's end."""
        return self.wait_report(*ENDS, attempt=attempt)

    def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Poll until the condition holds."""
        wait_for(lambda: self.poll() is not None and bool(condition()), what)

    def run(self, command: tuple[str, ...], **options: Any) -> Report:
        """Launch and wait for the end."""
        order = launch(command, **options)
        self.executor.send([order])
        return self.wait_end(order.attempt)

    def stop(self, attempt: str = "1.1", warning: str | None = None, grace_s: float = GRACE_S, token: int = 0) -> None:
        """Send a stop; graceful exactly if there is a warning signal."""
        self.executor.send([Stop(AttemptId(attempt), warning is not None, warning, grace_s, token)])

    def path(self, attempt: str = "1.1") -> Path:
        """An attempt's folder."""
        return self.folder / ATTEMPTS / attempt

    def inbox(self, attempt: str = "1.1") -> Path:
        """The folder of its nodes."""
        return self.path(attempt) / shared.INBOX

    def seal(self, attempt: str = "1.1") -> Seal:
        """The seal of an attempt's records."""
        return self.executor._keys.seal(attempt)

    def output(self, job: int = 1, node: int = 0) -> str:
        """What the newest attempt of a job has written on a server."""
        with contextlib.suppress(KeyError):
            return self.executor.read_logs(
                JobId(job), newest_attempt(self.folder / ATTEMPTS, job), 0, 1 << 20, node
            ).data.decode()
        return ""

    def command_of_runs(self, code: str = "") -> tuple[str, ...]:
        """A command that notes each of its runs, and then runs ``code``."""
        note = (
            f"import os; os.write(os.open({str(self.folder / 'runs')!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b'x')"
        )
        return python(f"{note}\n{code}")

    def runs(self) -> int:
        """How often such a command has run, on all servers."""
        path = self.folder / "runs"
        return path.stat().st_size if path.exists() else 0

    def close(self) -> None:
        """Stop what is left, and fail if something had to be killed."""
        self.faults.clear()
        token = max(executor._highest_token for executor in self.executors)
        self.restart()
        self.executor.send([Stop(attempt, False, None, 0.2, token) for attempt in self.executor.observed()])
        with contextlib.suppress(AssertionError):
            self.until(
                lambda: set((self.statuses() or {}).values()) <= {AttemptStatus.ENDED}, "the end of all attempts"
            )
        left = processes_of(str(self.folder))
        for process in left:
            signal_process(process, signal.SIGKILL)
        for executor in self.executors:
            executor.close()
        assert not left, f"processes outlived their attempts: {left}"


def process_house(folder: Path, engine: ProcessEngine, **options: Any) -> ClusterHouse:
    """A house over real processes on this machine."""
    return ClusterHouse(folder, CLUSTER, engine.driver, **options)


class ClusterBench:
    """Real node programs under a pretended engine; time is real."""

    def __init__(self, house: ClusterHouse) -> None:
        self.house = house
        self.cluster = house.cluster

    @property
    def executor(self) -> ClusterExecutor:
        return self.house.executor

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        code = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))\n"
        return launch(python(code + ("" if ends else "while True: signal.sigtimedwait([], 0.05)")), job=job_of(attempt))

    def until(self, condition: Callable[[], bool]) -> None:
        def renewed() -> bool:
            self.executor.renew_leases()
            return condition()

        wait_for(renewed, "the condition")

    def launch_printing(self, attempt: AttemptId, text: str, *, ends: bool) -> Launch:
        code = f"print({text!r}, flush=True)\n" + ("" if ends else "import signal; signal.pause()")
        return launch(python(code), job=job_of(attempt), number=int(attempt.partition(".")[2]))

    def token(self, attempt: AttemptId) -> str:
        marker = b"SOONER_PROGRESS_TOKEN="
        for process in processes_of(str(self.house.folder)):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                tokens = {entry.removeprefix(marker) for entry in environ if entry.startswith(marker)}
                if tokens:
                    return tokens.pop().decode()
        raise AssertionError(f"attempt {attempt} has no process with a token")

    def settle(self) -> None:
        # Whatever a command causes goes through the folder of its attempt.
        wait_for(
            lambda: self.executor.poll() is not None and "pending" not in self.executor.observed().values(),
            "all launches to have begun or failed",
        )


class LeasedClusterBench(ClusterBench):
    """With a lease of ``lease_s`` that is renewed by ``renew_leases`` alone."""

    lease_s = 1.2

    def __init__(self, house: ClusterHouse) -> None:
        super().__init__(house)
        self.executor.renew_leases()

    def until(self, condition: Callable[[], bool]) -> None:
        wait_for(condition, "the condition")

    def miss_renewals(self) -> None:
        wait_for((self.house.inbox() / "node-0" / names.EXIT).exists, "the end by lease")

    def renew_for_longer_than_the_lease(self) -> None:
        until_s = time.monotonic() + 1.5 * self.lease_s

        def renewed() -> bool:
            self.executor.renew_leases()
            return time.monotonic() > until_s

        wait_for(renewed, "a lease and a half")
