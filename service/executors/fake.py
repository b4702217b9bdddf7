"""An executor without processes: jobs "run" for a declared time on a given clock, and its reports can be made faulty.

For trying the service on a laptop (``--executor fake``) and for tests. Nothing survives a restart of the service: its open
attempts are then lost with their servers, and their jobs start again without using up a retry. No service with open attempts of
executor=local starts with it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import JobSpec
from service.engine.commands import Command, Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import Abilities, AttemptStatus, Clock, LogPart

DURATION_LABEL = "fake_duration_s"
"""Label with the run time of a job in seconds. Without it: iterations x ``iteration_s``, else ``duration_s``."""
EXIT_CODE_LABEL = "fake_exit_code"
"""Label with the exit code of a job that runs to its end (default 0)."""
_ENDS = frozenset({ReportKind.EXITED, ReportKind.LOST})
_CHECKPOINTED = 75
_TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances in [0, 1] that a poll withholds a report, repeats it, or delays it by ``late_s`` seconds.

    A withheld end comes with a later poll: an executor may delay or repeat the report of an end, but must not lose it.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_s: float = 5.0
    seed: int = 0


@dataclass(slots=True)
class _Attempt:
    """``duration_s``: remaining time of the job at its start. ``stop_at_s``: when a requested stop takes effect."""

    id: AttemptId
    started_at_s: float
    duration_s: float
    exit_code: int = 0
    resume_iteration: int = 0
    total_iterations: float | None = None
    checkpoints: bool = False
    graceful: bool = False
    stop_at_s: float | None = None
    started_acknowledged: bool = False
    reported_iteration: float | None = None
    ended: Report | None = None


class FakeExecutor:
    """The executor port without processes. ``launch_s`` and ``stop_s`` are the seconds a start and a stop take.

    ``iteration_s`` is the time of one iteration of a job that declares iterations, ``duration_s`` that of any other job.
    Deterministic: equal calls at equal times give equal reports.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        duration_s: float = 30.0,
        iteration_s: float = 0.1,
        launch_s: float = 0.0,
        stop_s: float = 0.0,
        faults: Faults | None = None,
    ) -> None:
        self._clock = clock
        self._duration_s = duration_s
        self._iteration_s = iteration_s
        self._launch_s = launch_s
        self._stop_s = stop_s
        self._faults = faults or Faults()
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._over: set[AttemptId] = set()
        self._late: list[tuple[float, Report]] = []
        self._polls = 0

    def send(self, commands: Sequence[Command]) -> None:
        """Note launches and stops."""
        now_s = self._clock.now_s()
        for command in commands:
            if isinstance(command, Launch):
                if command.attempt not in self._attempts and command.attempt not in self._over:
                    self._attempts[command.attempt] = self._begin(command, now_s)
            else:
                self._stop(command, now_s)

    def poll(self) -> Sequence[Report]:
        """Reports up to now, oldest first, after the faults. O(live attempts)."""
        now_s = self._clock.now_s()
        self._polls += 1
        reports: list[Report] = []
        for attempt in self._attempts.values():
            for report in self._observe(attempt, now_s):
                reports += self._with_faults(report, now_s)
        due = [report for at_s, report in self._late if at_s <= now_s]
        self._late = [(at_s, report) for at_s, report in self._late if at_s > now_s]
        return sorted(due + reports, key=lambda report: report.at_s)

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Drop attempts whose end is among the reports."""
        for report in reports:
            attempt = self._attempts.get(report.attempt) if report.attempt is not None else None
            if attempt is None:
                continue
            if report.kind is ReportKind.STARTED:
                attempt.started_acknowledged = True
            elif report.kind in _ENDS:
                del self._attempts[attempt.id]
                self._over.add(attempt.id)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Every attempt whose end was not acknowledged."""
        now_s = self._clock.now_s()
        return {attempt.id: self._status(attempt, now_s) for attempt in self._attempts.values()}

    # It keeps no files, and its attempts end with it.

    keeps_files = False
    attempts_host = None
    abilities = Abilities()

    def find_servers(self) -> None:
        """None: it has no machines."""

    def renew_leases(self) -> None:
        """Nothing: attempts end with the service."""

    def read_logs(self, job: JobId, attempt: int, offset: int, limit_bytes: int, node: int = 0) -> LogPart:
        """Raises KeyError: there are no logs."""
        raise KeyError(job)

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """Raises PermissionError: no attempt has a token."""
        raise PermissionError(attempt)

    def jobs_with_files(self) -> set[JobId]:
        """None."""
        return set()

    def prune(self, jobs: Iterable[JobId]) -> int:
        """Nothing to delete."""
        return 0

    def use_cluster(self, cluster: Cluster) -> None:
        """Nothing: attempts run on no server."""

    def close(self) -> None:
        """Nothing to release."""

    def _begin(self, launch: Launch, now_s: float) -> _Attempt:
        spec = launch.spec
        return _Attempt(
            id=launch.attempt,
            started_at_s=now_s + self._launch_s,
            duration_s=self._length_s(spec, launch.resume_iteration),
            exit_code=int(spec.labels.get(EXIT_CODE_LABEL, "0")),
            resume_iteration=launch.resume_iteration,
            total_iterations=spec.declared_iterations,
            checkpoints=spec.checkpoint_period_s is not None,
        )

    def _length_s(self, spec: JobSpec, resume_iteration: int) -> float:
        labelled = spec.labels.get(DURATION_LABEL)
        total = spec.declared_iterations
        if total is None:
            return float(labelled) if labelled is not None else self._duration_s
        whole_s = float(labelled) if labelled is not None else total * self._iteration_s
        return whole_s * max(0.0, 1.0 - resume_iteration / max(1, total))

    def _stop(self, stop: Stop, now_s: float) -> None:
        if stop.attempt in self._over:
            return
        attempt = self._attempts.get(stop.attempt)
        if attempt is None:
            # A tombstone: it ends at once, and never starts. An attempt of an earlier service ran until that ended. A loss
            # that names a server uses up no retry; which one it names makes no difference.
            end = Report(
                ReportKind.LOST,
                now_s,
                stop.attempt,
                ServerIndex(0),
                stop_signalled=True,
                detail="the service that simulated the attempt has ended",
            )
            attempt = _Attempt(stop.attempt, now_s, 0.0, started_acknowledged=True, stop_at_s=now_s, ended=end)
            self._attempts[stop.attempt] = attempt
        elif attempt.stop_at_s is None:
            attempt.stop_at_s = now_s + self._stop_s
            attempt.graceful = stop.graceful

    def _end_s(self, attempt: _Attempt) -> float:
        natural_s = attempt.started_at_s + attempt.duration_s
        return natural_s if attempt.stop_at_s is None else min(natural_s, attempt.stop_at_s)

    def _status(self, attempt: _Attempt, now_s: float) -> AttemptStatus:
        if attempt.ended is not None:
            return AttemptStatus.ENDED
        if attempt.stop_at_s is not None:
            return AttemptStatus.STOPPING
        return AttemptStatus.PENDING if now_s < attempt.started_at_s else AttemptStatus.RUNNING

    def _observe(self, attempt: _Attempt, now_s: float) -> list[Report]:
        reports = []
        if now_s >= attempt.started_at_s and not attempt.started_acknowledged:
            reports.append(Report(ReportKind.STARTED, attempt.started_at_s, attempt.id))
        if attempt.ended is None and now_s >= self._end_s(attempt):
            attempt.ended = self._end(attempt)
        if attempt.ended is not None:
            reports.append(attempt.ended)
        elif (iteration := self._iteration(attempt, now_s)) is not None and iteration != attempt.reported_iteration:
            attempt.reported_iteration = iteration
            checkpoint = iteration if attempt.checkpoints else None
            reports.append(
                Report(
                    ReportKind.PROGRESS,
                    now_s,
                    attempt.id,
                    iteration=iteration,
                    checkpoint_iteration=checkpoint,
                    total_iterations=attempt.total_iterations,
                )
            )
        return reports

    def _end(self, attempt: _Attempt) -> Report:
        at_s = self._end_s(attempt)
        iteration = self._iteration(attempt, at_s)
        report = Report(
            ReportKind.EXITED,
            at_s,
            attempt.id,
            iteration=iteration,
            checkpoint_iteration=iteration if attempt.checkpoints else None,
            total_iterations=attempt.total_iterations,
        )
        if at_s >= attempt.started_at_s + attempt.duration_s:
            return replace(report, exit_code=attempt.exit_code)
        if at_s < attempt.started_at_s:
            return replace(report, stop_signalled=True)
        saved = attempt.graceful and attempt.checkpoints
        return replace(report, exit_code=_CHECKPOINTED if saved else _TERMINATED, stop_signalled=True)

    def _iteration(self, attempt: _Attempt, at_s: float) -> float | None:
        total = attempt.total_iterations
        if total is None or at_s < attempt.started_at_s:
            return None
        share = (at_s - attempt.started_at_s) / attempt.duration_s if attempt.duration_s > 0 else 1.0
        return float(int(attempt.resume_iteration + (total - attempt.resume_iteration) * min(1.0, share)))

    def _with_faults(self, report: Report, now_s: float) -> list[Report]:
        """The report after the faults: withheld, repeated, delayed or unchanged."""
        faults = self._faults
        luck = _uniform(faults.seed, self._polls, report)
        if luck < faults.lost:
            return []
        if luck < faults.lost + faults.doubled:
            return [report, report]
        if luck < faults.lost + faults.doubled + faults.late:
            self._late.append((now_s + faults.late_s, report))
            return []
        return [report]


def _uniform(seed: int, poll: int, report: Report) -> float:
    """A number in [0, 1) that depends on its arguments alone, so that a run can be repeated."""
    digest = hashlib.sha256(f"{seed}/{poll}/{report.attempt}/{report.kind}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
