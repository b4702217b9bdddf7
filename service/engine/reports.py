"""Applies an executor's reports to the world. Doubled, late and unrelated reports change nothing, or cause a fence."""

import math
from dataclasses import replace

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.decision import ChangeKind
from policies.model.estimate import Unit
from policies.model.ids import AttemptId, job_of
from policies.model.placement import SpanSeconds, span_of, type_of
from policies.model.reasons import Reason
from policies.throughput import alpha, iteration_time_s
from policies.training.gpu_speed import with_assumed_speed
from service.engine.commands import Stop
from service.engine.cycle import Cycle, Reached
from service.engine.estimates import note_loss, note_total
from service.engine.events import Report, ReportKind, ServerEventKind, Warned
from service.engine.record import AttemptRecord, JobRecord

EXIT_YIELD = 75
"""EX_TEMPFAIL: the program has checkpointed and is ready to resume."""
YIELDS_COUNTED_MAX = 30
"""The pause after a yield without progress grows with the yields so far, up to this number: some may have made progress."""
LOSSES_COUNTED_MAX = 30
"""The pause after an attempt that its servers did not start, although they are up, grows with the attempts lost so far."""

_REASON_OF_END = {
    ReportKind.EXITED: Reason.CRASHED,
    ReportKind.LAUNCH_FAILED: Reason.LAUNCH_FAILED,
    ReportKind.LOST: Reason.NODE_LOST,
}
"""Reasons for reports without one."""


def apply_report(cycle: Cycle, report: Report) -> None:
    """Apply one report. It is acknowledged after the commit of the job's write."""
    if report.attempt is None:
        _apply_server_report(cycle, report)
        cycle.handled.append((None, report))
        return
    job = cycle.world.jobs.get(job_of(report.attempt))
    if job is None or job.attempt is None or job.attempt.id != report.attempt:
        # Noted with its job: a doubled end must not be acknowledged before the write of the first copy is committed.
        cycle.handled.append((job.id if job is not None else None, report))
        if report.kind is ReportKind.STARTED:
            fence(cycle, report.attempt)
        return
    cycle.handled.append((job.id, report))
    report = _in_time(report, job.attempt.opened_at_s, cycle.now_s)
    if report.kind is ReportKind.STARTED:
        _note_gpus(cycle, job, report)
        _started(cycle, job, report)
    elif report.kind is ReportKind.PROGRESS:
        _progressed(cycle, job, report)
    elif report.kind is ReportKind.EXITED and report.exit_code == 0:
        _exited_zero(cycle, job, report)
    else:
        _ended_otherwise(cycle, job, report)


def _in_time(report: Report, opened_at_s: float, now_s: float) -> Report:
    """The report with its time limited to the life of the attempt, in case the machine's clock is wrong."""
    if opened_at_s <= report.at_s <= now_s:
        return report
    return replace(report, at_s=min(max(report.at_s, opened_at_s), now_s))


def fence(cycle: Cycle, attempt: AttemptId) -> None:
    """Stop an attempt that is not open. Two attempts must never write to one checkpoint folder."""
    token = cycle.settings.fencing_token
    cycle.commands.append(
        (None, Stop(attempt, graceful=False, grace_s=cycle.settings.stop_grace_s, fencing_token=token))
    )


_SERVER_EVENTS = {
    ReportKind.SERVER_DOWN: ServerEventKind.DOWN,
    ReportKind.SERVER_UP: ServerEventKind.UP,
    ReportKind.SERVER_DRAINED: ServerEventKind.ENGINE_DRAINED,
    ReportKind.SERVER_RETURNED: ServerEventKind.ENGINE_RETURNED,
}


