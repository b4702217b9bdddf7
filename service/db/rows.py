"""Conversion between the engine's records and rows of the database."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import ColumnElement, Connection, Double, Row, RowMapping, Select, Text, and_, case, cast, null, select

from policies.lifecycle import ATTEMPT_OPEN, TERMINAL, AttemptState, JobState
from policies.model.cluster import Server
from policies.model.estimate import EndedJob, Estimate, LossCurve, Prediction, ShadowPrediction, Unit
from policies.model.ids import JobId
from policies.model.job import IterationTimes, JobSpec
from policies.model.placement import Placement, Slowdown, SpanSeconds
from policies.model.reasons import Reason
from predictor.pending import Shadows
from service.db.codec import (
    PAYLOAD_FIELDS,
    VERSION,
    CodecError,
    RequestPayload,
    decode,
    decode_shadows,
    encode,
    encode_shadows,
)
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


_LABEL_DOCUMENTS: Mapping[str, type] = {"seconds_by_span": SpanSeconds, "loss_curve": LossCurve}
_JOB_DOCUMENTS: Mapping[str, type] = {
    "reservation": Placement,
    "estimate": Estimate,
    "iteration_times": IterationTimes,
    **_LABEL_DOCUMENTS,
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


_READ = tuple(field.name for field in fields(JobRecord)[:-1])
"""What is read, in the order of the record's fields; the last one, ``gate``, is not stored."""
_OF_NEW_JOBS = (
    *("id", "spec", "submitted_at_s", "reason", "version", "priority"),
    *("estimate", "iteration_times", "anchor_s", "array_index"),
)
_DEFAULTS = {field.name: field.default for field in fields(JobRecord) if field.name not in _OF_NEW_JOBS}
_IS_NEW = and_(*(JOBS.c[name] == default for name, default in _DEFAULTS.items() if name in JOBS.c))
"""Whether everything else that is read of a job has its default, as most of a long queue have: it waits, and has never run."""
_STATES = {state.value: state for state in JobState}
_REASONS = {reason.value: reason for reason in Reason}
_ROWS_AT_ONCE = 1000


class _Columns:
    """The columns of some fields of the record, and the places of those that a row does not hold as the record does."""

    def __init__(self, names: Sequence[str]) -> None:
        self.selected = (*(_read_column(name).label(name) for name in names), JOBS.c.array_id)
        place = {name: place for place, name in enumerate(names)}
        self.spec, self.reason = place["spec"], place["reason"]
        self.reals = [place[name] for name in names if name in JOBS.c and _is_real(JOBS.c[name])]
        self.documents = [(place[name], name, kind) for name, kind in _JOB_DOCUMENTS.items() if name in place]
        left_out = [name for name in _READ if name not in place]
        place |= {name: len(names) + index for index, name in enumerate(left_out)}
        self._defaults = [_DEFAULTS[name] for name in left_out]
        self._in_order = itemgetter(*(place[name] for name in _READ))

    def record(self, values: list[Any]) -> JobRecord:
        """The record of these values, which are in the order of the names, and of defaults."""
        return JobRecord(*self._in_order(values + self._defaults))


def _is_real(column: ColumnElement[Any]) -> bool:
    return isinstance(column.type, Double) and not column.nullable


def _read_column(name: str) -> ColumnElement[Any]:
    if name == "spec":
        # The reference of an element says what its columns say.
        return case((JOBS.c.array_id.is_(None), cast(JOBS.c.spec, Text)))
    if name == "attempt":
        return null()
    return cast(JOBS.c[name], Text) if name in _JOB_DOCUMENTS else JOBS.c[name]


