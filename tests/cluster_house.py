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
from tests.local_executor import ENDS, WallClock, launch, python, wait_for

GRACE_S = 5.0


class ClusterHouse:
    """``engine`` outlives the executors. At the end no process of any attempt may be left."""

    def __init__(
        self, folder: Path, engine: ProcessEngine | None = None, cluster: Cluster = CLUSTER, **options: Any
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.engine = engine or ProcessEngine([server.name for server in cluster.servers])
        self.options = {"term_grace_s": GRACE_S, "poll_s": 0.1, "node_python": sys.executable, **options}
        self.reports: list[Report] = []
        self.executors: list[ClusterExecutor] = []
        self.executor = self.new_executor()

    def new_executor(self, driver: EngineDriver | None = None, **options: Any) -> ClusterExecutor:
        """One more executor on the folder, as a restarted service has; it becomes the current one."""
        self.executor = ClusterExecutor(
            driver or self.engine.driver(),
            self.folder,
            self.cluster,
            clock=WallClock(),
            environ={"PATH": os.environ["PATH"]},
            **(self.options | options),
        )
        self.executors.append(self.executor)
        self.settle_servers()
        return self.executor

    def settle_servers(self) -> None:
        """Wait until the executor knows its attempts, and acknowledge what it says of servers at first."""
        wait_for(lambda: self.statuses() is not None, "the attempts to be known")
        self.executor.find_servers()
        self.executor.acknowledge([report for report in self.executor.poll() if report.attempt is None])

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

    def wait_report(self, *kinds: ReportKind, attempt: str = "1.1") -> Report:
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
            return self.executor.read_logs(JobId(job), None, 0, 1 << 20, node).data.decode()
        return ""

    def close(self) -> None:
        """Stop what is left, and fail if something had to be killed."""
        self.engine.release()
        self.engine.silent = False
        self.engine.faults.clear()
        executor = self.new_executor()
        tokens = [old._highest_token for old in self.executors]
        wait_for(lambda: self.statuses() is not None, "the attempts to be known")
        stops = [Stop(attempt, False, None, 0.2, max(tokens)) for attempt in executor.observed()]
        executor.send(stops)
        with contextlib.suppress(AssertionError):
            self.until(
                lambda: set((self.statuses() or {}).values()) <= {AttemptStatus.ENDED}, "the end of all attempts"
            )
        left = processes_of(str(self.folder))
        for process in left:
            signal_process(process, signal.SIGKILL)
        self.engine.close()
        for old in self.executors:
            old.close()
        assert not left, f"processes outlived their attempts: {left}"


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
    """With a short lease that is renewed by ``renew_leases`` alone."""

    lease_s = 1.2

    def __init__(self, folder: Path) -> None:
        super().__init__(ClusterHouse(folder, lease_s=self.lease_s))
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
