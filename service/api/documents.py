"""How rows of the database become the documents of :mod:`service.wire`."""

import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NotRequired, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import Row, RowMapping

from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.reasons import PROMISED_END, Explanation, Reason
from policies.placement.seats import seats
from service.db.reads import JobSummary
from service.domain.forecast_scores import Milestone
from service.shadow.live import JobOpinion
from service.wire.jobs import (
    AttemptDocument,
    EventDocument,
    ExplanationDocument,
    JobDocument,
    PredictionDocument,
    SeatDocument,
    ShadowOpinionDocument,
    ShareDocument,
    ToldDocument,
)
from service.wire.times import INSTANT

D = TypeVar("D")

ETA_REASON = "No forecast is recorded yet. `sooner forecast`, or GET /v1/jobs/{id}/forecast, requests one."

_WAITS_FOR_PEOPLE = (Reason.HELD, Reason.QUEUE_PAUSED, Reason.QUOTA_TOO_SMALL, Reason.NO_SUCH_SERVERS)
"""Reasons that only somebody's action ends."""

LATEST_S = 253_402_128_000.0
"""9999-12-30: later times are given as this one. ISO 8601 has four digits for a year, and every time zone must fit."""

EARLIEST_S = -62_135_596_800.0
"""0001-01-01: the first time that ISO 8601 has."""

LINKS = ("explanation", "attempts", "events", "logs", "progress", "prediction", "forecasts")


def instant(at_s: float) -> str:
    """Seconds since the Unix epoch as a time in UTC; at most :data:`LATEST_S`."""
    return datetime.fromtimestamp(min(at_s, LATEST_S), UTC).isoformat().replace("+00:00", "Z")


def seconds_of(text: str) -> float | None:
    """The inverse of :func:`instant`; None for what is no time in ISO 8601 with a zone."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def instant_or_none(at_s: float | None) -> str | None:
    """The same, where it may not have happened."""
    return None if at_s is None else instant(at_s)


def document(kind: type[D], *sources: object, **derived: Any) -> D:
    """A document of the typed dictionary ``kind``: ``derived`` keys, and the attributes of ``sources`` for all others.

    Of several sources the first that has the attribute counts. An instant is read from the attribute with ``_s`` after the
    key, in seconds since the Unix epoch.
    """
    # A row's own methods hide columns such as 'count': read its mapping, as a dictionary, which is several times as fast.
    values = [dict(source._mapping) if isinstance(source, Row) else source for source in sources]
    found: dict[str, Any] = {}
    for key, name, is_time in _keys(cast(Hashable, kind)):
        if key in derived:
            found[key] = derived[key]
        else:
            value = _read(values, name)
            found[key] = instant_or_none(value) if is_time else value
    return cast(D, found)


def _read(sources: Sequence[object], name: str) -> Any:
    for source in sources:
        if isinstance(source, dict | RowMapping):
            if name in source:
                return source[name]
        elif hasattr(source, name):
            return getattr(source, name)
    raise AttributeError(name)


@cache
def _keys(kind: Any) -> list[tuple[str, str, bool]]:
    """Key, attribute, and whether it is an instant."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (key, f"{key}_s" if _is_instant(hint) else key, _is_instant(hint))
        for key, hint in hints.items()
        if get_origin(hint) is not NotRequired
    ]


def _is_instant(hint: Any) -> bool:
    return hint is INSTANT or any(_is_instant(part) for part in get_args(hint))


def prediction_document(row: Row[Any]) -> PredictionDocument:
    """A row of ``predictions``."""
    return document(PredictionDocument, row, **prediction_values(row))


def prediction_values(row: Row[Any]) -> dict[str, Any]:
    """What of a prediction's document is not a column."""
    point = row.p50 if row.point is None else row.point
    return {"point": point, "model_version": row.model_version or None}


def forecast_record_document(row: Row[Any]) -> ToldDocument:
    """A row of ``forecasts``."""
    return document(ToldDocument, row, model_version=row.model_version or None)


