"""Runs attempts as processes of this machine, each under a supervisor that outlives the service.

The executor never waits for a job. Its state can be read again from the folders of the attempts, so a restarted service finds its
running attempts. Jobs run as the user of the service, or as their own users.
"""

import hmac
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, ServerIndex, attempt_id, job_of
from policies.model.reasons import Reason
from service.engine.commands import Command, Launch, Stop
from service.engine.crash_points import CrashPoint, reached
from service.engine.events import Report, ReportKind
from service.engine.ports import Abilities, AttemptStatus, Clock, ExecutorUnavailable
from service.executors import folder as names
from service.executors.containers import Containers
from service.executors.deletion import delete_entry, delete_path
from service.executors.fencing import Fence
from service.executors.files import is_disk_full, rename_over
from service.executors.gpus import GpuInfo, device_ids
from service.executors.keys import ATTEMPT_NAME, AttemptKeys, attempts_of
from service.executors.launch_plan import Site, build_plan, free_port
from service.executors.logs import LogChunk, read_log
from service.executors.progress import LINE_BYTES_MAX, Ignored, RateLimit, check_line
from service.executors.renewal import Renewal
from service.executors.starts import TOGETHER_MAX, Child, Starter, start
from service.executors.watched import WatchedAttempt
from service.runtime.accounts import NoAccount
from service.runtime.processes import boot_time_s
from service.runtime.untrusted import open_below, open_folder

logger = logging.getLogger(__name__)

_DRAFT_AGE_S = 60.0
_PATIENCE_S = 1.0
"""Longest wait of a progress report over HTTP, which holds one of the threads that answer requests."""
_KEPT_WHEN_PRUNED = frozenset({names.LOCK, names.ACKNOWLEDGED, names.EXIT})


