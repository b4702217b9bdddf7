"""One cycle's batch as a fixed number of statements, each for many rows, in the caller's transaction."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sqlalchemy import Connection, Table, insert, select, tuple_, update

from policies.model.estimate import EndedJob, Unit
from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.db.codec import encode_actions, encode_changes, encode_refusals
from service.db.dialects import insert_rows, update_rows, upsert
from service.db.prediction_rows import NewPrediction, insert_predictions
from service.db.rows import (
    ServerOrigin,
    Values,
    attempt_values,
    chunks,
    event_values,
    job_values,
    new_job_values,
    own_history_values,
    server_event_values,
    server_state_values,
    server_values,
)
from service.db.specs import keep_array_specs
from service.db.tables import (
    ATTEMPTS,
    CYCLES,
    EVENTS,
    HISTORY,
    JOBS,
    PREDICTIONS,
    REQUESTS,
    SERVER_EVENTS,
    SERVERS,
    THROUGHPUT,
    columns,
)
from service.db.usage import add_usage
from service.engine.ports import CycleBatch, JobWrite, StoreUnavailable, dropped_with

SAMPLES_KEPT = 20
"""Newest speeds that a throughput median is computed from."""
_KEYS_PER_STATEMENT = 500
"""Each key of the throughput table is six parameters."""


def apply_batch(connection: Connection, batch: CycleBatch) -> frozenset[JobId]:
    """Write the batch except for jobs whose rows are stale and jobs that depend on them; returns those jobs."""
    dropped = dropped_with(_stale(connection, batch), batch)
    writes = [write for job, write in batch.writes.items() if job not in dropped]
    requests = [*batch.requests, *(request for write in writes for request in write.requests)]
    _write_jobs(connection, writes)
    _write_attempts(connection, writes)
    insert_rows(connection, EVENTS, [event_values(event) for write in writes for event in write.events])
    _write_servers(connection, batch)
    _consume(connection, requests, batch.cycle)
    _write_predictions(connection, writes, batch)
    add_usage(connection, writes)
    _write_labels(connection, [write.label for write in writes if write.label is not None], batch.at_s)
    if batch.changes or batch.actions or batch.refusals or requests or batch.dump is not None:
        _insert(connection, CYCLES, [_cycle_values(batch, dropped)])
    return dropped


def _stale(connection: Connection, batch: CycleBatch) -> list[JobId]:
    """Jobs whose row has changed since the cycle read it. The rows are locked until the transaction ends.

    The lock excludes changes only: inserting a request or a progress line, which refers to the row, need not wait.
    """
    versions: dict[int, int] = {}
    for part in chunks(sorted(batch.writes)):
        statement = select(JOBS.c.id, JOBS.c.version).where(JOBS.c.id.in_(part)).with_for_update(key_share=True)
        versions.update((number, version) for number, version in connection.execute(statement))
    return [job for job, write in batch.writes.items() if versions.get(job, -1) != write.expected_version]


def _write_jobs(connection: Connection, writes: Sequence[JobWrite]) -> None:
    known = [write for write in writes if write.expected_version >= 0]
    guarded = [
        job_values(write.job) | {"at_id": write.job.id, "expected_version": write.expected_version} for write in known
    ]
    _update(connection, JOBS, guarded, {"at_id": "id", "expected_version": "version"})
    new = [write.job for write in writes if write.expected_version < 0]
    keep_array_specs(connection, (job.spec for job in new))
    _insert(connection, JOBS, [new_job_values(job.spec, job.submitted_at_s, job) | {"id": job.id} for job in new])


def _write_attempts(connection: Connection, writes: Sequence[JobWrite]) -> None:
    values = {attempt.id: attempt_values(attempt) for write in writes for attempt in write.attempts}
    if not values:
        return
    known = set(connection.execute(select(ATTEMPTS.c.id).where(ATTEMPTS.c.id.in_(values))).scalars())
    changed = [row | {"at_id": number} for number, row in values.items() if number in known]
    _update(connection, ATTEMPTS, changed, {"at_id": "id"})
    _insert(connection, ATTEMPTS, [row for number, row in values.items() if number not in known])


def _write_servers(connection: Connection, batch: CycleBatch) -> None:
    rows = [
        {"at_position": index} | server_state_values(record)
        for index, record in batch.servers.items()
        if index not in batch.new_servers
    ]
    if rows:
        _update(connection, SERVERS, rows, {"at_position": "position"})
    new = [
        server_values(index, new.spec, batch.servers[index], ServerOrigin.FILE if new.found else ServerOrigin.REQUEST)
        for index, new in sorted(batch.new_servers.items())
    ]
    _insert(connection, SERVERS, new)
    insert_rows(connection, SERVER_EVENTS, [server_event_values(event) for event in batch.server_events])


def _consume(connection: Connection, ids: Sequence[int], cycle: int) -> None:
    for part in chunks(ids):
        connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(part)).values(consumed_cycle=cycle))


def _write_predictions(connection: Connection, writes: Sequence[JobWrite], batch: CycleBatch) -> None:
    new = [NewPrediction(write.job.id, write.prediction) for write in writes if write.prediction is not None]
    insert_predictions(connection, new, batch.cycle, batch.at_s)


def _write_labels(connection: Connection, labels: Sequence[EndedJob], at_s: float) -> None:
    if not labels:
        return
    _insert(connection, HISTORY, [own_history_values(label) for label in labels])
    # A profile run is stopped early: it says nothing about the accuracy of predictions.
    _score(connection, {label.job: label for label in labels if label.spec.profile is None}, at_s)
    _learn_throughput(connection, labels, at_s)


def _score(connection: Connection, labels: dict[JobId, EndedJob], at_s: float) -> None:
    """Score the jobs' predictions against the actual values, each in its own unit."""
    rows: list[Values] = []
    for part in chunks(sorted(labels)):
        open_ones = select(*columns(PREDICTIONS, "id job_id unit p50")).where(
            PREDICTIONS.c.job_id.in_(part), PREDICTIONS.c.scored_at_s.is_(None)
        )
        for number, job, unit, p50 in connection.execute(open_ones):
            label = labels[job]
            actual = label.iterations if unit == Unit.ITERATIONS.value else label.service_s
            if not actual:
                continue  # the job never ran, or reported no iterations: there is no actual value
            error = math.log(p50 / actual) if p50 > 0.0 else None
            rows.append({"at_id": number, "actual": actual, "scored_at_s": at_s, "log_error": error})
    _update(connection, PREDICTIONS, rows, {"at_id": "id"})