def job_document(summary: JobSummary) -> JobDocument:
    """A row of ``jobs`` with its prediction, forecasts and servers. Nothing in it depends on the time of the request."""
    row = summary.job
    here = f"/v1/jobs/{row.id}"
    ended = row.finished_at_s is not None
    finish = None if ended else summary.forecasts.get(Milestone.FINISH)
    return document(
        JobDocument,
        row,
        user=row.user or None,
        project=row.project or None,
        reason_sentence=Reason(row.reason).sentence,
        started_at=instant_or_none(row.first_started_at_s),
        iterations_done=row.iterations if row.reports_iterations else None,
        prediction=prediction_document(summary.prediction) if summary.prediction is not None else None,
        forecasts=[
            forecast_record_document(summary.forecasts[each]) for each in Milestone if each in summary.forecasts
        ],
        eta=None if finish is None else instant(finish.p50_s),
        eta_reason=None if ended or finish is not None else _why_no_eta(Reason(row.reason)),
        servers=list(summary.servers),
        links={"self": here, **{name: f"{here}/{name}" for name in LINKS}},
    )


def _why_no_eta(waits: Reason) -> str:
    """Why an unfinished job has no forecast. One that never starts as things are gets none by asking for it."""
    return waits.sentence if waits in _WAITS_FOR_PEOPLE else ETA_REASON


def attempt_document(
    row: Row[Any], placement: Placement, spec: JobSpec, server_names: Mapping[int, str]
) -> AttemptDocument:
    """A row of ``attempts`` of a job, with the names of its servers by position."""
    gpu_ids = row.got_gpu_ids or row.gpu_ids
    held: list[list[SeatDocument]] = [[] for _ in placement.shares]
    if spec.parallelism is not None or spec.plan is not None:
        for seat in sorted(seats(spec, placement), key=lambda seat: (seat.share, seat.gpu)):
            gpu = gpu_ids[seat.share][seat.gpu]
            held[seat.share].append(
                SeatDocument(rank=seat.rank, gpu_id=gpu, stage=seat.stage, replica=seat.replica, tensor=seat.tensor)
            )
    shares = [
        ShareDocument(server=server_names[share.server], gpus=share.gpus, gpu_ids=ids, seats=taken)
        for share, ids, taken in zip(placement.shares, gpu_ids, held, strict=True)
    ]
    sentence = Reason(row.reason).sentence if row.reason is not None else None
    return document(AttemptDocument, row, placement=shares, reason_sentence=sentence)


def event_document(row: Row[Any]) -> EventDocument:
    """A row of ``job_events``."""
    return document(EventDocument, row, reason_sentence=Reason(row.reason).sentence)


def explanation_document(
    job: Row[Any], explanation: Explanation | None, opinion: JobOpinion | None, last_stop: str
) -> ExplanationDocument:
    """The scheduling loop's explanation; without one, the reason of the job's row. ``opinion`` is the shadow policy's.

    ``last_stop`` is a sentence about the last stop or failure of the job, or empty.
    """
    shadow = document(ShadowOpinionDocument, opinion) if opinion is not None else None
    sentence = explanation_sentence(explanation) if explanation is not None else Reason(job.reason).sentence
    about = {"job_id": job.id, "state": job.state, "shadow": shadow, "sentence": f"{sentence} {last_stop}".rstrip()}
    if explanation is not None:
        return document(ExplanationDocument, explanation, **about)
    unknown = dict.fromkeys(("gpus_free", "servers_with_free_gpus", "servers_wanted", "jobs_ahead", "rank"))
    return document(
        ExplanationDocument,
        job,
        **about,
        **unknown,
        gpus_needed=job.gpus,
        waiting_for=[],
        numbers={},
        will_preempt=[],
        will_be_preempted_by=None,
        preemption_at=None,
    )


def explanation_sentence(explanation: Explanation) -> str:
    """The explanation in words, with the promised end and the preemption that is foreseen."""
    sentence = explanation.sentence
    if (promised_s := explanation.numbers.get(PROMISED_END)) is not None:
        sentence = f"{sentence} Promised to end by {instant(math.ceil(promised_s))}."
    if explanation.preemption_at_s is None:
        return sentence
    at = instant(math.ceil(explanation.preemption_at_s))
    victims, successor = explanation.will_preempt, explanation.will_be_preempted_by
    if successor is not None:
        return f"{sentence} Job {successor} will preempt it at {at}, if nothing changes before."
    names = f"job {victims[0]}" if len(victims) == 1 else f"jobs {', '.join(map(str, victims))}"
    return f"{sentence} Will preempt {names} at {at}, if nothing changes before."


def etag(found: Mapping[str, object]) -> str:
    """A strong validator: equal documents have equal tags, and no other ones (up to SHA-256)."""
    return f'"{hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]}"'


def etag_matches(header: str, tag: str) -> bool:
    """Whether a list of tags (``If-Match``, ``If-None-Match``) names this one; ``*`` names all."""
    given = [entry.strip().removeprefix("W/") for entry in header.split(",")]
    return tag in given or "*" in given
