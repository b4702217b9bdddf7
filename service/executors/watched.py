"""One attempt as the local executor observes it: its folder is read at every poll until its end is acknowledged."""

import logging
import math
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policies.model.ids import AttemptId, ServerIndex
from policies.model.reasons import Reason
from service.engine.events import Report, ReportKind, Warned
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors.files import is_disk_full, rename_over, write_json
from service.executors.launch_plan import Identity
from service.executors.progress import Progress, ProgressFile
from service.executors.seal import Seal
from service.executors.starts import UNKNOWN, Child
from service.executors.supervision import STALL_S, Supervision
from service.executors.supervisor import EXIT_DISK_FULL, EXIT_TAKEN, why_not_begun
from service.runtime import processes
from service.runtime.cgroups import Cgroup, is_cgroup_path
from service.runtime.remains import Evidence, end_remains, remains_of

logger = logging.getLogger(__name__)

_REASONS = frozenset(Reason)
_KINDS = {"exited": ReportKind.EXITED, "launch_failed": ReportKind.LAUNCH_FAILED, "lost": ReportKind.LOST}


@dataclass(slots=True)
class WatchedAttempt:
    """``child`` is the keeper of the supervisor, if this process has started it and has not seen it end.

    ``end`` is the report of the end; it is repeated until it is acknowledged. ``again``: the end was acknowledged before and
    is reported once more because the attempt was requested again. ``cgroups``: where its control group is unless its folder names
    another place.
    """

    attempt: AttemptId
    folder: Path
    identity: Identity
    seal: Seal
    cgroups: Path | None
    child: Child | None = None
    started: Report | None = None
    started_acknowledged: bool = False
    progress: ProgressFile | None = None
    stopping: bool = False
    end: Report | None = None
    again: bool = False
    master_port: int = 0
    supervision: Supervision = field(init=False)
    _child_code: int | None = None
    _reported: tuple[float | None, ...] = field(default=())
    _remains_since_s: float = math.inf
    _remains_logged: bool = False

    def __post_init__(self) -> None:
        self.supervision = Supervision(self.folder, self.seal)

    @property
    def status(self) -> AttemptStatus:
        """The status that the engine reconciles with."""
        if self.end is not None:
            return AttemptStatus.ENDED
        if self.stopping:
            return AttemptStatus.STOPPING
        return AttemptStatus.RUNNING if self.started is not None else AttemptStatus.PENDING

    def observe(self, now_s: float) -> list[Report]:
        """All reports that are not acknowledged, in the order of events. A few system calls while nothing changes."""
        child_code = self._reap()
        if self.end is not None:
            return self._unacknowledged([])
        # The end counts only while nothing holds the lock: a job may have written the record.
        record = None if self._is_alive(child_code, now_s) else names.read_end(self.folder, self.seal)
        self._child_code = None
        self._read_start(now_s)
        progress = self._read_progress(now_s, record)
        if record is not None:
            self.finish(record)
        return self._unacknowledged(progress)

    def fail(self, at_s: float, reason: Reason, detail: str) -> None:
        """Note that the launch could not be tried."""
        self.finish(names.end_record("launch_failed", at_s, reason=reason, detail=detail))

    def end_unstarted(self, at_s: float) -> bool:
        """End an attempt without a folder, because the stop came first or the folder was deleted: leave a tombstone.

        Returns False if the attempt has started after all, so that it must be stopped. If no tombstone can be written yet, the
        next observation tries again.
        """
        record = names.end_record("exited", at_s, detail=names.STOPPED_FIRST, stop_signalled=True)
        if self.started is not None:
            record = names.end_record(
                "lost", at_s, reason=Reason.NODE_LOST, detail="its folder was deleted", stop_signalled=self.stopping
            )
        if (self.child is None or self.started is not None) and self._end_remains():
            self.supervision.signal(signal.SIGCONT)
            return True
        try:
            names.write_tombstone(self.folder.parent, self.attempt, record, self.seal)
        except names.Taken:
            return False
        except OSError as error:
            # A supervisor that is starting may still succeed. Without one, and without disk space, keep the end in memory.
            if self.child is None and is_disk_full(error):
                self.finish(record)
        return True

    def stop(self, warning_signal: str | None, grace_s: float) -> None:
        """Ask the supervisor to stop the attempt: by file or, if that cannot be written, by signal."""
        try:
            names.write_stop(self.folder, warning_signal, grace_s, self.seal)
        except OSError:
            self.supervision.signal(signal.SIGTERM)  # the keeper ignores it
        self.supervision.expect_end(warning_signal, grace_s)

    def resume_stop(self) -> None:
        """Take over an attempt of an earlier service, with the stop that was requested of it."""
        request = names.read_stop(self.folder, self.seal)
        self.stopping = request is not None
        if request is not None:
            self.supervision.expect_end(*request)

    def ends_with(self, report: Report) -> bool:
        """Note that ``report`` is committed; True if it reports the end."""
        if report.kind is ReportKind.STARTED:
            self.started_acknowledged = True
        return self.end is not None and report.kind is self.end.kind

    def settle(self) -> bool:
        """Mark the folder after the end is committed. False if there is no folder and no tombstone can be written.

        An attempt that failed before it had a folder gets a tombstone, so that a late duplicate of its launch never runs.
        """
        assert self.end is not None
        try:
            if not names.exists(self.folder):
                record = names.end_record(
                    "launch_failed", self.end.at_s, reason=self.end.reason, detail=self.end.detail
                )
                names.write_tombstone(self.folder.parent, self.attempt, record, self.seal)
            # A rename needs no disk space, so this works on a full disk.
            rename_over(self.folder, names.EXIT, names.ACKNOWLEDGED)
        except (OSError, names.Taken):
            return names.has(self.folder, names.ACKNOWLEDGED)
        return True

    def _unacknowledged(self, progress: list[Report]) -> list[Report]:
        reports = []
        if self.started is not None and not self.started_acknowledged and not self.again:
            reports.append(self.started)
        reports += progress
        if self.end is not None:
            reports.append(self.end)
        return reports

    def _reap(self) -> int | None:
        """The exit code of the keeper if it was started by this process and has ended since the last complete observation."""
        if self.child is not None and (code := self.child.exit_code()) is not None:
            self.child = None
            # It is seen only once, and the observation that needs it may fail.
            self._child_code = code
        return self._child_code

    def _read_start(self, now_s: float) -> None:
        if self.started is not None:
            return
        record = names.read_record(self.folder, names.STARTED, self.seal)
        if record is not None:
            reported_s = names.seconds(record.get("at_s"))
            at_s = now_s if reported_s is None else reported_s
            self.started = Report(ReportKind.STARTED, at_s, self.attempt)
            self.progress = ProgressFile(self.folder / names.PROGRESS, at_s)

    def _read_progress(self, now_s: float, end: dict[str, Any] | None) -> list[Report]:
        if self.progress is None or not self.progress.read(now_s, final=end is not None):
            return []
        progress = self.progress.progress
        reported = (progress.iteration, progress.total_iterations, progress.checkpoint_iteration)
        if reported == self._reported:
            return []
        self._reported = reported
        at_s = now_s if end is None else min(now_s, float(end["at_s"]))
        return [
            Report(
                ReportKind.PROGRESS,
                at_s,
                self.attempt,
                iteration=progress.iteration,
                total_iterations=progress.total_iterations,
                checkpoint_iteration=progress.checkpoint_iteration,
                loss=progress.loss,
                input_s=progress.input_s,
            )
        ]

    def finish(self, record: dict[str, Any]) -> None:
        """Create the report of the end from the contents of ``exit.json``."""
        progress = self.progress.progress if self.progress is not None else Progress()
        self.end = Report(
            _KINDS[record["outcome"]],
            float(record["at_s"]),
            self.attempt,
            exit_code=record["exit_code"],
            reason=Reason(record["reason"]) if record["reason"] in _REASONS else None,
            stop_signalled=record["stop_signalled"],
            iteration=progress.iteration,
            total_iterations=progress.total_iterations,
            checkpoint_iteration=progress.checkpoint_iteration,
            detail=record["detail"],
            warning=Warned(warning) if (warning := record.get("warning")) is not None else None,
            server=ServerIndex(server) if (server := names.position(record.get("server"))) is not None else None,
        )

    def _is_alive(self, child_code: int | None, now_s: float) -> bool:
        """Whether the supervisor lives. If not, kill the processes that it left and write the end for it."""
        if not names.exists(self.folder):
            if self.started is None:
                self._end_without_folder(child_code, now_s)
            if self.end is None and (self.stopping or self.started is not None):
                self.end_unstarted(now_s)
            return True
        if self.supervision.is_held():
            return True
        if names.read_end(self.folder, self.seal) is not None:
            return False
        supervisor = self._supervisor()
        boot = supervisor.get("boot_id")
        rebooted = isinstance(boot, str) and boot != processes.boot_id()
        # Report the loss only after no process is left that could write checkpoints. Numbers of another boot prove nothing; what
        # processes inherited still does.
        over = rebooted and self._is_older_than_boot()
        if not over and self._end_remains(numbers=isinstance(boot, str) and not rebooted):
            return True
        if rebooted:
            # The server was lost, whoever notices it: this service, or another one that leads meanwhile.
            self._write_lost("the machine was restarted", now_s, names.position(supervisor.get("server")))
        else:
            self._write_lost("its supervisor was killed", now_s)
        return False

    def _is_older_than_boot(self) -> bool:
        """Whether the supervisor's record was not written in this boot. A job that forges it changes this time (ctime) to now."""
        changed_s = (self.folder / names.SUPERVISOR).stat(follow_symlinks=False).st_ctime
        return changed_s < time.time() - processes.boot_time_s()

    def _supervisor(self) -> dict[str, Any]:
        return names.read_record(self.folder, names.SUPERVISOR, self.seal, strict=True) or {}

    def _end_remains(self, numbers: bool = True) -> bool:
        """Kill what is left; returns whether anything was. ``numbers``: those of the attempt's records are of this boot.

        What cannot be killed, such as a program of another user, is logged once, because it holds the attempt's GPUs.
        """
        evidence = self._evidence(numbers)
        if not end_remains(evidence):
            return False
        now_s = time.monotonic()
        self._remains_since_s = min(self._remains_since_s, now_s)
        if not self._remains_logged and now_s >= self._remains_since_s + STALL_S:
            self._remains_logged = True
            left = (
                ", ".join(str(process.pid) for process in remains_of(evidence, processes.all_processes())) or "unknown"
            )
            logger.error(
                "attempt %s has lost its supervisor, and its processes cannot be ended: %s", self.attempt, left
            )
        return True

    def _evidence(self, numbers: bool) -> Evidence:
        recorded = self._supervisor().get("cgroup")
        group = self.identity.group
        cgroups = [Cgroup(path) for path in self.cgroups.glob(f"{group}*")] if self.cgroups is not None else []
        if isinstance(recorded, str) and Path(recorded).name.startswith(group):
            # An earlier service may have run in another group. The path may be forged by the job.
            cgroups += [Cgroup(Path(recorded))] if is_cgroup_path(Path(recorded)) else []
        return Evidence(
            marker=self.identity.entry,
            mark=self.identity.mark,
            ranks=[processes.ProcessId(*rank) for rank in names.read_ranks(self.folder, self.seal)] if numbers else (),
            pipes=names.read_pipes(self.folder, self.seal) if numbers else (),
            cgroups=cgroups,
        )

    def _end_without_folder(self, child_code: int | None, now_s: float) -> None:
        if child_code is None and self.child is not None:
            self.child.starter.resume()
        if child_code is None or child_code == EXIT_TAKEN:
            return
        if child_code == UNKNOWN:
            self._bar(now_s)
            return
        full = child_code == EXIT_DISK_FULL
        reason = Reason.DISK_FULL if full else Reason.LAUNCH_FAILED
        self.fail(now_s, reason, why_not_begun(child_code))

    def _bar(self, now_s: float) -> None:
        """Take the attempt's name, unless it begins meanwhile: its keeper may be about to. Raises OSError."""
        detail = "the process that was to start it was killed"
        record = names.end_record("launch_failed", now_s, reason=Reason.LAUNCH_FAILED, detail=detail)
        with suppress(names.Taken):
            names.write_tombstone(self.folder.parent, self.attempt, record, self.seal)

    def _write_lost(self, detail: str, now_s: float, server: int | None = None) -> None:
        signalled = names.has(self.folder, names.SIGNALLED)
        record = names.end_record(
            "lost", now_s, reason=Reason.NODE_LOST, detail=detail, stop_signalled=signalled, server=server
        )
        try:
            write_json(
                self.folder / names.EXIT, self.seal.sealed(names.EXIT, record), reserved=self.folder / names.RESERVED
            )
        except OSError as error:
            if not is_disk_full(error):
                raise
            # Report from memory. After a restart the same end is found again.
            self.finish(record)
