"""The JSON documents about job arrays as a client sees them; see :mod:`service.client.documents`."""

from typing import TypedDict


class JobArray(TypedDict):
    """A job array: how many of its elements are in which state."""

    array_id: int
    jobs: int
    states: dict[str, int]


class ArrayAccepted(TypedDict):
    """A request about so many elements of an array, which the next cycle acts on."""

    accepted: str
    array_id: int
    jobs: int
