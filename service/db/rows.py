"""Conversion between the engine's records and rows of the database."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Connection, Double, RowMapping, Select, Text, case, cast, select

from policies.lifecycle import ATTEMPT_OPEN, TERMINAL, AttemptState, JobState
from policies.model.cluster import Server
from policies.model.estimate import EndedJob, Estimate, Prediction, Unit
from policies.model.ids import JobId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, Slowdown, SpanSeconds
from policies.model.reasons import Reason
from service.db.codec import PAYLOAD_FIELDS, CodecError, RequestPayload, decode, decode_shadows, encode, encode_shadows
from service.db.specs import SpecReader, SpecsOfArrays, spec_document
from service.db.tables import JOBS
from service.engine.events import EngineRequest, JobEvent, RequestKind, ServerEvent
from service.engine.record import AttemptRecord, JobRecord, ServerRecord

Values = dict[str, Any]

T = TypeVar("T")

OWN_HISTORY = "sooner"
"""The history source of jobs that ran here."""

OPEN_ATTEMPTS = tuple(state.value for state in ATTEMPT_OPEN)
UNFINISHED_JOBS = tuple(state.value for state in JobState if state not in TERMINAL)
ENDED_JOBS = tuple(state.value for state in TERMINAL)

LABEL_COLUMNS = tuple(field.name for field in fields(EndedJob) if field.name not in ("job", "spec"))
"""A label's columns in the history, named like its fields."""


class ServerOrigin(StrEnum):
    """How a server came into the cluster."""

    FILE = "file"
    """The cluster file lists it, or the executor finds it."""
    REQUEST = "request"


_JOB_DOCUMENTS: Mapping[str, type] = {
    "reservation": Placement,
    "estimate": Estimate,
    "iteration_times": IterationTimes,
    "seconds_by_span": SpanSeconds,
}
_JOB_WORDS = ("state", "reason", "stop_cause")
_JOB_OTHER = {"id", "spec", "submitted_at_s", "attempt", "array_index", "gate", *_JOB_WORDS, *_JOB_DOCUMENTS}
# Every field that the engine adds to its records needs a column of the same name; a test checks it.
_JOB_PLAIN = [field.name for field in fields(JobRecord) if field.name not in _JOB_OTHER]
_ATTEMPT_OTHER = {"job", "state", "placement", "gpu_ids", "got_gpu_ids", "reason"}
_ATTEMPT_PLAIN = [field.name for field in fields(AttemptRecord) if field.name not in _ATTEMPT_OTHER]
_SERVER_STATE = [field.name for field in fields(ServerRecord)]


def job_values(job: JobRecord) -> Values:
    """Every column of a job that changes during its life."""
    values: Values = {name: getattr(job, name) for name in _JOB_PLAIN}
    values |= {name: _encode_or_none(getattr(job, name)) for name in _JOB_DOCUMENTS}
    values["state"] = job.state.value
    values["reason"] = job.reason.value
    values["stop_cause"] = None if job.stop_cause is None else job.stop_cause.value
    return values


def new_job_values(spec: JobSpec, submitted_at_s: float, job: JobRecord) -> Values:
    """Every column of a job but its id. The spec of an array is stored beside its jobs: :mod:`service.db.specs`."""
    return job_values(job) | {
        "name": spec.name,
        "user": spec.user,
        "project": spec.project,
        "gpus": spec.gpus,
        "spec": spec_document(spec),
        "submitted_at_s": submitted_at_s,
        "array_id": None if spec.array is None else spec.array.id,
        "array_index": None if spec.array is None else spec.array.index,
    }


_READ_PLAIN = ("id", "submitted_at_s", "array_index", *_JOB_PLAIN)
_REALS = tuple(name for name in _READ_PLAIN if isinstance(JOBS.c[name].type, Double) and not JOBS.c[name].nullable)
_READ_COLUMNS = (
    *(JOBS.c[name] for name in (*_READ_PLAIN, *_JOB_WORDS)),
    *(cast(JOBS.c[name], Text) for name in _JOB_DOCUMENTS),
    # The reference of an element says what its columns say.
    case((JOBS.c.array_id.is_(None), cast(JOBS.c.spec, Text))),
    JOBS.c.array_id,
)


