"""Attempts as real processes, for tests: short programs, waiting with a deadline, and nothing left behind."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.job import Launch as LaunchMode
from policies.model.placement import ServerShare, place
from service.engine.commands import Launch, Stop
from service.engine.events import Report, ReportKind
from service.executors import folder as names
from service.executors.local import LocalExecutor
from service.executors.seal import Seal
from service.runtime.processes import ProcessId, all_processes, signal_process

DEADLINE_S = 120.0
CLUSTER = Cluster("test", (Server("s0001", 4), Server("s0002", 4)))
ENDS = (ReportKind.EXITED, ReportKind.LAUNCH_FAILED, ReportKind.LOST)


class WallClock:
    """Seconds since the Unix epoch."""

    def now_s(self) -> float:
        return time.time()


T = TypeVar("T")


def pause_s(began_s: float) -> float:
    """How long to rest after a look that began then, and ends now: a costly one is repeated after a longer pause."""
    return min(0.25, max(0.005, 4.0 * (time.monotonic() - began_s)))


def wait_for(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """What ``look`` returns as soon as it is not None or False."""
    end = time.monotonic() + deadline_s
    while (began := time.monotonic()) < end:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(pause_s(began))
    raise AssertionError(f"waited {deadline_s} s in vain for {what}")


def python(code: str) -> tuple[str, ...]:
    """A command that runs a line of Python in a bare interpreter (it starts in some 15 ms)."""
    return (sys.executable, "-I", "-S", "-c", code)


def launch(
    command: tuple[str, ...],
    *,
    job: int = 1,
    number: int = 1,
    gpus: tuple[int, ...] = (1,),
    mode: LaunchMode = LaunchMode.SERVER,
    resume_iteration: int = 0,
    fencing_token: int = 0,
    replicas: Sequence[tuple[int, ...]] = (),
    **spec: Any,
) -> Launch:
    """A launch with ``gpus[i]`` GPUs on server i, and ``replicas[i]`` of each stage there."""
    rows = replicas or [()] * len(gpus)
    shares = [ServerShare(ServerIndex(server), count, rows[server]) for server, count in enumerate(gpus) if count]
    return Launch(
        attempt=attempt_id(JobId(job), number),
        job=JobId(job),
        number=number,
        spec=JobSpec("test", "tester", sum(gpus), command=command, launch=mode, **spec),
        placement=place(shares),
        gpu_ids=tuple(tuple(range(share.gpus)) for share in shares),
        resume_iteration=resume_iteration,
        fencing_token=fencing_token,
    )


class House:
    """A data folder and the executors on it. At the end every process of every attempt must be gone."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.executors: list[LocalExecutor] = []
        self.reports: list[Report] = []
        self.executor = self.new_executor()

    def new_executor(self, environ: Mapping[str, str] | None = None, **options: Any) -> LocalExecutor:
        """One more executor on the folder, as a restarted service has; it becomes the current one."""
        options.setdefault("term_grace_s", 5.0)
        clock = WallClock()
        base = {"PATH": os.environ["PATH"]} if environ is None else environ
        self.executor = LocalExecutor(self.data_dir, CLUSTER, clock=clock, environ=base, **options)
        self.executors.append(self.executor)
        return self.executor

    def folder(self, attempt: str = "1.1") -> Path:
        """An attempt's folder."""
        return self.data_dir / "attempts" / attempt

    def seal(self, attempt: str = "1.1") -> Seal:
        """The seal of an attempt's records."""
        return self.executor._keys.seal(attempt)

    def write_record(self, name: str, record: dict[str, Any], attempt: str = "1.1") -> None:
        """Replace a record of an attempt, with its seal."""
        (self.folder(attempt) / name).write_text(json.dumps(self.seal(attempt).sealed(name, record)))

    def has_ended(self, attempt: str = "1.1") -> bool:
        """Whether the end of an attempt is recorded and its supervisor is gone; looks at the files alone."""
        return names.has(self.folder(attempt), names.EXIT) and not names.is_supervised(self.folder(attempt))

    def poll(self) -> list[Report]:
        """One poll; everything it said is kept in ``reports``."""
        found = list(self.executor.poll())
        self.reports += found
        return found

    def wait_report(self, *kinds: ReportKind, attempt: str = "1.1", deadline_s: float = DEADLINE_S) -> Report:
        """The first report of one of these kinds."""

        def look() -> Report | None:
            return next((r for r in self.poll() if r.kind in kinds and r.attempt == attempt), None)

        return wait_for(look, f"{kinds} of {attempt}; reports so far: {self.reports[-5:]}", deadline_s)

    def wait_end(self, attempt: str = "1.1", deadline_s: float = DEADLINE_S) -> Report:
        """The report of an attempt's end."""
        return self.wait_report(*ENDS, attempt=attempt, deadline_s=deadline_s)

    def wait_output(self, text: str, job: int = 1) -> str:
        """Poll (which renews the lease) until an attempt of the job has written ``text``."""

        def look() -> str | None:
            self.poll()
            output = self.output(job)
            return output if text in output else None

        return wait_for(look, f"output {text!r}, got {self.output(job)!r}")

    def output(self, job: int = 1) -> str:
        """What the newest attempt of a job has written."""
        with contextlib.suppress(KeyError):
            return self.executor.read_logs(
                JobId(job), newest_attempt(self.data_dir / "attempts", job), 0, 1 << 20
            ).data.decode()
        return ""

    def run(self, command: tuple[str, ...], **options: Any) -> Report:
        """Launch and wait for the end."""
        order = launch(command, **options)
        self.executor.send([order])
        return self.wait_end(order.attempt)

    def stop(
        self, attempt: str = "1.1", warning: str | None = None, grace_s: float = DEADLINE_S, token: int = 0
    ) -> None:
        """Send a stop; graceful exactly if there is a warning signal."""
        self.executor.send([Stop(AttemptId(attempt), warning is not None, warning, grace_s, token)])

    def processes(self) -> list[ProcessId]:
        """All living processes whose environment says that they belong to this folder."""
        folder = str(self.data_dir).encode()
        found = []
        for info in all_processes():
            with contextlib.suppress(OSError):
                if not info.zombie and folder in Path(f"/proc/{info.id.pid}/environ").read_bytes():
                    found.append(info.id)
        return found

    def close(self) -> None:
        """Stop what is left, and fail if something had to be killed."""
        executor = self.new_executor()
        stop_all(executor, grace_s=0.2)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: all(s == "ended" for s in self._settled(executor)), "the end of all attempts")
        left = self.processes()
        for process in left:
            signal_process(process, signal.SIGKILL)
        assert not left, f"processes outlived their attempts: {left}"

    def _settled(self, executor: LocalExecutor) -> list[str]:
        executor.poll()
        return [str(status) for status in executor.observed().values()]


def newest_attempt(attempts: Path, job: int) -> int:
    """The number of the newest attempt of a job that has a folder; 0 if none has."""
    return max((int(path.suffix[1:]) for path in attempts.glob(f"{job}.*")), default=0)


def listings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Path]:
    """Gets an entry whenever the folder is listed."""
    found: list[Path] = []
    real = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        found.extend([path] if path == folder else [])
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    return found


def stop_all(executor: LocalExecutor, grace_s: float) -> None:
    """Ask every attempt to stop, whichever service leads."""
    for watched in list(executor._live.values()):
        executor._stop(Stop(watched.attempt, graceful=False, grace_s=grace_s))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A house in a fresh folder, emptied afterwards."""
    made = House(tmp_path / "data")
    yield made
    made.close()


def lives(pid: int) -> bool:
    """Whether a process with this number lives and is no zombie."""
    return any(info.id.pid == pid and not info.zombie for info in all_processes())
