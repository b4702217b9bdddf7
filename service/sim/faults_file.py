"""Faults as users write them: the file ``sooner.faults/1`` (YAML), and drains as ``SERVER:FROM_S:TO_S``."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from service.config.yaml_file import FileModel, Positive, Word, YamlFileError, errors_as, read_yaml, validate
from service.sim.faults import FaultPlan, Window

SCHEMA = "sooner.faults/1"
MTBF_S_MIN = 1.0
"""A simulation in which something breaks every millisecond is a mistake in a unit."""
SHAPE_MIN, SHAPE_MAX = 0.1, 10.0
"""Weibull shapes; published fits of failures of large machines lie between 0.7 and 1."""
_BetweenFaults = Annotated[float, Field(ge=MTBF_S_MIN, allow_inf_nan=False)]


class FaultsError(YamlFileError):
    """Faults that cannot be planned. ``str()`` names the file and the key, or the drain."""


class WindowOfFile(FileModel):
    """An entry of ``drains`` and ``outages``; without ``to_s`` it lasts for good."""

    server: Word
    from_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    to_s: Positive | None = None


class FaultsFile(FileModel):
    """The whole file. A key that is null or left out keeps the default of :class:`service.sim.faults.FaultPlan`."""

    schema_: Literal["sooner.faults/1"] = Field(alias="schema")
    mtbf_s: _BetweenFaults | None = None
    mttr_s: Positive | None = None
    shape: Annotated[float, Field(ge=SHAPE_MIN, le=SHAPE_MAX)] | None = None
    crash_mtbf_s: _BetweenFaults | None = None
    drains: list[WindowOfFile] | None = None
    outages: list[WindowOfFile] | None = None


def load_faults(path: Path, cluster: Cluster) -> FaultPlan:
    """Read a faults file for this cluster; raises :class:`FaultsError` with one clear line for the first fault in it."""
    with errors_as(FaultsError, str(path)):
        return _plan(validate(FaultsFile, read_yaml(path)), cluster)


def parse_drain(text: str, cluster: Cluster) -> Window:
    """``SERVER:FROM_S:TO_S``, where nothing after the last colon means for good. Raises :class:`FaultsError`."""
    parts = text.rsplit(":", 2)
    try:
        name, from_s, to_s = parts[0], float(parts[1]), float(parts[2] or "inf")
    except (IndexError, ValueError):
        raise FaultsError("", f"{text!r} is not SERVER:FROM_S:TO_S") from None
    if not 0.0 <= from_s < math.inf or not from_s < to_s:
        raise FaultsError("", f"{text!r}: FROM_S must be at least 0, and TO_S greater")
    try:
        return Window(_server("", name, cluster), from_s, to_s)
    except YamlFileError as error:
        raise FaultsError("", f"{text!r}: {error.message}") from None


def _plan(file: FaultsFile, cluster: Cluster) -> FaultPlan:
    numbers = file.model_dump(include={"mtbf_s", "mttr_s", "shape", "crash_mtbf_s"}, exclude_none=True)
    return FaultPlan(
        **numbers,
        drains=_windows("drains", file.drains, cluster),
        outages=_windows("outages", file.outages, cluster),
    )


def _windows(key: str, windows: Sequence[WindowOfFile] | None, cluster: Cluster) -> tuple[Window, ...]:
    found = []
    for position, window in enumerate(windows or ()):
        server = _server(f"{key}[{position}].server", window.server, cluster)
        to_s = math.inf if window.to_s is None else window.to_s
        if to_s <= window.from_s:
            raise YamlFileError(f"{key}[{position}].to_s", f"must be greater than from_s (got {to_s:g})")
        found.append(Window(server, window.from_s, to_s))
    return tuple(found)


def _server(key: str, name: str, cluster: Cluster) -> ServerIndex:
    for index, server in enumerate(cluster.servers):
        if server.name == name:
            return ServerIndex(index)
    first, last = cluster.servers[0].name, cluster.servers[-1].name
    raise YamlFileError(key, f"cluster {cluster.name!r} has no server {name!r}; its servers are {first} to {last}")
