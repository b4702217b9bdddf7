"""Attempts on the servers of an engine: the live executor over an :class:`EngineDriver` and a shared folder.

The scheduling thread never waits here: commands are noted, answers come from memory. Three groups of threads do the work: one
asks the engine for its jobs and servers, one looks at the folders of attempts, and one makes the calls that change something. All
that counts is in the shared folder and in the engine, so any service with this folder continues where another one has ended.

It works only for a service that leads, which shows by its calls of :meth:`ClusterExecutor.poll` or
:meth:`ClusterExecutor.observed`. For others it is idle: two must not act on one attempt.
"""

import contextlib
import logging
import math
import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, ServerIndex, job_of
from policies.model.resources import taken_by
from service.engine.commands import Command, Launch
from service.engine.crash_points import CrashPoint, reached
from service.engine.events import Report
from service.engine.ports import Abilities, AttemptStatus, Clock, ExecutorUnavailable, FoundServer
from service.executors.cluster import folder as shared
from service.executors.cluster.attempt import ClusterAttempt
from service.executors.cluster.calls import EngineCalls
from service.executors.cluster.checks import NodeChecks
from service.executors.cluster.driver import (
    EngineDriver,
    EngineJob,
    EngineJobState,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
)
from service.executors.cluster.files import ClusterFiles
from service.executors.cluster.plan import PlanNode, cluster_plan, on_nodes
from service.executors.cluster.runtime import check_program, install_runtime, node_program
from service.executors.cluster.servers import ServerMirror
from service.executors.cluster.shared import ATTEMPTS, LaunchRecord, LiveIndex, cluster_id
from service.executors.cluster.surroundings import Dropped, StopOrder, Surroundings
from service.executors.cluster.workers import Workers
from service.executors.fencing import Fence
from service.executors.keys import AttemptKeys
from service.executors.launch_plan import Site
from service.executors.logs import LogChunk
from service.executors.renewal import Renewal
from service.runtime.accounts import NoAccount, account_of

logger = logging.getLogger(__name__)

ACTIVE_S = 30.0
"""Time after the last poll in which the executor works for its caller."""
_FIRST_ANSWER_S = 15.0
ORPHAN_S = 5.0
"""Time for which a submission of no live attempt is seen before it counts as one of an attempt that is over."""
_RETRY_S = 1.0
_SETTLE_S = 5.0
_GAP = 0.2
"""Least time between two answers of the engine, as a part of the poll period: a change of an attempt asks at once."""
_NODES_S = 1.0
"""Least time between two looks at the engine's servers: they change rarely, and nothing waits for it."""
_AROUND_S = 900.0
"""What an attempt takes beside its program and its stop at most: until all servers have begun, and while the service is away."""
_RUNNING_S = 1.0
_LOOKS_PER_S = 500.0
"""Most looks at running attempts in a second, for their progress. A change in the engine has an attempt looked at at once."""
_FENCE_S = 2.0
"""Longest wait for another leader that holds the fence: it may have lost its network, and the threads that look are few."""
_CALLS = 8
_LOOKS = 4
_ASKS = 3
_MADE_BY_ALL = 0o1733
"""Mode of a folder in which every user can make entries, and list none."""
_JOBS, _NODES, _ADOPT, _LEASE, _ORPHAN, _CHECKS = "jobs", "nodes", "adopt", "lease", "orphan", "checks"


