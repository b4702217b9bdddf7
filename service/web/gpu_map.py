"""The GPUs of the cluster as a map: a cell a GPU, by server and rack."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

FOLDED_FROM: Final = 65
"""Servers from which on each rack is folded to a line."""

JOBS_NAMED_MAX: Final = 4
"""Jobs that are named beside a server; its cells name all."""


def map_of(servers: Sequence[Mapping[str, Any]], *, partial: bool) -> dict[str, Any]:
    """The servers of ``GET /v1/gpus`` by rack, in their order. ``folded``: whether racks are closed until they are opened.
    ``partial``: whether they are only a part of all.
    """
    racks: dict[str, list[dict[str, Any]]] = {}
    for server in servers:
        racks.setdefault(server["rack"], []).append(_server(server))
    return {
        "folded": len(servers) >= FOLDED_FROM,
        "partial": partial,
        "racks": [_rack(name, members) for name, members in racks.items()],
    }


def _rack(name: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "servers": members,
        "gpus": sum(len(each["cells"]) for each in members),
        "free": sum(each["free"] for each in members),
        "whole": sum(each["free"] == len(each["cells"]) for each in members),
    }


def _server(server: Mapping[str, Any]) -> dict[str, Any]:
    reserved = server["reservation"] is not None
    jobs = list(dict.fromkeys(gpu["job_id"] for gpu in server["gpus"] if gpu["job_id"] is not None))
    return {
        "name": server["server"],
        "state": server["state"],
        "reservation": server["reservation"],
        "cells": [_cell(gpu, reserved) for gpu in server["gpus"]],
        "free": sum(gpu["state"] == "free" for gpu in server["gpus"]),
        "jobs": jobs[:JOBS_NAMED_MAX],
        "more": max(0, len(jobs) - JOBS_NAMED_MAX),
    }


def _cell(gpu: Mapping[str, Any], reserved: bool) -> dict[str, str]:
    """Its kind, which is its class, and what it says."""
    title = f"GPU {gpu['index']}: {gpu['state']}"
    if gpu["state"] != "held":
        kind = "reserved" if reserved and gpu["state"] == "free" else str(gpu["state"])
        return {"kind": kind, "title": f"{title}, reserved" if kind == "reserved" else title}
    if gpu["job_id"] is not None:
        title += f" by job {gpu['job_id']}"
    if gpu["stage"] is not None:
        title += f", stage {gpu['stage']}"
    return {"kind": "held", "title": title}