class JobReader:
    """Reads jobs from one snapshot. Documents with the same text share one immutable value: recurring submissions have equal
    documents, and decoding a document is most of the work on a row. ``arrays``: as for :class:`SpecReader`."""

    def __init__(self, connection: Connection, arrays: SpecsOfArrays | None = None) -> None:
        self._connection = connection
        self._specs = SpecReader(connection, arrays)
        self._known_specs: dict[str, JobSpec] = {}
        self._known: dict[str, dict[str, Any]] = {name: {} for name in _JOB_DOCUMENTS}

    @staticmethod
    def query() -> Select[Any]:
        """Select what :meth:`read` needs, of all jobs in ascending id; to be narrowed."""
        return select(*_READ_COLUMNS).order_by(JOBS.c.id)

    def read(self, query: Select[Any], attempt_of: dict[JobId, AttemptRecord]) -> Iterator[JobRecord]:
        """The records of the rows, each with its open attempt. Raises CodecError that names the job."""
        for row in self._connection.execute(query):
            values = dict(zip(_READ_PLAIN, row, strict=False))
            state, reason, stop_cause = row[len(_READ_PLAIN) : len(_READ_PLAIN) + len(_JOB_WORDS)]
            values["state"] = JobState(state)
            values["reason"] = Reason(reason)
            values["stop_cause"] = None if stop_cause is None else Reason(stop_cause)
            values["attempt"] = attempt_of.get(values["id"])
            for name in _REALS:
                values[name] = values[name] or 0.0  # most are zero: one object for all
            *documents, spec, array = row[-2 - len(_JOB_DOCUMENTS) :]
            try:
                values["spec"] = self._read_spec(spec) if array is None else self._specs.of_array(array)
                for (name, known), text in zip(self._known.items(), documents, strict=True):
                    if text is not None and text not in known:
                        known[text] = decode(_JOB_DOCUMENTS[name], json.loads(text))
                    values[name] = None if text is None else known[text]
            except CodecError as error:
                raise error.within(f"job {values['id']}") from None
            yield JobRecord(**values)

    def _read_spec(self, text: str) -> JobSpec:
        known = self._known_specs.get(text)
        if known is None:
            known = self._known_specs[text] = self._specs.read(text)
        return known


def attempt_values(attempt: AttemptRecord) -> Values:
    """Every column of an attempt."""
    values: Values = {name: getattr(attempt, name) for name in _ATTEMPT_PLAIN}
    return values | {
        "job_id": attempt.job,
        "state": attempt.state.value,
        "placement": encode(attempt.placement),
        "gpu_ids": [list(ids) for ids in attempt.gpu_ids],
        "got_gpu_ids": None if attempt.got_gpu_ids is None else [list(ids) for ids in attempt.got_gpu_ids],
        "reason": None if attempt.reason is None else attempt.reason.value,
    }


def attempt_record(row: RowMapping) -> AttemptRecord:
    """The record of an attempt's row."""
    return AttemptRecord(
        job=JobId(row["job_id"]),
        state=AttemptState(row["state"]),
        placement=decode(Placement, row["placement"]),
        gpu_ids=tuple(tuple(ids) for ids in row["gpu_ids"]),
        got_gpu_ids=None if row["got_gpu_ids"] is None else tuple(tuple(ids) for ids in row["got_gpu_ids"]),
        reason=None if row["reason"] is None else Reason(row["reason"]),
        **{name: row[name] for name in _ATTEMPT_PLAIN},
    )


def event_values(event: JobEvent) -> Values:
    """Every column of an event but its id."""
    return {
        "job_id": event.job,
        "at_s": event.at_s,
        "source": None if event.source is None else event.source.value,
        "target": event.target.value,
        "cause": event.cause.value,
        "reason": event.reason.value,
        "cycle": event.cycle,
        "attempt_id": event.attempt,
        "detail": event.detail,
    }


REQUESTS_A_TURN = 50
"""Requests of one submission that may be ahead of the first request of a later one."""


def request_values(
    kind: RequestKind, at_s: float, job: JobId | None, payload: RequestPayload, position: int = 0
) -> Values:
    """Every column of a new request but its id. ``position``: its place among those that were accepted at once."""
    return {
        "kind": kind.value,
        "job_id": job,
        "payload": encode(payload),
        "created_at_s": at_s,
        "consumed_cycle": None,
        "turn": position // REQUESTS_A_TURN,
    }


