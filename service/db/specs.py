"""Specs in the database and in memory. That of an array is stored once: its elements differ by their index alone.

The row of an element holds a short reference in place of a spec, ``{"v": 1, "element_of": ARRAY, "index": INDEX}``; so does the
label of an element whose row is deleted. In memory the elements of one array share one spec (see ``JobRecord``).
"""

import json
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, insert, select

from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.db.codec import CodecError, decode, encode
from service.db.tables import ARRAY_SPECS, HISTORY, JOBS

SpecsOfArrays = MutableMapping[JobId, JobSpec]
"""The stored specs of arrays, by the array's id."""


class RecentSpecs(dict[JobId, JobSpec]):
    """Specs of the arrays that were read last. ``limit``: how many; a few do where the caller keeps none of the jobs."""

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit

    def __setitem__(self, array: JobId, spec: JobSpec) -> None:
        self.pop(array, None)
        super().__setitem__(array, spec)
        if len(self) > self._limit:
            del self[next(iter(self))]


@dataclass(frozen=True, slots=True)
class _Element:
    """What the row of an element holds in place of its spec."""

    element_of: JobId
    index: int


def spec_document(spec: JobSpec) -> dict[str, Any]:
    """What a job's row holds. That of an element refers to its array's spec: see :func:`keep_array_specs`."""
    return encode(spec if spec.array is None else _Element(spec.array.id, spec.array.index))


def keep_array_specs(connection: Connection, specs: Iterable[JobSpec]) -> None:
    """Store the specs of the arrays that these jobs belong to, of which none is stored yet."""
    arrays = {spec.array.id: spec for spec in specs if spec.array is not None}
    if not arrays:
        return
    known = set(connection.execute(select(ARRAY_SPECS.c.id).where(ARRAY_SPECS.c.id.in_(arrays))).scalars())
    rows = [{"id": array, "spec": encode(spec)} for array, spec in arrays.items() if array not in known]
    if rows:
        connection.execute(insert(ARRAY_SPECS), rows)


def delete_unused_array_specs(connection: Connection, arrays: Collection[int]) -> None:
    """Delete the specs of these arrays, but for those of which a job or a label is left."""
    if arrays:
        used = [
            select(rows.c.array_id).where(rows.c.array_id == ARRAY_SPECS.c.id).correlate(ARRAY_SPECS).exists()
            for rows in (JOBS, HISTORY)
        ]
        connection.execute(delete(ARRAY_SPECS).where(ARRAY_SPECS.c.id.in_(arrays), ~used[0], ~used[1]))


class SpecReader:
    """Reads specs from one snapshot, that of an array once for all of its elements.

    ``arrays``: specs that are known already; those that are read are added.
    """

    def __init__(self, connection: Connection, arrays: SpecsOfArrays | None = None) -> None:
        self._connection = connection
        self._arrays: SpecsOfArrays = {} if arrays is None else arrays

    def read(self, text: str) -> JobSpec:
        """The spec that the text of a row's document stands for. Raises CodecError."""
        document = json.loads(text)
        if not isinstance(document, dict) or "element_of" not in document:
            return decode(JobSpec, document)
        element = decode(_Element, document)
        spec = self.of_array(element.element_of)
        assert spec.array is not None
        return replace(spec, array=replace(spec.array, index=element.index))

    def of_array(self, array: JobId) -> JobSpec:
        """The spec that the elements of an array share. Raises CodecError."""
        known = self._arrays.get(array)
        if known is None:
            statement = select(cast(ARRAY_SPECS.c.spec, Text)).where(ARRAY_SPECS.c.id == array)
            text = self._connection.execute(statement).scalar_one_or_none()
            if text is None:
                raise CodecError(f"the spec of array {array} is missing")
            known = decode(JobSpec, json.loads(text))
            if known.array is None:
                raise CodecError(f"the spec of array {array} is that of a single job")
            self._arrays[array] = known
        return known