def _apply_server_report(cycle: Cycle, report: Report) -> None:
    """Apply a report about a server. A repeated one changes nothing."""
    if report.kind is ReportKind.SERVER_ADDED and report.server_spec is not None:
        cycle.add_server(with_assumed_speed(report.server_spec), found=True)
    if report.server is None or report.kind not in _SERVER_EVENTS or report.server >= len(cycle.world.servers):
        return
    record = cycle.world.servers[report.server]
    before = replace(record)
    if report.kind in (ReportKind.SERVER_DOWN, ReportKind.SERVER_UP):
        record.down = report.kind is ReportKind.SERVER_DOWN
    else:
        record.engine_drained = report.kind is ReportKind.SERVER_DRAINED
    if report.kind in (ReportKind.SERVER_DOWN, ReportKind.SERVER_DRAINED):
        record.detail = report.detail
    elif not (record.down or record.engine_drained):
        record.detail = ""
    if record != before:
        cycle.change_server(report.server, _SERVER_EVENTS[report.kind], report.detail)


def _note_gpus(cycle: Cycle, job: JobRecord, report: Report) -> None:
    """Keep the GPU indices that the attempt has, if they are as many as those of its launch.

    The first report of them counts. An executor that was restarted may have only the names that the program saw, which count
    from zero in a device cgroup.
    """
    attempt, got = job.attempt, report.gpu_ids
    assert attempt is not None
    if got is None or attempt.got_gpu_ids is not None or list(map(len, got)) != list(map(len, attempt.gpu_ids)):
        return
    attempt.got_gpu_ids = got
    cycle.note_attempt(job)


def _started(cycle: Cycle, job: JobRecord, report: Report) -> None:
    attempt = job.attempt
    assert attempt is not None
    if job.state is not JobState.STARTING:
        return
    cycle.move(job, JobState.RUNNING, Cause.STARTED, Reason.STARTED)
    cycle.move_attempt(job, AttemptState.RUNNING)
    attempt.started_at_s = report.at_s
    if job.first_started_at_s is None:
        job.first_started_at_s = report.at_s
    restart_s = cycle.world.costs.restart_s if attempt.number > 1 else 0.0
    job.anchor_s = report.at_s + restart_s
    job.progressing = True
    job.iterations_per_s = report.iterations_per_s or expected_speed(cycle, job)
    if report.iterations_per_s:
        _note_span(cycle, job)
    if cycle.settings.enforce_walltime and job.spec.walltime_s is not None:
        cycle.timer(job.anchor_s + max(0.0, job.spec.walltime_s - job.service_s), job.id)
    cycle.change(ChangeKind.PROGRESSED, job)


def expected_speed(cycle: Cycle, job: JobRecord) -> float:
    """Iterations per second at the job's placement before its first report: measured, else alpha(x), else the estimate's."""
    best_s = job.seconds_per_iteration()
    if best_s is None or best_s <= 0.0:
        return 0.0
    times = job.iteration_times
    if times is None or job.placement is None:
        return 1.0 / best_s
    return times.min_s / (best_s * alpha(job.spec, times, cycle.world.cluster, job.placement))


def _progressed(cycle: Cycle, job: JobRecord, report: Report) -> None:
    attempt = job.attempt
    assert attempt is not None
    if job.state is JobState.STARTING:
        _started(cycle, job, report)
    iteration = report.iteration
    if iteration is None or (attempt.last_iteration is not None and iteration < attempt.last_iteration):
        return
    cycle.touch(job)
    if job.state is JobState.RUNNING:
        job.settle(report.at_s)
        if attempt.last_iteration is None and report.at_s < job.anchor_s:
            # The restart was shorter than expected. The new anchor keeps a later report from counting time twice.
            job.anchor_s = report.at_s
        _measure(cycle, job, report, iteration)
    else:
        _settle_stopping(job, report)
    attempt.last_iteration = iteration
    job.iterations = iteration
    job.reports_iterations = True
    checkpoint = report.checkpoint_iteration
    if checkpoint is not None and checkpoint <= iteration:
        job.reports_checkpoints = True
        if checkpoint > job.checkpoint_iteration:
            job.checkpoint_iteration = checkpoint
            per_iteration_s = job.measured_s_per_iteration or 0.0
            job.checkpoint_service_s = max(0.0, job.service_s - (iteration - checkpoint) * per_iteration_s)
    note_total(cycle, job, report.total_iterations, iteration)
    note_loss(cycle, job, report.loss, iteration)
    cycle.change(ChangeKind.PROGRESSED, job)


