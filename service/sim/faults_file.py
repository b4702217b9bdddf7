"""Reads and checks faults: the file ``sooner.faults/1`` (YAML), and drains as ``SERVER:FROM_S:TO_S``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from service.config.yaml_file import YamlFileError, mapping, positive, read_yaml, schema, word
from service.sim.faults import FaultPlan, Window

SCHEMA = "sooner.faults/1"
MTBF_S_MIN = 1.0
"""A shorter mean time between failures is a mistake in a unit."""
SHAPE_MIN, SHAPE_MAX = 0.1, 10.0
"""Weibull shapes; published fits of failures of large machines lie between 0.7 and 1."""
_NUMBERS = ("mtbf_s", "mttr_s", "shape", "crash_mtbf_s")


class FaultsError(YamlFileError):
    """Faults that cannot be planned. ``str()`` names the file and the key, or the drain."""


def load_faults(path: Path, cluster: Cluster) -> FaultPlan:
    """Read a faults file for this cluster. Raises :class:`FaultsError`."""
    try:
        return _parse(read_yaml(path), cluster)
    except YamlFileError as error:
        raise FaultsError(error.key, error.message, str(path)) from error


def parse_drain(text: str, cluster: Cluster) -> Window:
    """``SERVER:FROM_S:TO_S``, where an empty TO_S means for ever. Raises :class:`FaultsError`."""
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


def _parse(data: object, cluster: Cluster) -> FaultPlan:
    top = mapping("", data, {"schema", *_NUMBERS, "drains", "outages"})
    schema(top, SCHEMA)
    numbers = {name: positive(name, top[name]) for name in _NUMBERS if top.get(name) is not None}
    for name, least, most in (
        ("mtbf_s", MTBF_S_MIN, math.inf),
        ("crash_mtbf_s", MTBF_S_MIN, math.inf),
        ("shape", SHAPE_MIN, SHAPE_MAX),
    ):
        if not least <= numbers.get(name, least) <= most:
            limit = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise YamlFileError(name, f"must be {limit}, not {numbers[name]:g}")
    drains, outages = (_windows(key, top.get(key), cluster) for key in ("drains", "outages"))
    return FaultPlan(**numbers, drains=drains, outages=outages)


def _windows(key: str, data: object, cluster: Cluster) -> tuple[Window, ...]:
    if data is None:
        return ()
    if not isinstance(data, list):
        raise YamlFileError(key, "must be a list")
    return tuple(_window(f"{key}[{position}]", each, cluster) for position, each in enumerate(data))


def _window(key: str, data: object, cluster: Cluster) -> Window:
    window = mapping(key, data, {"server", "from_s", "to_s"})
    for name in ("server", "from_s"):
        if window.get(name) is None:
            raise YamlFileError(f"{key}.{name}", "is missing")
    server = _server(f"{key}.server", word(f"{key}.server", window["server"]), cluster)
    from_s = _from_s(f"{key}.from_s", window)
    to_s = math.inf if window.get("to_s") is None else positive(f"{key}.to_s", window["to_s"])
    if to_s <= from_s:
        raise YamlFileError(f"{key}.to_s", f"must be greater than from_s, not {to_s:g}")
    return Window(server, from_s, to_s)


def _from_s(key: str, window: Mapping[str, Any]) -> float:
    """Accepts 0, unlike other numbers."""
    return 0.0 if window["from_s"] == 0 else positive(key, window["from_s"])


def _server(key: str, name: str, cluster: Cluster) -> ServerIndex:
    for index, server in enumerate(cluster.servers):
        if server.name == name:
            return ServerIndex(index)
    first, last = cluster.servers[0].name, cluster.servers[-1].name
    raise YamlFileError(key, f"cluster {cluster.name!r} has no server {name!r}; its servers are {first} to {last}")