def request_record(row: RowMapping) -> EngineRequest:
    """The request of a row."""
    payload = decode(RequestPayload, row["payload"])
    carried = {name: getattr(payload, name) for name in PAYLOAD_FIELDS}
    if payload.window is not None:
        carried["window"] = replace(payload.window, id=row["id"])
    job = None if row["job_id"] is None else JobId(row["job_id"])
    return EngineRequest(row["id"], RequestKind(row["kind"]), row["created_at_s"], job, **carried)


def server_values(position: int, spec: Server, record: ServerRecord, origin: ServerOrigin) -> Values:
    """Every column of a server."""
    return {
        "position": position,
        "name": spec.name,
        "spec": encode(spec),
        "origin": origin.value,
        **server_state_values(record),
    }


def server_state_values(record: ServerRecord) -> Values:
    """The columns of a server that change."""
    return {name: getattr(record, name) for name in _SERVER_STATE}


def server_record(row: RowMapping) -> ServerRecord:
    """The state of a server's row."""
    return ServerRecord(**{name: row[name] for name in _SERVER_STATE})


def server_event_values(event: ServerEvent) -> Values:
    """Every column of a server's event but its id."""
    return {
        "position": event.server,
        "at_s": event.at_s,
        "kind": event.kind.value,
        "cycle": event.cycle,
        "detail": event.detail,
    }


def prediction_values(job: JobId, cycle: int, made_at_s: float, prediction: Prediction) -> Values:
    """Every column of a new, unscored prediction but its id."""
    estimate = prediction.estimate
    return {
        "job_id": job,
        "made_at_s": made_at_s,
        "cycle": cycle,
        "unit": estimate.unit.value,
        "points": list(estimate.points),
        "p10": estimate.quantile(0.1),
        "p50": estimate.median,
        "p90": estimate.quantile(0.9),
        "source": estimate.source,
        "model_version": estimate.model_version,
        "seconds_per_unit": estimate.seconds_per_unit,
        "trusted": estimate.trusted,
        "point": estimate.point,
        "slowdown": _encode_or_none(estimate.slowdown),
        "feature_schema": prediction.feature_schema,
        # A missing feature is NaN to a model and null to JSON.
        "features": [value if value == value else None for value in prediction.features],
        "shadows": encode_shadows(prediction.shadows),
    }


def estimate_of(row: RowMapping) -> Estimate:
    """The estimate of a stored prediction."""
    return Estimate(
        points=tuple(row["points"]),
        unit=Unit(row["unit"]),
        source=row["source"],
        model_version=row["model_version"],
        seconds_per_unit=row["seconds_per_unit"],
        trusted=row["trusted"],
        point=row["point"],
        slowdown=_decode_or_none(Slowdown, row["slowdown"]),
    )


def prediction_of(row: RowMapping) -> Prediction:
    """The inverse of :func:`prediction_values`."""
    return Prediction(
        estimate=estimate_of(row),
        feature_schema=row["feature_schema"],
        features=tuple(math.nan if value is None else value for value in row["features"]),
        shadows=tuple(decode_shadows(row["shadows"])),
    )


def label_values(label: EndedJob) -> Values:
    """The columns of a label without those that identify the job."""
    values: Values = {name: getattr(label, name) for name in LABEL_COLUMNS}
    values["seconds_by_span"] = _encode_or_none(label.seconds_by_span)
    return values


def stored_label(job: JobId, spec: JobSpec, row: RowMapping) -> EndedJob:
    """The inverse of :func:`label_values`."""
    values = {name: row[name] for name in LABEL_COLUMNS}
    values["seconds_by_span"] = _decode_or_none(SpanSeconds, row["seconds_by_span"])
    return EndedJob(job=job, spec=spec, **values)


def own_history_values(label: EndedJob) -> Values:
    """The history row of a job that ran here; its spec stays in ``jobs``."""
    return {
        "source": OWN_HISTORY,
        "source_key": str(label.job),
        "job_id": label.job,
        "spec": None,
        **label_values(label),
    }


def by_job(attempts: Iterable[AttemptRecord]) -> dict[JobId, AttemptRecord]:
    """Open attempts by their job; a job has at most one."""
    return {attempt.job: attempt for attempt in attempts}


def chunks(values: Sequence[T], size: int = 5000) -> Iterable[Sequence[T]]:
    """Parts short enough for the parameters of one statement on both databases."""
    return (values[at : at + size] for at in range(0, len(values), size))


def _encode_or_none(value: object) -> Values | None:
    return None if value is None else encode(value)


def _decode_or_none(kind: type[T], document: object) -> T | None:
    return None if document is None else decode(kind, document)