def _learn_throughput(connection: Connection, labels: Sequence[EndedJob], at_s: float) -> None:
    """Add the measured speeds to the throughput table, by recurrence key, GPUs, GPU type and servers spanned."""
    speeds: dict[tuple[Any, ...], list[float]] = {}
    for label in labels:
        if label.seconds_per_iteration is None or label.gpu_type is None or label.servers_spanned is None:
            continue
        key = (*label.spec.recurrence, label.spec.gpus, label.gpu_type, label.servers_spanned)
        speeds.setdefault(key, []).append(label.seconds_per_iteration)
    if not speeds:
        return
    keys = columns(THROUGHPUT, "user project name gpus gpu_type servers_spanned")
    before: dict[tuple[Any, ...], tuple[list[float], int]] = {}
    for part in chunks(list(speeds), _KEYS_PER_STATEMENT):
        statement = select(*keys, THROUGHPUT.c.samples, THROUGHPUT.c.count).where(tuple_(*keys).in_(part))
        before |= {tuple(row[:6]): (list(row[6]), int(row[7])) for row in connection.execute(statement)}
    names = [column.name for column in keys]
    rows: list[Values] = []
    for key, measured in speeds.items():
        samples, count = before.get(key, ([], 0))
        samples = [*samples, *measured][-SAMPLES_KEPT:]
        values = {
            "samples": samples,
            "median_s_per_iteration": median(samples),
            "count": count + len(measured),
            "updated_at_s": at_s,
        }
        rows.append(dict(zip(names, key, strict=True)) | values)
    upsert(connection, THROUGHPUT, rows)


def _cycle_values(batch: CycleBatch, dropped: frozenset[JobId]) -> Values:
    lost = [(action.job, Reason.REFUSED) for action in batch.actions if action.job in dropped]
    return {
        "number": batch.cycle,
        "at_s": batch.at_s,
        "changes": encode_changes(batch.changes),
        "actions": encode_actions(batch.actions),
        "refusals": encode_refusals([*batch.refusals, *lost]),
        "wake_at_s": batch.wake_at_s,
        "dump": batch.dump,
        "duration_s": dict(batch.duration_s),
    }


def _insert(connection: Connection, into: Table, rows: Sequence[Values]) -> None:
    if rows:
        connection.execute(insert(into), rows)


def _update(connection: Connection, target: Table, rows: Sequence[Values], at: Mapping[str, str]) -> None:
    """Change all rows at once. Raises StoreUnavailable unless each changed exactly one row, which is locked."""
    hit = update_rows(connection, target, rows, at)
    if hit not in (len(rows), None):
        raise StoreUnavailable(f"{target.name}: expected to change {len(rows)} rows, changed {hit}")