def _settle_stopping(job: JobRecord, report: Report) -> None:
    """Count the work since the stop was decided: the program goes on until the stop reaches it."""
    if job.attempt is not None and job.attempt.started_at_s is not None:
        job.progressing = True
        job.settle(report.at_s)
        job.progressing = False


def _measure(cycle: Cycle, job: JobRecord, report: Report, iteration: float) -> None:
    """Speed from the first report of the attempt to this one: start-up time before the first does not count.

    Nor does the warm-up of a profile run.
    """
    attempt = job.attempt
    assert attempt is not None
    if report.iterations_per_s is not None:
        job.iterations_per_s = report.iterations_per_s
        _note_span(cycle, job)
        return
    if attempt.first_progress_at_s is None or attempt.first_progress_iteration is None:
        if iteration < attempt.resume_iteration + (job.spec.profile or 0):
            return
        attempt.first_progress_at_s, attempt.first_progress_iteration = report.at_s, iteration
        return
    elapsed_s = report.at_s - attempt.first_progress_at_s
    gained = iteration - attempt.first_progress_iteration
    if elapsed_s > 0.0 and gained > 0.0 and math.isfinite(elapsed_s / gained):
        job.measured_s_per_iteration = elapsed_s / gained
        job.iterations_per_s = gained / elapsed_s
        _note_span(cycle, job)


def _note_span(cycle: Cycle, job: JobRecord) -> None:
    """Note the measured speed of the open attempt under the span of its placement, if it is a finite number."""
    spec, placement, cluster = job.spec, job.placement, cycle.world.cluster
    if placement is None or job.iterations_per_s <= 0.0 or (spec.gpus == 1 and spec.stage_graph is None):
        return
    seconds, gpu_type = 1.0 / job.iterations_per_s, type_of(cluster, placement)
    if spec.stage_graph is not None and spec.parallelism is not None:
        modelled_s = iteration_time_s(spec.stage_graph, spec.parallelism, cluster, placement)
        seconds = seconds / modelled_s if modelled_s > 0.0 else math.inf
    if not 0.0 < seconds < math.inf:
        # A program reports any iterations, and its graph any times. The store holds finite numbers alone.
        return
    span, before = span_of(cluster, placement), job.seconds_by_span or SpanSeconds(gpu_type)
    job.seconds_by_span = before.measured(gpu_type, span, seconds)
    # Only a predictor that gave the estimate a slowdown revises it.
    if (
        job.slowdown is not None
        and spec.stage_graph is None
        and (before.at(span) is None or before.gpu_type != gpu_type)
    ):
        cycle.measured[job.id] = None


def _settle_end(cycle: Cycle, job: JobRecord, report: Report, keep: bool) -> None:
    """Fix progress at an attempt's end: all of it where ``keep``, else back to the last checkpoint."""
    attempt = job.attempt
    assert attempt is not None
    job.settle(report.at_s)
    if report.kind is ReportKind.EXITED and not keep:
        # A lost attempt may have ended long before it was missed.
        cycle.reached[job.id] = Reached(job.service_s, _reached_iteration(job, attempt, report))
    if report.checkpoint_iteration is not None:
        job.checkpoint_iteration = max(job.checkpoint_iteration, report.checkpoint_iteration)
    if keep:
        if report.iteration is not None:
            job.iterations = max(report.iteration, attempt.resume_iteration)
            job.reports_iterations = True
        elif job.reports_iterations:
            job.iterations = max(attempt.last_iteration or 0.0, attempt.resume_iteration)
        job.checkpoint_iteration = job.iterations
        job.checkpoint_service_s = job.service_s
    elif report.lost_service_s is not None:
        job.service_s = max(attempt.resume_service_s, job.service_s - report.lost_service_s)
        job.iterations = report.iteration if report.iteration is not None else job.iterations
        job.checkpoint_service_s = job.service_s
        job.checkpoint_iteration = job.iterations
    else:
        job.iterations = job.checkpoint_iteration
        job.service_s = job.checkpoint_service_s