class ClusterExecutor:
    """Implements :class:`service.engine.ports.LiveExecutor` over ``driver`` and ``shared_dir``.

    ``shared_dir_on_nodes``: its path on the servers (None: the same). ``node_python``: Python 3.11 or newer on the servers.
    ``poll_s``: between two answers of the engine. ``checkpoints``: the folder of all jobs' checkpoints (None: in ``shared_dir``;
    one below it is mapped as well). ``run_as_users``: see :func:`service.runtime.accounts.account_of` (None: all jobs run as one
    user, that of this service in the engine). ``checks_servers``: see :class:`NodeChecks`. The others are as those of
    :class:`service.executors.local.LocalExecutor`. Methods may be called from several threads. Raises OSError if the shared
    folder cannot be used.
    """

    def __init__(
        self,
        driver: EngineDriver,
        shared_dir: Path,
        cluster: Cluster,
        *,
        clock: Clock,
        shared_dir_on_nodes: PurePosixPath | None = None,
        node_python: str = "python3",
        poll_s: float = 1.0,
        lease_s: float = 60.0,
        log_bytes_max: int = 16 * 1024 * 1024,
        progress_url: str | None = None,
        term_grace_s: float = 10.0,
        checkpoints: Path | None = None,
        run_as_users: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        elapsed_s: Callable[[], float] = time.monotonic,
        checks_servers: bool = False,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._elapsed_s = elapsed_s
        self._poll_s = poll_s
        shared_dir = shared_dir.absolute()
        shared_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._attempts = shared_dir / ATTEMPTS
        self._attempts.mkdir(mode=0o711, exist_ok=True)
        self.attempts_host = cluster_id(shared_dir)
        self._keys = AttemptKeys(shared_dir)
        self._fence = Fence(shared_dir / "fence", _FENCE_S)
        self._index = LiveIndex(shared_dir)
        on_servers = Path(shared_dir_on_nodes) if shared_dir_on_nodes is not None else shared_dir
        self._checkpoints = (checkpoints or shared_dir / "checkpoints").absolute()
        if run_as_users is not None:
            # The node programs run as the users of the jobs, and make the folders of the jobs here, under names that others
            # can neither guess nor list: else a user could make the folder of another one's job.
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            self._checkpoints.chmod(_MADE_BY_ALL)
        checkpoint_name = str if run_as_users is None else self._keys.checkpoints
        self._site = Site(
            data_dir=on_servers,
            environ=dict(os.environ if environ is None else environ),
            lease_s=lease_s,
            log_bytes_max=log_bytes_max,
            term_grace_s=term_grace_s,
            progress_url=progress_url,
            device_ids=None,
            checkpoints_dir=on_nodes(self._checkpoints, shared_dir, on_servers),
            cgroups=None,
            checkpoint_name=checkpoint_name,
        )
        self._lease_file = shared_dir / "lease"
        self._renewal = Renewal(self._lease_file, lease_s)
        self._run_as_users = run_as_users
        digest = install_runtime(shared_dir)
        self._program = node_program(node_python, on_servers, digest)
        check = partial(check_program, node_python, on_servers, digest)
        self._checks = NodeChecks(driver, shared_dir, check, elapsed_s) if checks_servers else None
        self._mirror = ServerMirror(driver.name)
        self._servers_known = threading.Event()
        self._files = ClusterFiles(self._attempts, self._checkpoints, self._keys, clock, checkpoint_name)
        self._lock = threading.Lock()
        self._live: dict[AttemptId, ClusterAttempt] = {}
        self._settling: set[AttemptId] = set()
        self._settled = threading.Condition(self._lock)
        self._orphans: dict[str, float] = {}
        self._cluster: Cluster | None = None
        self._names: tuple[str, ...] = ()
        self._positions: dict[str, ServerIndex] = {}
        self._complete = False
        self._polled_s = self._asked_s = -math.inf
        self._silence = ""
        self._highest_token = 0
        self.refused_commands = 0
        """Commands refused because a newer leader has sent some."""
        self._asks = Workers("engine-poll", _ASKS)
        self._looks = Workers("attempt-folder", _LOOKS)
        self._calls = Workers("engine-call", _CALLS)
        self._leases = Workers("lease", 1)
        self._around = self._surroundings()
        self._engine_calls = EngineCalls(driver, self._node_launch, self._looks.wake, elapsed_s)
        self.use_cluster(cluster)
        if not self._lease_file.exists():
            self._write_lease()

    # The port.

    def send(self, commands: Sequence[Command]) -> None:
        """Note commands; threads carry them out. What is lost with this process is sent again by reconciliation."""
        self._activate()
        with self._lock:
            for command in commands:
                if command.fencing_token < self._highest_token:
                    self.refused_commands += 1
                    continue
                self._highest_token = command.fencing_token
                if command.attempt not in self._settling:
                    self._note(command)
                reached(CrashPoint.COMMANDED)

    def poll(self) -> Sequence[Report]:
        """Reports from memory. O(live attempts), without any call to the engine or the folder."""
        self._activate()
        with self._lock:
            if not self._complete:
                return ()
            reports = [report for attempt in self._live.values() for report in attempt.reports()]
            reports += self._mirror.reports(self._positions)
        return sorted(reports, key=lambda report: report.at_s)

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Drop the attempts whose end is among ``reports``; their folders stay until they are pruned."""
        with self._lock:
            for report in reports:
                if report.attempt is None:
                    self._mirror.acknowledge(report, self._names)
                elif (attempt := self._live.get(report.attempt)) is not None and attempt.acknowledge(report):
                    del self._live[report.attempt]
                    self._settling.add(report.attempt)
                    self._calls.forget(report.attempt)
                    self._looks.start(report.attempt, partial(self._settle, attempt))

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Every attempt whose end was not acknowledged. Raises ExecutorUnavailable until all of them are known."""
        self._activate()
        with self._lock:
            if not self._complete:
                raise ExecutorUnavailable(f"the attempts in {self._attempts} are not known yet")
            return {attempt: found.status for attempt, found in self._live.items()}

    def use_cluster(self, cluster: Cluster) -> None:
        """Launches and reports refer to the servers of this cluster by position, the engine to the same ones by name."""
        with self._lock:
            if cluster is self._cluster:
                return
            self._cluster = cluster
            self._names = tuple(server.name for server in cluster.servers)
            self._positions = {name: ServerIndex(position) for position, name in enumerate(self._names)}
            self._mirror.expect(cluster.servers, self._clock.now_s())

    # The other ports of a live executor.

    keeps_files = True

    @property
    def abilities(self) -> Abilities:
        """Those of the engine."""
        return self._driver.abilities

    def find_servers(self) -> Sequence[FoundServer]:
        """The engine's servers. Later polls report what has changed since. Waits for the first answer of the engine."""
        self._activate()
        if not self._servers_known.wait(_FIRST_ANSWER_S):
            raise ExecutorUnavailable(f"{self._driver.name} has not named its servers for {_FIRST_ANSWER_S:g} s")
        with self._lock:
            return self._mirror.baseline()

    def renew_leases(self) -> None:
        """Extend the lease that all node programs check, without waiting for the folder."""
        self._leases.start(_LEASE, self._write_lease)

    def jobs_with_files(self) -> set[JobId]:
        """Jobs that still have logs. O(all attempts ever made)."""
        return self._files.jobs_with_files()

    def read_logs(self, job: JobId, attempt: int, offset: int = 0, limit_bytes: int = 65536, node: int = 0) -> LogChunk:
        """A part of the log of an attempt on one of its servers. Raises KeyError if there is none."""
        return self._files.read_logs(job, attempt, offset, limit_bytes, node)

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """See :meth:`ClusterFiles.accept_progress`. Any service with the shared folder may get the line."""
        return self._files.accept_progress(attempt, token, line)

    def prune(self, jobs: Iterable[JobId]) -> int:
        """See :meth:`ClusterFiles.prune`. Waits a little for ends that were acknowledged just now."""
        jobs = set(jobs)
        with self._settled:
            self._settled.wait_for(lambda: jobs.isdisjoint(job_of(attempt) for attempt in self._settling), _SETTLE_S)
        return self._files.prune(jobs)

    def close(self) -> None:
        """Release everything. Attempts run on, and the next executor on the folder finds them."""
        for workers in (self._asks, self._looks, self._calls, self._leases):
            workers.close()
        self._driver.close()

    # Inside: working for a service that leads.

    @property
    def _idle(self) -> bool:
        return self._elapsed_s() - self._polled_s > ACTIVE_S

    def _activate(self) -> None:
        """The caller leads. Find what another service may have done since the last call."""
        with self._lock:
            was_idle, first = self._idle, self._polled_s == -math.inf
            self._polled_s = self._elapsed_s()
            if not was_idle:
                return
            self._complete = False
            self._mirror.forget_told()
            if not first:
                for attempt in self._live:
                    self._looks.forget(attempt)
                    self._calls.forget(attempt)
                self._live.clear()
        self._looks.start(_ADOPT, self._adopt)
        self._asks.start(_JOBS, self._ask_jobs)
        self._asks.start(_NODES, self._ask_nodes)
        self._calls.start(_CHECKS, self._check_servers)

    def _adopt(self) -> float | None:
        """Track all attempts whose end is not acknowledged, as the shared folder names them."""
        try:
            found = self._index.attempts()
        except OSError as error:
            logger.error("the attempts in the shared folder are unknown: %s", error)
            return _RETRY_S
        with self._lock:
            for attempt in found:
                if attempt not in self._live and attempt not in self._settling:
                    self._track(attempt)
            self._complete = True
        return None

    def _track(self, attempt: AttemptId) -> ClusterAttempt:
        tracked = self._live[attempt] = ClusterAttempt(attempt, self._files.folder(attempt), self._around)
        self._looks.start(attempt, partial(self._look, tracked))
        return tracked

    def _note(self, command: Command) -> None:
        attempt = self._live.get(command.attempt) or self._track(command.attempt)
        if isinstance(command, Launch):
            if attempt.launch is not None:
                return
            attempt.launch = command
        else:
            warning = command.warning_signal if command.graceful else None
            attempt.order_stop(StopOrder(warning, command.grace_s, command.fencing_token))
        self._looks.wake(command.attempt)

    def _look(self, attempt: ClusterAttempt) -> float | None:
        if self._idle:
            return None
        had = attempt.launch, attempt.stop
        try:
            return attempt.look()
        except Dropped as drop:
            with self._lock:
                if not drop.refused and had != (attempt.launch, attempt.stop):
                    return 0.0  # it was asked for meanwhile
                self._drop(attempt, drop)
            return None

    def _drop(self, attempt: ClusterAttempt, drop: Dropped) -> None:
        """Track it no longer. The caller holds the lock."""
        self.refused_commands += drop.refused
        if self._live.get(attempt.attempt) is attempt:
            del self._live[attempt.attempt]
            self._looks.forget(attempt.attempt)

    def _settle(self, attempt: ClusterAttempt) -> float | None:
        pause_s = attempt.settle()
        if pause_s is None:
            with self._lock:
                self._settling.discard(attempt.attempt)
                self._settled.notify_all()
            self._looks.forget(attempt.attempt)
        return pause_s

    def _write_lease(self) -> None:
        self._renewal.renew()

    # Inside: asking the engine.

    def _ask_jobs(self) -> float | None:
        if self._idle:
            return None
        asked_s = self._elapsed_s()
        early_s = self._asked_s + _GAP * self._poll_s - asked_s
        if early_s > 0.0:
            return early_s
        self._asked_s = asked_s
        try:
            jobs = self._driver.jobs()
        except EngineUnavailable as error:
            self._note_silence(str(error))
            return self._poll_s
        self._note_silence("")
        of_attempt: dict[AttemptId, list[EngineJob]] = defaultdict(list)
        for job in jobs:
            of_attempt[job.attempt].append(job)
        with self._lock:
            live = list(self._live.values())
            complete = self._complete
        for attempt in live:
            if attempt.observe(of_attempt.get(attempt.attempt, ()), asked_s):
                self._looks.wake(attempt.attempt)
        if complete:
            self._find_orphans(jobs, asked_s)
        return self._poll_s

    def _note_silence(self, why: str) -> None:
        if why and not self._silence:
            logger.error("%s does not answer: %s", self._driver.name, why)
        elif self._silence and not why:
            logger.warning("%s answers again", self._driver.name)
        self._silence = why

    def _ask_nodes(self) -> float | None:
        if self._idle:
            return None
        try:
            nodes = self._driver.nodes()
        except EngineUnavailable:
            return self._poll_s
        if self._checks is not None:
            nodes = self._checks.overlaid(nodes, self._used())
            if self._checks.due:
                self._calls.wake(_CHECKS)
        with self._lock:
            self._mirror.update(nodes, self._clock.now_s())
        self._servers_known.set()
        return max(self._poll_s, _NODES_S)

    def _used(self) -> set[str]:
        """The names of the servers on which attempts run. O(live attempts)."""
        with self._lock:
            running = [
                attempt for attempt in self._live.values() if attempt.started is not None and attempt.end is None
            ]
        return {server for attempt in running if attempt.record is not None for server in attempt.record.servers}

    def _check_servers(self) -> float | None:
        if self._idle or self._checks is None:
            return None
        verdicts = self._checks.verdicts
        pause_s = self._checks.step()
        if self._checks.verdicts != verdicts:
            self._asks.wake(_NODES)
        return pause_s

    def _find_orphans(self, jobs: Sequence[EngineJob], asked_s: float) -> None:
        """Submissions of attempts that are over: a call succeeded after its attempt was given up. They are cancelled."""
        with self._lock:
            unknown = {
                job.id: job
                for job in jobs
                if job.state is not EngineJobState.ENDED
                and job.attempt not in self._live
                and job.attempt not in self._settling
                and not (self._checks is not None and self._checks.owns(job.attempt))
            }
        self._orphans = {engine_id: self._orphans.get(engine_id, asked_s) for engine_id in unknown}
        for engine_id, since_s in self._orphans.items():
            if asked_s - since_s >= ORPHAN_S:
                self._orphans[engine_id] = asked_s
                self._calls.start(f"{_ORPHAN} {engine_id}", partial(self._end_orphan, unknown[engine_id]))

    def _end_orphan(self, job: EngineJob) -> None:
        self._calls.forget(f"{_ORPHAN} {job.id}")
        try:
            live = self._index.has(job.attempt)
            if not live:
                logger.warning(
                    "%s has job %s of attempt %s, which is over: cancelled", self._driver.name, job.id, job.attempt
                )
                self._driver.cancel([job.id])
                return
        except (OSError, EngineUnavailable) as error:
            logger.warning("job %s of attempt %s, which is over, cannot be ended yet: %s", job.id, job.attempt, error)
            return
        with self._lock:
            if job.attempt not in self._live and job.attempt not in self._settling:
                self._track(job.attempt)

    # Inside: what attempts need.

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            engine=self._driver.name,
            now_s=self._clock.now_s,
            elapsed_s=self._elapsed_s,
            prepare=self._prepare,
            open=self._open,
            close=self._index.remove,
            fenced=self._fenced,
            call=self._call,
            ask=lambda: self._asks.wake(_JOBS),
            position=lambda name: self._positions.get(name),
            running_pause_s=lambda: max(_RUNNING_S, len(self._live) / _LOOKS_PER_S),
            exact_gpus=self._driver.abilities.exact_gpus,
            lease_s=self._site.lease_s,
            poll_s=self._poll_s,
        )

    def _prepare(self, launch: Launch) -> LaunchRecord:
        known = self._names
        positions = [share.server for share in launch.placement.shares]
        if strange := [position for position in positions if not 0 <= position < len(known)]:
            raise LookupError(f"server {strange[0]} of the placement: the cluster has {len(known)} servers")
        inbox = shared.INBOX if self._run_as_users is None else f"{shared.INBOX}-{secrets.token_hex(16)}"
        preemption = launch.spec.preemption
        self._index.add(launch.attempt)
        shared.make_inbox(self._attempts, launch.attempt, inbox)
        record = LaunchRecord(
            tuple(known[position] for position in positions),
            inbox,
            preemption.signal if preemption is not None else None,
            preemption.grace_s if preemption is not None else self._site.term_grace_s,
        )
        with contextlib.suppress(NoAccount):  # the submission is refused for it
            record = replace(record, user=self._user_of(launch))
        self._files.folder(launch.attempt).write_launch(record)
        return record

    def _open(self, attempt: AttemptId) -> Path:
        self._index.add(attempt)
        return shared.make_inbox(self._attempts, attempt)

    @contextlib.contextmanager
    def _fenced(self, token: int) -> Iterator[None]:
        with self._fence.held() as fence:
            if not fence.admits(token):
                raise Dropped(refused=True)
            yield

    def _call(self, attempt: AttemptId) -> None:
        with self._lock:
            tracked = self._live.get(attempt)
        if tracked is not None:
            self._calls.start(attempt, partial(self._carry_out, tracked))

    def _carry_out(self, attempt: ClusterAttempt) -> float | None:
        try:
            return None if self._idle else self._engine_calls.carry_out(attempt)
        except Dropped as drop:
            with self._lock:
                self._drop(attempt, drop)
            return None

    def _node_launch(self, launch: Launch, record: LaunchRecord) -> NodeLaunch:
        """Raises NoAccount."""
        with self._lock:
            nodes = [PlanNode(name, self._mirror.address(name)) for name in record.servers]
        plan = cluster_plan(
            launch,
            self._site,
            self._keys.identity(launch.attempt),
            nodes,
            inbox=record.inbox,
            exact_gpus=self._driver.abilities.exact_gpus,
            kill_wait_s=self._driver.kill_wait_s,
        )
        gpus = [share.gpus for share in launch.placement.shares]
        taken = [taken_by(launch.spec, count) for count in gpus]
        shares = tuple(
            NodeShare(name, count, amounts.cpus or None, amounts.memory_mib or None)
            for name, count, amounts in zip(record.servers, gpus, taken, strict=True)
        )
        walltime_s = launch.spec.walltime_s
        limit_s = None if walltime_s is None else walltime_s + record.grace_s + _AROUND_S
        return NodeLaunch(launch.attempt, shares, self._program, plan, self._user_of(launch), limit_s)

    def _user_of(self, launch: Launch) -> str | None:
        """Raises NoAccount."""
        users = self._run_as_users
        return account_of(launch.spec.user, users).name if users is not None else None
