"""One attempt on the servers of an engine: what its folder and the engine say, and what follows from both.

:meth:`ClusterAttempt.look` alone touches the folder, apart from the record of a submission. It runs on one thread at a time,
which may hang with the folder. Whatever it finds out is stored in single assignments, so others read it without waiting.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from policies.model.ids import AttemptId
from policies.model.reasons import Reason
from service.engine.commands import Launch
from service.engine.crash_points import CrashPoint, reached
from service.engine.events import Report, ReportKind, Warned
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.driver import EngineEnd, EngineJob
from service.executors.cluster.folder import NodeRecord
from service.executors.cluster.progress import AttemptProgress
from service.executors.cluster.shared import AttemptFolder, LaunchRecord, refresh
from service.executors.cluster.submissions import Submissions
from service.executors.cluster.surroundings import MARGIN_S, Dropped, StopOrder, Surroundings
from service.executors.files import is_disk_full
from service.runtime.accounts import NoAccount

logger = logging.getLogger(__name__)

START_S = 120.0
"""Longest time that the engine may let an attempt wait on its servers, and that all its servers may need to begin."""
STUCK_S = 15.0
"""Time after which what the engine names as a reason to wait for ever counts: it may name one for a moment."""
SETTLE_S = 5.0
"""Longest time that a shared folder may need to show what a node has written."""
_CANCEL_AGAIN_S = 15.0
_HURRY_S = 0.1
_SOON_S = 0.5
_RETRY_S = 1.0
_REASONS = frozenset(Reason)
_WARNED = frozenset(Warned)
_KINDS = {"exited": ReportKind.EXITED, "launch_failed": ReportKind.LAUNCH_FAILED, "lost": ReportKind.LOST}


class ClusterAttempt:
    """``launch`` and ``stop`` are what was commanded. ``end`` is the report of the end, repeated until it is acknowledged."""

    def __init__(self, attempt: AttemptId, folder: AttemptFolder, around: Surroundings) -> None:
        self.attempt = attempt
        self.folder = folder
        self.around = around
        self.submissions = Submissions()
        self.launch: Launch | None = None
        self.stop: StopOrder | None = None
        self.record: LaunchRecord | None = None
        self.to_submit = False
        """The engine has to get a submission: carried out by the thread that calls the engine."""
        self.submitting = False
        """Such a call has begun and has not returned."""
        self.tries = 0
        """Calls in a row that the engine did not answer, or refused for a reason that passes."""
        self.to_cancel: frozenset[str] = frozenset()
        self.never = False
        """The attempt is claimed for no launch: nothing of it runs or will run."""
        self.failure: tuple[Reason, str] | None = None
        """Why it can never run: the engine or the disk has refused it, or (NODE_LOST) its servers do not take it."""
        self.started: Report | None = None
        self.started_acknowledged = False
        self.progress: Report | None = None
        """The newest, until it is fetched."""
        self.end: Report | None = None
        self.again = False
        self._loaded = False
        self._stop_written: StopOrder | None = None
        self._stop_written_s = math.inf
        self._runs_anyway = False
        """A stop came too late to claim the attempt: node programs have it."""
        self._claimed_s = math.inf
        self._settled_s = math.inf
        self._complete_s = math.inf
        self._begun_s = math.inf
        self._ready_s = math.inf
        self._stuck_s = math.inf
        self._cancelled_s: dict[str, float] = {}
        self._nodes: dict[int, NodeRecord] = {}
        self._files: AttemptProgress | None = None
        self._end_record: dict[str, Any] = {}
        self._error = ""

    @property
    def status(self) -> AttemptStatus:
        """The status that the engine reconciles with."""
        if self.end is not None:
            return AttemptStatus.ENDED
        if self.stop is not None:
            return AttemptStatus.STOPPING
        return AttemptStatus.RUNNING if self.started is not None else AttemptStatus.PENDING

    def order_stop(self, order: StopOrder) -> None:
        """Note that a stop is wanted. It never weakens an earlier one."""
        earlier = self.stop
        if earlier is None or (earlier.warning_signal is not None and order.warning_signal is None):
            self.stop = order
        elif (order.fencing_token or 0) >= (earlier.fencing_token or 0):
            self.stop = earlier._replace(fencing_token=order.fencing_token)

    def acknowledge(self, report: Report) -> bool:
        """Note that ``report`` is committed; True if it reports the end."""
        if report.kind is ReportKind.STARTED:
            self.started_acknowledged = True
        return self.end is not None and report.kind is self.end.kind

    def reports(self) -> list[Report]:
        """All that are not acknowledged, in the order of events; progress once."""
        found = []
        if self.started is not None and not self.started_acknowledged and not self.again:
            found.append(self.started)
        progress, self.progress = self.progress, None
        if progress is not None:
            found.append(progress)
        if self.end is not None:
            found.append(self.end)
        return found

    def observe(self, jobs: Sequence[EngineJob], asked_s: float) -> bool:
        """Take over its part of an answer of the engine; whether anything has changed.

        Anyone who may submit to the engine can name the attempt: what another user than that of the launch has submitted is not
        of it.
        """
        user = self.record.user if self.record is not None else None
        known = self.submissions.ids
        return self.submissions.observe([job for job in jobs if job.user in (None, user) or job.id in known], asked_s)

    # Looking.

    def look(self) -> float | None:
        """Read the folder, carry out commands in it, and decide; returns the seconds until the next look.

        Raises :class:`Dropped`.
        """
        if self.end is not None:
            return None
        try:
            self._look()
        except OSError as error:
            # A folder that a job has locked, or a disk has lost. It is read again later.
            if str(error) != self._error:
                logger.error("the folder of attempt %s does not work: %s", self.attempt, error)
            self._error = str(error)
            return _RETRY_S
        self._error = ""
        return None if self.end is not None else self._pause_s()

    def _pause_s(self) -> float:
        if self.started is not None and self.stop is None:
            return self.around.running_pause_s()
        soon = self.around.elapsed_s() - self._begun_s < START_S / 4.0
        return _HURRY_S if soon or self.stop is not None else _SOON_S

    def _look(self) -> None:
        if not self._loaded:
            self._load()
            self._loaded = True
        if self.end is not None:
            return
        if self.launch is not None and self.record is None and not self.never and self.failure is None:
            self._prepare(self.launch)
        self._carry_out_stop()
        self._have_submitted()
        nodes: list[NodeRecord] = []
        if self.record is not None and not self.never:
            nodes = self._read_nodes(self.record)
            self._note_start(nodes)
            self._note_progress(final=False)
        self._decide(nodes)

    def _load(self) -> None:
        if self.folder.acknowledged():
            if self.launch is None and self.stop is None:
                self.around.close(self.attempt)
                raise Dropped
            # The end was lost on its way: report it once more.
            self.around.open(self.attempt)
            self.folder.reopen()
            self.again = True
        self._read_launch()
        asked = shared.read_stop(self.folder.inbox(self.record), self.folder.seal)
        if asked is not None:
            self._stop_written, self._stop_written_s = StopOrder(*asked), self.around.elapsed_s()
            self.stop = self.stop or self._stop_written
        end = self.folder.read_end()
        if end is not None or self.again:
            if self.record is not None and not self.never:
                # The service that has seen the start and the progress may have ended before it could commit them.
                self._note_start(self._read_nodes(self.record), over=True)
            self._report_end(end or self._lost("the record of its end is gone"))
        elif self.record is None and not self.never and self.launch is None and self.stop is None:
            # The service ended before it had written what it wanted to launch. It is asked for again.
            self.around.close(self.attempt)
            raise Dropped

    def _read_launch(self) -> None:
        """Take over what a service has written of the launch: the first record counts, whichever leader has written it."""
        self.record = self.folder.read_launch()
        self.never = shared.claimed(self.folder.inbox(self.record)) == shared.STOPPED
        if self.record is None:
            return
        self._begun_s = now_s = self.around.elapsed_s()
        for engine_id in self.record.ids:
            self.submissions.add(engine_id, now_s)
        if None in self.record.submissions:
            self.submissions.note_uncertain(now_s)

    def _prepare(self, launch: Launch) -> None:
        with self.around.fenced(launch.fencing_token):
            self._read_launch()
            if self.record is None and not self.never:
                self._write_launch(launch)

    def _write_launch(self, launch: Launch) -> None:
        try:
            self.record = self.around.prepare(launch)
        except (NoAccount, LookupError) as refusal:
            self.failure = (Reason.LAUNCH_FAILED, str(refusal))
        except OSError as error:
            reason = Reason.DISK_FULL if is_disk_full(error) else Reason.LAUNCH_FAILED
            self.failure = (reason, f"{error.filename or self.folder.path}: {error.strerror or error}")
            # Nothing was submitted, and the launch is not tried again unless this process ends.
            self._report_end(self._end_unstarted())
        else:
            self._begun_s = self.around.elapsed_s()

    def _carry_out_stop(self) -> None:
        """Write what was wanted; a stop that comes before the start claims the attempt, so that it never runs.

        The disk may fail, or the service end, between the two. What is missing is made up for when the stop is ordered again.
        """
        stop = self.stop
        if stop is None or stop.fencing_token is None:
            return
        written = self._stop_written is not None and stop[:2] == self._stop_written[:2]
        if written and self._is_claimed():
            return
        with self.around.fenced(stop.fencing_token):
            if self.record is None:
                self._read_launch()
            if not written:  # the time for it counts from the first
                self._write_stop(stop)
            if not self._is_claimed():
                self._runs_anyway = not self._seal_off()

    def _is_claimed(self) -> bool:
        """Whether a stop has nothing to claim any more, as far as this process knows."""
        return self.never or self.started is not None or self._runs_anyway

    def _have_submitted(self) -> None:
        """Have it submitted if it is wanted here and no submission is known. The thread that calls the engine checks it again."""
        wanted = self.launch is not None and self.record is not None and not self.never and self.failure is None
        if wanted and not self.to_submit and not self.submissions.ids and self._claimed_s == math.inf:
            self.to_submit = True
            self.around.call(self.attempt)

    def _write_stop(self, stop: StopOrder) -> None:
        inbox = self.folder.inbox(self.record) if self.record is not None else self.around.open(self.attempt)
        shared.write_stop(inbox, stop.warning_signal, stop.grace_s, self.folder.seal)
        self._stop_written, self._stop_written_s = stop, self.around.elapsed_s()

    def _seal_off(self) -> bool:
        """Claim the attempt for no launch; False if node programs have it."""
        inbox = self.folder.inbox(self.record)
        # It is read first: on a full disk, an attempt that is claimed already must not wait for space.
        self.never = (shared.claimed(inbox) or shared.claim(inbox, shared.STOPPED)) == shared.STOPPED
        return self.never

    # What the nodes say.

    def _read_nodes(self, record: LaunchRecord) -> list[NodeRecord]:
        """What each node's folder says: while its ranks run, only whether there is an end, because this is done all the time."""
        inbox = self.folder.inbox(record)
        if self.started is None:
            refresh(inbox)
        for node in range(len(record.servers)):
            known = self._nodes.get(node)
            if known is None or known.started_at_s is None or (known.end is None and self._has(node, names.EXIT)):
                self._nodes[node] = shared.read_node(inbox, node, self.folder.seal)
        return [self._nodes[node] for node in range(len(record.servers))]

    def _has(self, node: int, name: str) -> bool:
        folder = shared.node_folder(self.folder.inbox(self.record), node)
        refresh(folder)
        return names.has(folder, name)

    def _note_start(self, nodes: Sequence[NodeRecord], *, over: bool = False) -> None:
        times = [node.started_at_s for node in nodes if node.started_at_s is not None]
        if self.started is not None or len(times) < len(nodes) or self.record is None:
            return
        now_s = self.around.elapsed_s()
        self._ready_s = min(self._ready_s, now_s)
        gpus = None
        if not self.around.exact_gpus:
            gpus = self.submissions.gpu_ids(self.record.servers)
            over = over or all(node.end is not None for node in nodes)
            if gpus is None and not over and now_s - self._ready_s < 3.0 * self.around.poll_s:
                self.around.ask()
                return
            gpus = gpus or _as_indices([node.gpus for node in nodes])
        at_s = min(max(times), self.around.now_s())
        self.started = Report(ReportKind.STARTED, at_s, self.attempt, gpu_ids=gpus)

    def _progress_files(self) -> AttemptProgress:
        if self._files is None:
            nodes = len(self.record.servers) if self.record is not None else 0
            inbox = self.folder.inbox(self.record)
            folders = [self.folder.path, *(shared.node_folder(inbox, node) for node in range(nodes))]
            since_s = self.started.at_s if self.started is not None else self.around.now_s()
            self._files = AttemptProgress([folder / names.PROGRESS for folder in folders], since_s)
        return self._files

    def _note_progress(self, final: bool, at_s: float = math.inf) -> None:
        if self.started is None:
            return
        now_s = self.around.now_s()
        files = self._progress_files()
        if files.read(now_s, final):
            progress = files.newest
            self.progress = Report(
                ReportKind.PROGRESS,
                min(now_s, at_s),
                self.attempt,
                iteration=progress.iteration,
                total_iterations=progress.total_iterations,
                checkpoint_iteration=progress.checkpoint_iteration,
                loss=progress.loss,
                input_s=progress.input_s,
            )

    # Deciding.

    def _decide(self, nodes: Sequence[NodeRecord]) -> None:
        if self.failure is not None and not self.never and not self._seal_off():
            self.failure = None  # an earlier submission runs after all
        if self.never:
            self._decide_never()
            return
        if self.record is None:
            return
        claimed = self._note_claim(nodes)
        submissions, now_s = self.submissions, self.around.elapsed_s()
        complete = bool(nodes) and all(node.end is not None for node in nodes)
        over = self._is_over()
        if not over or not (submissions.ids or claimed):
            self._settled_s = math.inf
            if over and not claimed and self.launch is None:
                # The engine never got it, and the launch is not known to this process: it is asked for again.
                raise Dropped
            self._hold_to_times(nodes, claimed, complete)
            return
        self._settled_s = min(self._settled_s, now_s)
        if complete:
            self._finish(self._combined(nodes))
        elif not claimed:
            if self._seal_off():
                job = submissions.end(set(self._cancelled_s))
                self.failure = (Reason.LAUNCH_FAILED, self._engine_says(job) or "the engine ended it before it began")
                self._decide_never()
        else:
            self._decide_incomplete(nodes)

    def _is_over(self) -> bool:
        """Whether the engine has nothing of it, and gets nothing.

        Read in this order: a submit that returns meanwhile has added its submission, or noted that it is uncertain, before.
        """
        return not self.submitting and self.submissions.certain and not self.submissions.alive

    def _note_claim(self, nodes: Sequence[NodeRecord]) -> bool:
        if self._claimed_s == math.inf and (
            any(node.exists for node in nodes) or shared.claimed(self.folder.inbox(self.record)) is not None
        ):
            self._claimed_s = self.around.elapsed_s()
        return self._claimed_s < math.inf

    def _decide_never(self) -> None:
        """Nothing of it runs or will run. Its end is reported when the engine has nothing left of it."""
        if self._is_over():
            self._finish(self._end_unstarted())
        elif alive := self.submissions.alive:
            self._cancel(alive)
        else:
            self.around.ask()

    def _end_unstarted(self) -> dict[str, Any]:
        if self.failure is None:
            return names.end_record("exited", self.around.now_s(), detail=names.STOPPED_FIRST, stop_signalled=True)
        reason, detail = self.failure
        lost = reason is Reason.NODE_LOST
        record = names.end_record(
            "lost" if lost else "launch_failed",
            self.around.now_s(),
            reason=reason,
            detail=detail,
            stop_signalled=self.stop is not None,
        )
        return self._with_server(record, self.record.servers) if lost and self.record is not None else record

    def _hold_to_times(self, nodes: Sequence[NodeRecord], claimed: bool, complete: bool) -> None:
        """While the engine has it: end what takes too long, and submissions that can never run."""
        submissions, now_s = self.submissions, self.around.elapsed_s()
        pending = submissions.pending
        if 0 < len(pending) < len(submissions.ids) and submissions.answered_s > self._claimed_s:
            self._cancel(pending)  # another submission, which does not wait, has the claim
        stop = self._stop_written
        if stop is not None and now_s - self._stop_written_s > stop.takes_s:
            self._cancel(submissions.alive)
        if complete:
            self.around.ask()
            self._complete_s = min(self._complete_s, now_s)
            if now_s - self._complete_s > MARGIN_S:
                self._cancel(submissions.alive)
        waited_s = now_s - submissions.waits_since_s()
        if self.started is not None or stop is not None or self.submitting:
            return
        waits = not claimed and submissions.pending == submissions.alive
        stuck = submissions.stuck if waits else ""
        self._stuck_s = min(self._stuck_s, now_s) if stuck else math.inf
        if now_s - self._stuck_s >= STUCK_S:
            self._give_up(Reason.LAUNCH_FAILED, f"{self.around.engine} will never start it: {stuck}")
        elif waited_s < START_S:
            return
        elif waits:
            detail, waited = submissions.detail(), f"{self.around.engine} has not started it for {START_S:g} s"
            # Its servers do not take it: that is no fault of the job, and uses up no retry.
            self._give_up(Reason.NODE_LOST, f"{waited}: {detail}" if detail else waited)
        elif not all(node.started_at_s is not None for node in nodes):
            # A server does not begin. Those that have are stopped.
            self._write_stop(StopOrder(None, self.record.grace_s if self.record is not None else 0.0))

    def _give_up(self, reason: Reason, detail: str) -> None:
        if self._seal_off():
            self.failure = (reason, detail)
            self._decide_never()

    def _decide_incomplete(self, nodes: Sequence[NodeRecord]) -> None:
        """The engine has freed its GPUs, and not every node has recorded its end: there is none, or it is not known."""
        assert self.record is not None
        job = self.submissions.end(set(self._cancelled_s))
        missing = [server for server, node in zip(self.record.servers, nodes, strict=True) if node.end is None]
        failed = job.failed_servers if job is not None and job.end is EngineEnd.NODE_FAILED else ()
        unseen = job is None or job.end is EngineEnd.NODE_FAILED
        if failed and not set(missing) & set(failed):
            unseen = False
        limit_s = self._settled_s + SETTLE_S
        if unseen or self.submissions.forgotten:
            # Processes may live where the engine does not see them. They end by the stop, or by the lease.
            if self._stop_written is None:
                self._write_stop(StopOrder(self.record.warning_signal, self.record.grace_s))
            assert self._stop_written is not None
            # A server that does not see the stop ends its part when the lease is over, with the grace period of the launch.
            grace_s = max(self.record.grace_s, self._stop_written.grace_s)
            limit_s = self._stop_written_s + self.around.lease_s + 2.0 * grace_s + MARGIN_S
        if self.around.elapsed_s() < limit_s:
            return
        says = self._engine_says(job)
        detail = f"no record of its end on {', '.join(missing)}"
        record = self._lost(f"{says}; {detail}" if says else detail)
        if self.started is None and not failed:
            record |= {"outcome": "launch_failed", "reason": Reason.LAUNCH_FAILED.value}
        elif self.stop is None and job is not None and job.end is EngineEnd.OUT_OF_MEMORY:
            record["reason"] = Reason.OUT_OF_MEMORY.value  # the kernel has ended the supervisor too
        record["stop_signalled"] = self.stop is not None and any(
            self._has(node, names.SIGNALLED) for node in range(len(nodes))
        )
        self._finish(self._with_server(record, [*failed, *missing] if unseen else failed))

    def _combined(self, nodes: Sequence[NodeRecord]) -> dict[str, Any]:
        """The end from the records of all nodes, and what the engine says of it."""
        ends = [node.end for node in nodes if node.end is not None]
        halt = shared.read_halt(self.folder.inbox(self.record), self.folder.seal)
        record = shared.combined_end(ends, halt.node if halt is not None else None)
        if record["outcome"] == "launch_failed" or record["exit_code"] in (0, 75):
            return record
        job = self.submissions.end(set(self._cancelled_s))
        end = job.end if job is not None else None
        if self.stop is not None or end is EngineEnd.COMPLETED or (end is None and not self.submissions.forgotten):
            return record
        record["detail"] = "; ".join(filter(None, (self._engine_says(job), record["detail"])))
        if end in (None, EngineEnd.NODE_FAILED):
            record |= {"outcome": "lost", "reason": Reason.NODE_LOST.value}
            return self._with_server(record, job.failed_servers if job is not None else ())
        if end is EngineEnd.OUT_OF_MEMORY and record["outcome"] == "exited":
            record["reason"] = Reason.OUT_OF_MEMORY.value
        return record

    def _lost(self, detail: str) -> dict[str, Any]:
        return names.end_record("lost", self.around.now_s(), reason=Reason.NODE_LOST, detail=detail)

    def _with_server(self, record: dict[str, Any], servers: Sequence[str]) -> dict[str, Any]:
        mine = self.record.servers if self.record is not None else ()
        failed = [server for server in servers if server in mine]
        return record | {"server": failed[0]} if failed else record

    def _engine_says(self, job: EngineJob | None) -> str:
        engine = self.around.engine
        if job is None:
            return f"{engine} has forgotten the job" if self.submissions.forgotten else ""
        detail = f": {job.detail}" if job.detail else ""
        if job.end is EngineEnd.CANCELLED:
            return f"cancelled in {engine}, not by this service{detail}"
        if job.end is EngineEnd.NODE_FAILED:
            return f"{engine} lost {', '.join(job.failed_servers) or 'sight of it'}{detail}"
        if job.end is EngineEnd.TIME_LIMIT:
            return f"ended by the time limit of {engine}{detail}"
        return f"{engine} {'could not start it' if job.end is EngineEnd.NOT_STARTED else 'has ended it'}{detail}"

    def _cancel(self, ids: Sequence[str]) -> None:
        now_s = self.around.elapsed_s()
        due = {entry for entry in ids if now_s - self._cancelled_s.get(entry, -math.inf) > _CANCEL_AGAIN_S}
        if due:
            self._cancelled_s |= dict.fromkeys(due, now_s)
            self.to_cancel |= due
            self.around.call(self.attempt)

    # The end.

    def _finish(self, record: dict[str, Any]) -> None:
        """Make the end durable and report it. On a full disk it is reported from memory, and found again after a restart."""
        try:
            self.folder.write_end(record)
        except OSError as error:
            if not is_disk_full(error):
                raise
        self._report_end(record)

    def _report_end(self, record: dict[str, Any]) -> None:
        self._note_progress(final=True, at_s=float(record["at_s"]))
        progress = self._progress_files().newest
        server = record.get("server")
        self._end_record = record
        self.end = Report(
            _KINDS[record["outcome"]],
            min(float(record["at_s"]), self.around.now_s()),
            self.attempt,
            server=self.around.position(server) if isinstance(server, str) else None,
            exit_code=record["exit_code"],
            reason=Reason(record["reason"]) if record["reason"] in _REASONS else None,
            stop_signalled=record["stop_signalled"],
            iteration=progress.iteration,
            total_iterations=progress.total_iterations,
            checkpoint_iteration=progress.checkpoint_iteration,
            detail=record["detail"],
            warning=Warned(record["warning"]) if record.get("warning") in _WARNED else None,
        )

    def settle(self) -> float | None:
        """Mark the folder after the end is committed, so that the attempt never runs again; seconds until the next try."""
        try:
            if not self.folder.acknowledged():
                self.around.open(self.attempt)
                if self.folder.read_end() is None:
                    self.folder.write_end(self._end_record)
                self.folder.settle()
            reached(CrashPoint.SETTLED)
            self.around.close(self.attempt)
        except OSError as error:
            logger.error("the end of attempt %s cannot be marked as acknowledged: %s", self.attempt, error)
            return _RETRY_S
        return None


def _as_indices(gpus: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...] | None:
    """What CUDA_VISIBLE_DEVICES named on each node; None if a name is no index."""
    if not all(word.isdecimal() for node in gpus for word in node) or not all(gpus):
        return None
    return tuple(tuple(int(word) for word in node) for node in gpus)