def _reached_iteration(job: JobRecord, attempt: AttemptRecord, report: Report) -> float | None:
    if report.lost_service_s is not None:
        # Its iteration is what is left of the progress.
        return job.iterations if job.reports_iterations else None
    newest = report.iteration if report.iteration is not None else attempt.last_iteration
    if newest is not None:
        return max(newest, attempt.resume_iteration)
    return attempt.resume_iteration if job.reports_iterations else None


def _exited_zero(cycle: Cycle, job: JobRecord, report: Report) -> None:
    cause = Cause.EXITED_ZERO if job.state in (JobState.STARTING, JobState.RUNNING) else Cause.FINISHED_FIRST
    if cause is Cause.FINISHED_FIRST:
        _settle_stopping(job, report)
    _settle_end(cycle, job, report, keep=True)
    job.exit_code = 0
    if job.first_started_at_s is None:
        job.first_started_at_s = report.at_s
    ended_at_s = cycle.close_attempt(job, AttemptState.COMPLETED, Reason.COMPLETED, 0, report.at_s)
    cycle.finish(job, JobState.SUCCEEDED, cause, Reason.COMPLETED, at_s=ended_at_s)


def _ended_otherwise(cycle: Cycle, job: JobRecord, report: Report) -> None:
    yielded = report.exit_code == EXIT_YIELD
    lost_attempt = AttemptState.LOST if report.kind is ReportKind.LOST else AttemptState.FAILED
    reason = report.reason or _REASON_OF_END[report.kind]
    _settle_end(cycle, job, report, keep=yielded)
    job.exit_code = report.exit_code
    if job.state is JobState.CANCELLING:
        _end_cancelled(cycle, job, report)
    elif job.state is JobState.PREEMPTING and (yielded or report.stop_signalled):
        stopped_for = job.stop_cause or Reason.PREEMPTED
        cycle.close_attempt(job, AttemptState.PREEMPTED, stopped_for, report.exit_code, report.at_s)
        job.preemptions += 1
        _requeue(cycle, job, Cause.STOPPED, stopped_for, _warning_detail(report))
    elif yielded and job.state is not JobState.PREEMPTING:
        _end_yielded(cycle, job, report)
    else:
        with_server = report.kind is ReportKind.LOST and _lost_a_server(cycle, job, report)
        unstarted = with_server and _did_not_start(cycle, job)
        ended_at_s = cycle.close_attempt(job, lost_attempt, reason, report.exit_code, report.at_s)
        if unstarted:
            # What holds it up may last. Without a pause it would hold its GPUs nearly all of the time, and run on none.
            losses = job.attempts - job.retries - job.preemptions - job.yields
            _pause(cycle, job, cycle.settings.retry_backoff_s * min(losses, LOSSES_COUNTED_MAX))
        if with_server:
            _requeue(cycle, job, Cause.RETRYABLE_FAILURE, reason, report.detail)
        else:
            _fail_or_retry(cycle, job, reason, report.detail, ended_at_s)


def _warning_detail(report: Report) -> str:
    """The detail of the event of a preemption without a warning; empty after a warning, and where none was wanted."""
    if report.warning is not Warned.NOT_DELIVERED:
        return ""
    return (
        f"Attempt {report.attempt} was stopped without a warning: none of its processes has a handler for the signal."
    )


