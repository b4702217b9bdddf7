"""Rows of jobs as the engine's records, read in bulk: a new leader reads every unfinished job."""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, Text, cast, select

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from service.db.codec import CodecError, decode
from service.db.rows import JOB_DOCUMENTS, JOB_PLAIN
from service.db.tables import JOBS
from service.engine.record import AttemptRecord, JobRecord

_DOCUMENTS: dict[str, type] = {"spec": JobSpec, **JOB_DOCUMENTS}
_PLAIN = ("id", "submitted_at_s", *JOB_PLAIN)
_WORDS = ("state", "reason", "stop_cause")
_COLUMNS = (*(JOBS.c[name] for name in (*_PLAIN, *_WORDS)), *(cast(JOBS.c[name], Text) for name in _DOCUMENTS))


class JobReader:
    """Reads jobs from one snapshot. Documents with the same text share one immutable value: recurring submissions have equal
    documents, and decoding a document is most of the work on a row."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, dict[str, Any]] = {name: {} for name in _DOCUMENTS}

    @staticmethod
    def query() -> Select[Any]:
        """Select what :meth:`read` needs, of all jobs in ascending id; to be narrowed."""
        return select(*_COLUMNS).order_by(JOBS.c.id)

    def read(self, query: Select[Any], attempt_of: dict[JobId, AttemptRecord]) -> Iterator[JobRecord]:
        """The records of the rows, each with its open attempt. Raises CodecError that names the job."""
        for row in self._connection.execute(query):
            values = dict(zip(_PLAIN, row, strict=False))
            state, reason, stop_cause = row[len(_PLAIN) : len(_PLAIN) + len(_WORDS)]
            values["state"] = JobState(state)
            values["reason"] = Reason(reason)
            values["stop_cause"] = None if stop_cause is None else Reason(stop_cause)
            values["attempt"] = attempt_of.get(values["id"])
            try:
                for (name, known), text in zip(self._known.items(), row[-len(_DOCUMENTS) :], strict=True):
                    if text is not None and text not in known:
                        known[text] = decode(_DOCUMENTS[name], json.loads(text))
                    values[name] = None if text is None else known[text]
            except CodecError as error:
                raise error.within(f"job {values['id']}") from None
            yield JobRecord(**values)