_EVERYTHING = _Columns(_READ)
_NEW = _Columns(_OF_NEW_JOBS)
_STATE, _ATTEMPT, _STOP_CAUSE = (_READ.index(name) for name in ("state", "attempt", "stop_cause"))


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
        return select(*_EVERYTHING.selected).order_by(JOBS.c.id)

    def read(self, query: Select[Any], attempt_of: dict[JobId, AttemptRecord]) -> Iterator[JobRecord]:
        """The records of the rows, each with its open attempt. Raises CodecError that names the job."""
        for row in self._rows(query):
            values: list[Any] = [*row]
            array = values.pop()
            values[_STATE] = _STATES.get(values[_STATE]) or JobState(values[_STATE])
            values[_ATTEMPT] = attempt_of.get(values[0])
            if values[_STOP_CAUSE] is not None:
                values[_STOP_CAUSE] = Reason(values[_STOP_CAUSE])
            self._decode(values, array, _EVERYTHING)
            yield JobRecord(*values)

    def read_all(self, condition: ColumnElement[bool], attempt_of: dict[JobId, AttemptRecord]) -> list[JobRecord]:
        """The records of all jobs that meet the condition, by ascending id. Raises CodecError that names the job.

        A row costs by its columns, so a long queue is read in half of the time if only those are read that differ. The database
        does not sort: it would copy all documents for that.
        """
        found: list[JobRecord] = []
        others: list[JobId] = []
        for row in self._rows(select(*_NEW.selected, _IS_NEW).where(condition)):
            values: list[Any] = [*row]
            new, array = values.pop(), values.pop()
            if new:
                self._decode(values, array, _NEW)
                found.append(_NEW.record(values))
            else:
                others.append(values[0])
        for part in chunks(others):
            found += self.read(select(*_EVERYTHING.selected).where(JOBS.c.id.in_(part)), attempt_of)
        return sorted(found, key=attrgetter("id"))

    def _rows(self, query: Select[Any]) -> Iterator[Row[Any]]:
        # Many at once: a start reads a hundred thousand.
        return chain.from_iterable(self._connection.execute(query).partitions(_ROWS_AT_ONCE))

    def _decode(self, values: list[Any], array: JobId | None, columns: _Columns) -> None:
        """Replace words, documents and zeros among the values by those of the record. By their places, because it is quicker."""
        values[columns.reason] = _REASONS.get(values[columns.reason]) or Reason(values[columns.reason])
        for place in columns.reals:
            if not values[place]:
                values[place] = 0.0  # most are zero: one object for all
        try:
            spec = values[columns.spec]
            values[columns.spec] = self._read_spec(spec) if array is None else self._specs.of_array(array)
            for place, name, kind in columns.documents:
                text = values[place]
                if text is not None:
                    known = self._known[name]
                    if text not in known:
                        known[text] = decode(kind, json.loads(text))
                    values[place] = known[text]
        except CodecError as error:
            raise error.within(f"job {values[0]}") from None

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
        shadows=_shadows(row["shadows"]),
    )


def _shadows(document: Any) -> Sequence[ShadowPrediction]:
    """The shadows as an array, where all of them have as many points: a start reads two hundred numbers of every open job, which
    as objects take eight times the memory. Raises CodecError."""
    items = document["items"] if isinstance(document, dict) and document.keys() == {"v", "items"} else ()
    try:
        found = {item["model_version"]: item["points"] for item in items if item.keys() == _SHADOW_KEYS}
        plain = len(found) == len(items) and {*map(type, chain(*found.values()))} == {float}
        totals = np.array([*found.values()]) if plain else None
    except (TypeError, AttributeError, ValueError):
        totals = None
    # Whatever is odd is read, or refused, one by one.
    if totals is None or document["v"] != VERSION or {*map(type, found)} != {str} or not np.isfinite(totals).all():
        return tuple(decode_shadows(document))
    return Shadows(_shared_names(tuple(found)), totals)


_SHADOW_KEYS = frozenset(field.name for field in fields(ShadowPrediction))


@lru_cache(maxsize=256)
def _shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same tuple for equal names."""
    return names


def label_values(label: EndedJob) -> Values:
    """The columns of a label without those that identify the job."""
    values: Values = {name: getattr(label, name) for name in LABEL_COLUMNS}
    values |= {name: _encode_or_none(values[name]) for name in _LABEL_DOCUMENTS}
    return values


def stored_label(job: JobId, spec: JobSpec, row: RowMapping) -> EndedJob:
    """The inverse of :func:`label_values`."""
    values = {name: row[name] for name in LABEL_COLUMNS}
    values |= {name: _decode_or_none(kind, values[name]) for name, kind in _LABEL_DOCUMENTS.items()}
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