def _lost_a_server(cycle: Cycle, job: JobRecord, report: Report) -> bool:
    """Whether the attempt was lost together with a server. Such a loss uses up no retry.

    The report names the server, or a server of the attempt is down. A loss on servers that answer uses up a retry, because
    the program may have caused it.
    """
    assert job.attempt is not None
    return report.server is not None or any(
        cycle.world.servers[server].down for server in job.attempt.placement.servers
    )


def _did_not_start(cycle: Cycle, job: JobRecord) -> bool:
    """Whether the open attempt has not begun although its servers are up, as where its engine lets it wait for ever."""
    assert job.attempt is not None
    up = not any(cycle.world.servers[server].down for server in job.attempt.placement.servers)
    return up and job.attempt.started_at_s is None


def _end_cancelled(cycle: Cycle, job: JobRecord, report: Report) -> None:
    walltime = job.stop_cause is Reason.WALLTIME
    reason = Reason.WALLTIME if walltime else Reason.CANCELLED_BY_USER
    ended_at_s = cycle.close_attempt(job, AttemptState.CANCELLED, reason, report.exit_code, report.at_s)
    target, cause = (JobState.FAILED, Cause.WALLTIME) if walltime else (JobState.CANCELLED, Cause.STOPPED)
    cycle.finish(job, target, cause, reason, at_s=ended_at_s)


def _end_yielded(cycle: Cycle, job: JobRecord, report: Report) -> None:
    attempt = job.attempt
    assert attempt is not None
    gained = job.reports_iterations and job.iterations > attempt.resume_iteration
    served_s = job.service_s - attempt.resume_service_s
    ended_at_s = cycle.close_attempt(job, AttemptState.COMPLETED, Reason.YIELDED, EXIT_YIELD, report.at_s)
    job.yields += 1
    if job.yields > cycle.settings.yields_max:
        cycle.finish(job, JobState.FAILED, Cause.YIELDED, Reason.YIELDS_EXHAUSTED, at_s=ended_at_s)
    else:
        # What yields at once would start dozens of times a minute, and hold its GPUs for nothing.
        pause_s = cycle.settings.retry_backoff_s * min(job.yields, YIELDS_COUNTED_MAX)
        if not gained and served_s < pause_s:
            _pause(cycle, job, pause_s)
        _requeue(cycle, job, Cause.YIELDED, Reason.YIELDED)


def _fail_or_retry(cycle: Cycle, job: JobRecord, reason: Reason, detail: str, ended_at_s: float) -> None:
    job.retries += 1
    if not reason.retryable:
        cycle.finish(job, JobState.FAILED, Cause.FATAL_FAILURE, reason, detail, ended_at_s)
    elif job.retries > job.spec.max_retries:
        final = reason if job.spec.max_retries == 0 else Reason.RETRIES_EXHAUSTED
        cycle.finish(job, JobState.FAILED, Cause.FATAL_FAILURE, final, detail or str(reason), ended_at_s)
    else:
        _pause(cycle, job, cycle.settings.retry_backoff_s * job.retries)
        _requeue(cycle, job, Cause.RETRYABLE_FAILURE, reason, detail)


def _pause(cycle: Cycle, job: JobRecord, pause_s: float) -> None:
    if pause_s > 0.0:
        job.not_before_s = cycle.now_s + pause_s
        cycle.timer(job.not_before_s, job.id)


def _requeue(cycle: Cycle, job: JobRecord, cause: Cause, reason: Reason, detail: str = "") -> None:
    cycle.move(job, JobState.QUEUED, cause, reason, detail)
    job.stop_cause = None
    if job.held:
        job.reason = Reason.HELD
    elif job.not_before_s > 0.0:
        job.reason = Reason.RETRY_BACKOFF
    cycle.arrive(job)


def attained_walltime(job: JobRecord, now_s: float) -> bool:
    """Whether a running job has used up its walltime (productive seconds over all attempts)."""
    limit = job.spec.walltime_s
    return limit is not None and job.state is JobState.RUNNING and job.done(Unit.SERVICE_S, now_s) >= limit - 1e-6