class LocalExecutor:
    """Implements :class:`service.engine.ports.LiveExecutor` on one machine.

    ``lease_s``: seconds without :meth:`renew_leases` or :meth:`poll` after which supervisors stop their attempts.
    ``log_bytes_max``: kept of an attempt's output. ``progress_url``: template with ``{job}`` and ``{attempt}`` of where a
    program may POST its progress (None: by file only). ``term_grace_s``: between SIGTERM and SIGKILL where no stop says
    otherwise. ``gpus``: what :func:`service.executors.gpus.detect` found; None = GPUs are virtual. ``own``: the servers of the
    cluster that are this machine; others are reported as down (None: all, pretended or not). ``checkpoints``: the folder
    of all jobs' checkpoints (None: in the data folder). ``cgroups``: the folder of the attempts' control groups, see
    :func:`service.runtime.cgroups.usable_parent` (None: without). ``limits``: the controllers that limit such groups, see
    :func:`service.runtime.cgroups.limits_below`. ``containers``: what runs images (None: nothing). ``run_as_users``: see
    :func:`service.runtime.accounts.account_of` (None: jobs run as this process' user). ``renews_alone``: a poll renews the lease;
    else the caller calls :meth:`renew_leases`. Methods may be called from several threads.
    """

    def __init__(
        self,
        data_dir: Path,
        cluster: Cluster,
        *,
        clock: Clock,
        lease_s: float = 60.0,
        log_bytes_max: int = 16 * 1024 * 1024,
        progress_url: str | None = None,
        term_grace_s: float = 10.0,
        gpus: Sequence[GpuInfo] | None = None,
        own: frozenset[str] | None = None,
        checkpoints: Path | None = None,
        cgroups: Path | None = None,
        limits: frozenset[str] = frozenset(),
        containers: Containers | None = None,
        run_as_users: Mapping[str, str] | None = None,
        renews_alone: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise NotImplementedError("the local executor needs Linux (/proc, pidfd, child subreapers)")
        self._clock = clock
        self._site = Site(
            data_dir=names.make_private(data_dir.absolute()),
            environ=dict(os.environ if environ is None else environ),
            lease_s=lease_s,
            log_bytes_max=log_bytes_max,
            term_grace_s=term_grace_s,
            progress_url=progress_url,
            device_ids=device_ids(cluster, gpus, own),
            checkpoints_dir=(checkpoints or data_dir / "checkpoints").absolute(),
            cgroups=cgroups,
            limits=limits,
            containers=containers,
            physical_gpus=bool(gpus),
            run_as_users=run_as_users,
        )
        self._gpus = gpus
        self._own = own
        self._cluster = cluster
        self._foreign: dict[ServerIndex, str] = {}
        """Servers of other machines that the engine does not know to be down."""
        self._note_foreign()
        self._renews_alone = renews_alone
        self._renewal = Renewal(self._site.lease_file, lease_s)
        self._attempts = names.make_private(self._site.attempts_dir)
        self._keys = AttemptKeys(data_dir)
        self._fence = Fence(data_dir / "fence")
        self._lock = threading.RLock()
        self._live: dict[AttemptId, WatchedAttempt] = {}
        self._never: set[AttemptId] = set()
        self._starters: list[Starter] = []
        self._unseen: set[AttemptId] = set()
        self._uncommanded: dict[AttemptId, str] = {}
        self._undeleted: set[Path] = set()
        self._url_limits: dict[AttemptId, RateLimit] = {}
        self.refused_commands = 0
        """Commands refused because a newer leader has sent some."""
        if renews_alone or not self._site.lease_file.exists():
            self.renew_leases()
        self._adopt()

    # The port.

    def send(self, commands: Sequence[Command]) -> None:
        """Carry out commands, each once. Launches in a row cost one process start (about a millisecond); they are not waited for.

        A command that the operating system refuses is logged and holds up no other: reconciliation sends it again.
        """
        with self._lock, self._fence.held() as fence:
            for group in _groups(commands):
                admitted = [command for command in group if fence.admits(command.fencing_token)]
                self.refused_commands += len(group) - len(admitted)
                self._start([plan for command in admitted if (plan := self._carry_out(command)) is not None])
                for _ in group:
                    reached(CrashPoint.COMMANDED)

    def poll(self) -> Sequence[Report]:
        """Reports read from the folders of the attempts. O(live attempts), about ten system calls each."""
        if self._renews_alone:
            self.renew_leases()
        now_s = self._clock.now_s()
        with self._lock:
            self._starters = [starter for starter in self._starters if starter.look()]
            reports = [report for watched in self._live.values() for report in self._look_at(watched, now_s)]
            reports += [
                Report(ReportKind.SERVER_DOWN, now_s, server=server, detail=f"{name} is not this machine")
                for server, name in self._foreign.items()
            ]
        return sorted(reports, key=lambda report: report.at_s)

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Drop the attempts whose end is among ``reports``; their folders stay until they are pruned."""
        with self._lock:
            for report in reports:
                if report.server is not None and report.kind is ReportKind.SERVER_DOWN:
                    self._foreign.pop(report.server, None)
                watched = self._live.get(report.attempt) if report.attempt is not None else None
                if watched is not None and watched.ends_with(report):
                    self._forget(watched)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Every attempt whose end was not acknowledged."""
        with self._lock:
            return {attempt: watched.status for attempt, watched in self._live.items()}

    # The other ports of a live executor.

    keeps_files = True
    attempts_host = None

    @property
    def abilities(self) -> Abilities:
        """All servers are parts of this machine."""
        return Abilities(users=self._site.run_as_users is not None)

    def find_servers(self) -> None:
        """None: :func:`service.executors.gpus.local_cluster` describes this machine."""

    def renew_leases(self) -> None:
        """Extend the lease that all supervisors check. Call it at least every ``lease_s`` / 3."""
        # The file exists since the first start, so a full disk does not end the lease.
        self._renewal.renew()

    def use_cluster(self, cluster: Cluster) -> None:
        """Placements of later launches refer to the servers of this cluster: a new leader may know more servers."""
        with self._lock:
            if cluster is not self._cluster:
                self._cluster = cluster
                self._note_foreign()
                self._site = replace(self._site, device_ids=device_ids(cluster, self._gpus, self._own))

    def jobs_with_files(self) -> set[JobId]:
        """Jobs that still have logs. O(all attempts ever made)."""
        logs = (path for path in self._attempts.iterdir() if ATTEMPT_NAME.fullmatch(path.name) and names.exists(path))
        return {job_of(AttemptId(path.name)) for path in logs if os.path.lexists(path / names.OUTPUT)}

    def read_logs(self, job: JobId, attempt: int, offset: int = 0, limit_bytes: int = 65536, node: int = 0) -> LogChunk:
        """A part of the log of an attempt, which has one for all servers. Raises KeyError if there is no such attempt or node."""
        folder = self._attempts / attempt_id(job, attempt)
        if node != 0 or not names.exists(folder):
            raise KeyError(attempt_id(job, attempt))
        return read_log(folder / names.OUTPUT, offset, limit_bytes)

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """Append one line to the progress file of the attempt, whose rules it must obey; False if it breaks one.

        Raises PermissionError for a wrong token or an attempt that does not run, and ExecutorUnavailable if a disk hangs.
        """
        if not ATTEMPT_NAME.fullmatch(attempt) or not hmac.compare_digest(
            self._keys.identity(attempt).token.encode(), token.encode()
        ):
            raise PermissionError(attempt)
        if isinstance(check_line(line), Ignored):
            return False
        data = json.dumps(dict(line)).encode() + b"\n"
        now_s = self._clock.now_s()
        if not self._lock.acquire(timeout=_PATIENCE_S):
            raise ExecutorUnavailable("the folders of the attempts do not answer")
        try:
            watched = self._live.get(attempt)
            if watched is None or watched.end is not None:
                raise PermissionError(attempt)
            if len(data) > LINE_BYTES_MAX:
                return False
            if self._url_limits.setdefault(attempt, RateLimit(now_s)).admit(1, now_s) == 0:
                return False
            return _append(watched.folder / names.PROGRESS, data)
        finally:
            self._lock.release()

    def prune(self, jobs: Iterable[JobId]) -> int:
        """Delete logs, work folders and checkpoints of ended jobs; returns the number of attempts.

        A few bytes of each attempt stay, so that it never runs again. Files that cannot be deleted hold up no other job; they are
        logged once. They count as files of their job until they are gone.
        """
        pruned = 0
        for job, attempts in attempts_of(self._attempts, jobs).items():
            if not self._deleted(self._site.checkpoint_dir(job)):
                continue
            for attempt in attempts:
                folder = self._attempts / attempt
                if names.has(folder, names.ACKNOWLEDGED):
                    pruned += self._deleted(folder)
        return pruned

    def _deleted(self, path: Path) -> bool:
        try:
            if path.parent == self._attempts:
                _delete_files(path)
            else:
                delete_path(path)
        except OSError as error:
            if path not in self._undeleted:
                logger.error("%s cannot be deleted: %s", path, error)
            self._undeleted.add(path)
            return False
        self._undeleted.discard(path)
        return True

    def close(self) -> None:
        """Release everything. Attempts run on, and the next executor on the folder finds them."""
        with self._lock:
            self._live.clear()
            for starter in self._starters:
                starter.close()

    # Inside.

    def _note_foreign(self) -> None:
        """A server of another machine would be a pretence: its jobs would run here, on GPUs of other jobs."""
        if self._own is not None:
            servers = enumerate(self._cluster.servers)
            self._foreign = {ServerIndex(index): each.name for index, each in servers if each.name not in self._own}

    def _adopt(self) -> None:
        names.sweep_drafts(self._attempts, time.time() - _DRAFT_AGE_S)
        for folder in self._attempts.iterdir():
            if not ATTEMPT_NAME.fullmatch(folder.name) or not names.exists(folder):
                continue
            # A job may have written the record. It cannot have taken the lock from its supervisor.
            if not names.has(folder, names.ACKNOWLEDGED) or _may_be_supervised(folder):
                watched = self._watch(AttemptId(folder.name))
                watched.resume_stop()
                identity = names.read_record(folder, names.SUPERVISOR, watched.seal) or {}
                port = identity.get("master_port")
                watched.master_port = port if isinstance(port, int) else 0

    def _look_at(self, watched: WatchedAttempt, now_s: float) -> Sequence[Report]:
        try:
            found = watched.observe(now_s)
        except OSError as error:
            # A folder that a job has locked, or a disk has lost, must not hold up the others. It is read again later.
            if watched.attempt not in self._unseen:
                logger.error("the folder of attempt %s cannot be read: %s", watched.attempt, error)
            self._unseen.add(watched.attempt)
            return ()
        self._unseen.discard(watched.attempt)
        return found

    def _watch(self, attempt: AttemptId) -> WatchedAttempt:
        identity = self._keys.identity(attempt)
        watched = WatchedAttempt(
            attempt, self._attempts / attempt, identity, self._keys.seal(attempt), self._site.cgroups
        )
        self._live[attempt] = watched
        return watched

    def _forget(self, watched: WatchedAttempt) -> None:
        if not watched.settle():
            self._never.add(watched.attempt)
        reached(CrashPoint.SETTLED)
        del self._live[watched.attempt]
        self._url_limits.pop(watched.attempt, None)

    def _carry_out(self, command: Command) -> dict[str, Any] | None:
        """Carry out a stop, or all of a launch but the start; returns the plan of the attempt to be started, if one is."""
        attempt = command.attempt
        known = self._live.get(attempt)
        stopping = known is not None and known.stopping
        plan = None
        try:
            if isinstance(command, Launch):
                plan = self._prepare(command)
            else:
                self._stop(command)
        except OSError as error:
            # The attempt must look as before, or the command would count as carried out and not come again.
            if known is not None:
                known.stopping = stopping
            else:
                self._live.pop(attempt, None)
            if self._uncommanded.get(attempt) != str(error):
                logger.error("a command for attempt %s cannot be carried out: %s", attempt, error)
            self._uncommanded[attempt] = str(error)
        else:
            self._uncommanded.pop(attempt, None)
        return plan

    def _prepare(self, launch: Launch) -> dict[str, Any] | None:
        attempt = launch.attempt
        if attempt in self._live or attempt in self._never or self._reopened(attempt):
            return None
        watched = self._watch(attempt)
        if (server := self._faulty(launch)) is not None:
            watched.finish(
                names.end_record(
                    "lost",
                    self._clock.now_s(),
                    reason=Reason.NODE_LOST,
                    detail="GPUs of its server are gone",
                    server=server,
                )
            )
            return None
        identity = self._keys.identity(attempt)
        taken = {other.master_port for other in self._live.values()}
        try:
            watched.master_port = free_port(taken, first=int(identity.token[:8], 16))
            clock_s = self._clock.now_s() - boot_time_s()
            return build_plan(launch, self._site, identity, watched.master_port, clock_s)
        except NoAccount as refusal:
            watched.fail(self._clock.now_s(), Reason.LAUNCH_FAILED, str(refusal))
        except OSError as error:
            self._fail(watched, error)
        return None

    def _start(self, plans: Sequence[dict[str, Any]]) -> None:
        if not plans:
            return
        prepared = [self._live[AttemptId(plan["attempt"])] for plan in plans]
        try:
            starter = start(plans)
        except OSError as error:
            for watched in prepared:
                self._fail(watched, error)
            return
        reached(CrashPoint.SPAWNED)
        self._starters.append(starter)
        for position, watched in enumerate(prepared):
            watched.child = Child(starter, position)

    def _fail(self, watched: WatchedAttempt, error: OSError) -> None:
        reason = Reason.DISK_FULL if is_disk_full(error) else Reason.LAUNCH_FAILED
        watched.fail(self._clock.now_s(), reason, f"{error.strerror or error}")

    def _faulty(self, launch: Launch) -> ServerIndex | None:
        """A server of the launch that is this machine and has fewer GPUs now than it has in the cluster.

        It is drained, but a launch may have been decided before, by a service that ended before it could carry it out.
        """
        if not self._gpus or self._own is None:
            return None
        ids = self._site.device_ids or ()
        return next((server for server in launch.placement.servers if server < len(ids) and not ids[server]), None)

    def _stop(self, stop: Stop) -> None:
        attempt = stop.attempt
        warning = stop.warning_signal if stop.graceful else None
        watched = self._live.get(attempt)
        if watched is not None and watched.end is not None:
            return
        if watched is None:
            if attempt in self._never or self._reopened(attempt):
                return
            watched = self._watch(attempt)
        watched.stopping = True
        if not names.exists(watched.folder) and watched.end_unstarted(self._clock.now_s()):
            return
        watched.stop(warning, stop.grace_s)

    def _reopened(self, attempt: AttemptId) -> bool:
        """Whether the end of the attempt is acknowledged. A command for it means that the end was lost: report it again."""
        folder = self._attempts / attempt
        if not names.has(folder, names.ACKNOWLEDGED):
            return False
        if names.read_end(folder, self._keys.seal(attempt), names.ACKNOWLEDGED) is not None:
            rename_over(folder, names.ACKNOWLEDGED, names.EXIT)
            self._watch(attempt).again = True
        else:
            self._watch(attempt)
        return True


def _groups(commands: Sequence[Command]) -> Iterator[list[Command]]:
    """The commands in their order: up to :data:`TOGETHER_MAX` launches in a row together, and each stop alone."""
    group: list[Command] = []
    for command in commands:
        if group and (isinstance(command, Stop) or isinstance(group[-1], Stop) or len(group) == TOGETHER_MAX):
            yield group
            group = []
        group.append(command)
    if group:
        yield group


def _may_be_supervised(folder: Path) -> bool:
    """Whether a supervisor holds the lock. True if it cannot be opened: no folder may keep a service from starting."""
    try:
        return names.is_supervised(folder)
    except OSError:
        return True


def _append(path: Path, data: bytes) -> bool:
    try:
        descriptor = open_below(path.parent, path.name, flags=os.O_WRONLY | os.O_APPEND)
    except OSError:
        return False
    try:
        return os.write(descriptor, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _delete_files(folder: Path) -> None:
    """Delete all of an attempt except the records that keep it from running again, and the log last. Raises OSError."""
    place = open_folder(folder)
    try:
        with os.scandir(place) as entries:
            found = [entry.name for entry in entries if not _is_kept(entry)]
        for name in sorted(found, key=lambda name: name == names.OUTPUT):
            delete_entry(place, name)
    finally:
        os.close(place)


def _is_kept(entry: os.DirEntry[str]) -> bool:
    return entry.name in _KEPT_WHEN_PRUNED and not entry.is_dir(follow_symlinks=False)
