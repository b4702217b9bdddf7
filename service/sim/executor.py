"""The simulated executor: attempts finish after the job's *true* work, at the speed of their placement.

The model of an attempt, all in simulated seconds:

- A launch at t reports STARTED at t + ``launch_latency_s``. Attempts after the first then make no progress for
  ``restart_s``; the engine knows that cost too and anchors its own progress at the same instant.
- Work is counted in seconds at the best placement on an idle network. It proceeds at alpha_min / alpha(x) per second, the
  ratio of the iteration time at the best placement to the one at this placement; at 1 for a job without a stage graph.
- On a contended network alpha(x) also depends on the other jobs that straddle the same servers. A run loads the network from
  the first instant of its work to the last. Whenever another one begins or ends there, its work so far is counted at the old
  speed, its finish moves, and the engine gets the new speed in a progress report, if the job counts iterations.
- A stop at t reaches the program at t + ``stop_latency_s``; progress ends there. A graceful stop then holds the GPUs for
  ``checkpoint_s`` and loses nothing (exit 75). One that is not graceful ends at once and loses what follows the last
  periodic checkpoint, as a crash and a lost server do. Periodic checkpoints are free and fall every
  ``spec.checkpoint_period_s`` of productive time.
- A finish that falls no later than the stop's arrival wins (exit 0).

Every event is a heap entry; an obsolete one is recognised when it is due and dropped, so that nothing is scanned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId, JobId, ServerIndex, job_of
from policies.throughput import stretch_of
from service.engine.commands import Command, Launch, Stop
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus
from service.sim.clock import Priority, SimClock
from service.sim.network import ContendedNetwork, Flow
from service.sim.work import JobTruth, Run

EXIT_CHECKPOINTED = 75
EXIT_TERMINATED = 143
EXIT_CRASHED = 1
_ENDS = frozenset({ReportKind.EXITED, ReportKind.LAUNCH_FAILED, ReportKind.LOST})


@dataclass(frozen=True, slots=True)
class ExecutorCosts:
    """Delays of the simulated machines, in seconds (formats and defaults: ``sooner sim run``)."""

    checkpoint_s: float = 0.0
    restart_s: float = 60.0
    launch_latency_s: float = 0.0
    stop_latency_s: float = 0.0


class SimulatedExecutor:
    """Implements :class:`service.engine.ports.Executor` against a :class:`SimClock`.

    ``truths`` holds every job that may be launched. ``network`` None: the ``reserved`` one, without contention.
    Faults are injected with :meth:`crash`, :meth:`fail_server` and :meth:`repair_server`, at the clock's present instant.
    """

    def __init__(
        self,
        clock: SimClock,
        cluster: Cluster,
        truths: Mapping[JobId, JobTruth],
        costs: ExecutorCosts | None = None,
        network: ContendedNetwork | None = None,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._truths = truths
        self._costs = costs or ExecutorCosts()
        self._network = network
        self._runs: dict[AttemptId, Run] = {}
        self._closed: dict[JobId, int] = {}
        """Highest attempt number of a job that ended or was fenced: it and those before it never run again."""
        self._outbox: dict[tuple[ReportKind, AttemptId | ServerIndex | None], Report] = {}
        self._token = 0

    # The port.

    def send(self, commands: Sequence[Command]) -> None:
        """Execute commands; one with an outdated fencing token is refused."""
        for command in commands:
            if command.fencing_token < self._token:
                continue
            self._token = command.fencing_token
            if isinstance(command, Launch):
                self._launch(command)
            else:
                self._stop(command)

    def poll(self) -> Sequence[Report]:
        """Every unacknowledged report, oldest first."""
        return tuple(self._outbox.values()) if self._outbox else ()

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Drop these reports, and the attempts whose end they report."""
        for report in reports:
            self._outbox.pop(_key(report), None)
            if report.attempt is not None and report.kind in _ENDS:
                self._runs.pop(report.attempt, None)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Every attempt that was not dropped. O(attempts): for reconciling, not for a cycle."""
        return {attempt: run.status for attempt, run in self._runs.items()}

    def use_cluster(self, cluster: Cluster) -> None:
        """Placements and speeds of later launches refer to this cluster."""
        self._cluster = cluster
        if self._network is not None:
            self._network.use_cluster(cluster)

    def adopt(self, launch: Launch, progress_from_s: float) -> None:
        """Continue an attempt that was running before the simulation began.

        Its work began at ``progress_from_s`` (in the past, or still to come while it restarts) from what ``truth.done_s``
        holds. Its start is known and not reported; on a contended network its speed is another one from now on.
        """
        run = self._take(launch)
        run.status = AttemptStatus.RUNNING
        run.progress_from_s = progress_from_s
        # Its progress so far is at the speed that the caller knows.
        run.stretch = stretch_of(self._cluster, launch.spec, run.truth.times, launch.placement)
        end_s = progress_from_s + max(0.0, run.truth.duration_s - run.truth.done_s) * run.stretch
        run.finish_at_s = max(self._clock.now_s(), end_s)
        self._schedule_finish(launch.attempt, run)
        self._load_network(launch.attempt, run)

    # Faults.

    def crash(self, attempt: AttemptId) -> None:
        """The program ends with an error now; ignored if it does not run."""
        run = self._runs.get(attempt)
        if run is not None and run.status in (AttemptStatus.RUNNING, AttemptStatus.STOPPING):
            self._end_with_loss(attempt, run, ReportKind.EXITED, EXIT_CRASHED)

    def fail_server(self, server: ServerIndex) -> None:
        """The server fails now, with every attempt that has a share on it. O(attempts)."""
        self._report(Report(ReportKind.SERVER_DOWN, self._clock.now_s(), server=server))
        for attempt, run in list(self._runs.items()):
            if run.status is not AttemptStatus.ENDED and server in run.launch.placement.servers:
                self._end_with_loss(attempt, run, ReportKind.LOST, None)

    def repair_server(self, server: ServerIndex) -> None:
        """The server works again."""
        self._outbox.pop((ReportKind.SERVER_DOWN, server), None)
        self._report(Report(ReportKind.SERVER_UP, self._clock.now_s(), server=server))

    # Launching and stopping.

    def _launch(self, launch: Launch) -> None:
        if launch.attempt in self._runs or launch.number <= self._closed.get(launch.job, 0):
            return
        run = self._take(launch)
        at_s = self._clock.now_s() + self._costs.launch_latency_s
        self._clock.schedule(at_s, Priority.START, partial(self._begin, launch.attempt, run))

    def _take(self, launch: Launch) -> Run:
        truth, network = self._truths[launch.job], self._network
        flow = None if network is None else network.flow(launch.attempt, launch.spec, truth.times, launch.placement)
        if flow is not None:
            run = Run(launch, truth, flow.stretch, flow)
        else:
            run = Run(launch, truth, stretch_of(self._cluster, launch.spec, truth.times, launch.placement))
        self._runs[launch.attempt] = run
        return run

    def _begin(self, attempt: AttemptId, run: Run) -> None:
        if run.status is not AttemptStatus.PENDING:
            return
        now_s = self._clock.now_s()
        run.status = AttemptStatus.RUNNING
        run.progress_from_s = now_s + (self._costs.restart_s if run.launch.number > 1 else 0.0)
        run.expect(now_s)
        self._report(Report(ReportKind.STARTED, now_s, attempt, iterations_per_s=run.iterations_per_s))
        self._schedule_finish(attempt, run)
        if run.flow is not None and run.flow.straddles:
            self._load_network(attempt, run)

    def _schedule_finish(self, attempt: AttemptId, run: Run) -> None:
        """Schedule its finish, unless an earlier check is scheduled or its stop comes first."""
        if run.finish_at_s < run.due_at_s and run.finish_at_s <= run.stop_at_s:
            run.due_at_s = run.finish_at_s
            self._clock.schedule(run.finish_at_s, Priority.FINISH, partial(self._finish, attempt, run))

    def _stop(self, stop: Stop) -> None:
        run = self._runs.get(stop.attempt)
        if run is None:
            self._fence(stop.attempt)
        elif run.status in (AttemptStatus.PENDING, AttemptStatus.RUNNING):
            # A program that has not begun has nothing to checkpoint.
            run.graceful = stop.graceful and run.status is AttemptStatus.RUNNING
            run.status = AttemptStatus.STOPPING
            run.stop_at_s = self._clock.now_s() + self._costs.stop_latency_s
            at_s = run.stop_at_s + (self._costs.checkpoint_s if run.graceful else 0.0)
            if at_s > run.stop_at_s and run.flow is not None and run.flow.straddles:
                self._clock.schedule(run.stop_at_s, Priority.STOP, partial(self._unload_network, run))
            self._clock.schedule(at_s, Priority.STOP, partial(self._land, stop.attempt, run))

    def _fence(self, attempt: AttemptId) -> None:
        """Prevent an attempt that was never launched from starting later, and report it as failed."""
        job, number = job_of(attempt), int(attempt.partition(".")[2])
        if number > self._closed.get(job, 0):
            self._closed[job] = number
            now_s = self._clock.now_s()
            self._report(Report(ReportKind.LAUNCH_FAILED, now_s, attempt, stop_signalled=True, lost_service_s=0.0))

    # The network.

    def _load_network(self, attempt: AttemptId, run: Run) -> None:
        """Put its traffic on the network as soon as its work begins; the speed of the jobs that it contends with changes."""
        if self._network is None or run.flow is None:
            return
        now_s = self._clock.now_s()
        if run.progress_from_s > now_s:
            self._clock.schedule(run.progress_from_s, Priority.START, partial(self._load_network, attempt, run))
        elif run.status is not AttemptStatus.ENDED and run.stop_at_s > now_s:
            self._rate_again(self._network.join(run.flow))
            self._rate_again([run.flow])

    def _unload_network(self, run: Run) -> None:
        """Its work has ended, though it may still write a checkpoint: the speed of the jobs that it contended with changes."""
        if self._network is not None and run.flow is not None:
            self._rate_again(self._network.leave(run.flow))

    def _rate_again(self, flows: Sequence[Flow]) -> None:
        now_s = self._clock.now_s()
        for flow in flows:
            run = self._runs[flow.attempt]
            if run.stretch == flow.stretch:
                continue
            run.rate(now_s, flow.stretch)
            self._schedule_finish(flow.attempt, run)
            iteration = run.truth.iteration_at(run.truth.done_s + run.rated_work_s)
            if iteration is not None and run.status is AttemptStatus.RUNNING:
                speed = run.iterations_per_s
                self._report(
                    Report(ReportKind.PROGRESS, now_s, flow.attempt, iteration=iteration, iterations_per_s=speed)
                )

    # Ends.

    def _finish(self, attempt: AttemptId, run: Run) -> None:
        now_s = self._clock.now_s()
        if run.status is AttemptStatus.ENDED or run.due_at_s != now_s:
            return
        run.due_at_s = inf
        if run.finish_at_s > now_s:
            self._schedule_finish(attempt, run)
            return
        if run.finish_at_s > run.stop_at_s:
            return
        # The exact total: the sum over speeds may have a rounding error.
        run.truth.advance(run.productive_s(run.finish_at_s), run.truth.duration_s)
        self._end(attempt, run, ReportKind.EXITED, 0, None)

    def _land(self, attempt: AttemptId, run: Run) -> None:
        """The stop has reached the program, and its checkpoint is written."""
        if run.status is AttemptStatus.ENDED:
            return
        if run.graceful:
            productive_s = run.productive_s(self._clock.now_s())
            run.truth.advance(productive_s, run.work_s(productive_s))
            self._end(attempt, run, ReportKind.EXITED, EXIT_CHECKPOINTED, None)
        else:
            self._end_with_loss(attempt, run, ReportKind.EXITED, EXIT_TERMINATED)

    def _end_with_loss(self, attempt: AttemptId, run: Run, kind: ReportKind, exit_code: int | None) -> None:
        now_s = self._clock.now_s()
        kept_s = run.checkpointed_s(now_s)
        lost_s = run.productive_s(now_s) - kept_s
        run.truth.advance(kept_s, run.checkpointed_work_s(now_s))
        run.truth.lost_s += lost_s
        self._end(attempt, run, kind, exit_code, lost_s)

    def _end(
        self, attempt: AttemptId, run: Run, kind: ReportKind, exit_code: int | None, lost_service_s: float | None
    ) -> None:
        now_s, truth = self._clock.now_s(), run.truth
        stopped = run.stop_at_s <= now_s
        run.status = AttemptStatus.ENDED
        self._unload_network(run)
        job = run.launch.job
        self._closed[job] = max(run.launch.number, self._closed.get(job, 0))
        iteration = truth.iteration_at(truth.done_s)
        self._report(
            Report(
                kind,
                now_s,
                attempt,
                exit_code=exit_code,
                stop_signalled=stopped and exit_code != 0,
                iteration=iteration,
                checkpoint_iteration=iteration,
                total_iterations=truth.iterations,
                lost_service_s=lost_service_s,
            )
        )

    def _report(self, report: Report) -> None:
        self._outbox[_key(report)] = report


def _key(report: Report) -> tuple[ReportKind, AttemptId | ServerIndex | None]:
    return (report.kind, report.attempt if report.attempt is not None else report.server)
