"""What a what-if run simulates: its policies as they are written, the period of the past or the queue as it is, its servers.

Light to import: the command line reads its options with this.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from policies.model.cluster import Cluster
from policies.options import OptionError, named_values
from policies.registry import make_policy
from service.config.cluster_export import with_servers
from service.config.cluster_file import SCHEMA, ClusterFileError, parse_cluster
from service.config.policy import configured_options, configured_shadow
from service.config.settings import Settings, env_name
from service.simulations.runs import Plan

CURRENT = "current"
"""Stands among the policies for the one that is in force, with its options."""

SHADOW = "shadow"
"""Stands for the shadow policy of the settings, with its options."""

RECORDED = "recorded"
"""Stands for the predictions that the service had at the time."""

SAMPLES = 16
"""Sampled futures of a run from now on, unless it says otherwise."""

VALUE_DAYS = 30.0
"""The period whose predictions ``sooner model value`` judges, unless it says otherwise."""

VALUE_JOBS = 2_000
"""The newest jobs that it replays, unless it says otherwise: they are simulated some thirty times."""

MORE_SERVERS = r"^\+(\d{1,5})$"
"""So many servers like the last one, beside those that there are."""


class Window(NamedTuple):
    """Instants in seconds since the Unix epoch; None = no end on that side."""

    since_s: float | None
    until_s: float | None


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """A what-if run as it was asked of the service. ``servers``: None = those of the service, ``+N``, or entries of a cluster
    file. ``samples`` concerns a run ``from_now``; ``window``, ``servers``, ``predictor`` and ``network`` one of the past.
    """

    policies: Sequence[str]
    from_now: bool
    window: Window
    servers: str | Sequence[Mapping[str, Any]] | None
    predictor: str
    preemption: str | None
    network: str
    samples: int
    seed: int


def request_of(document: Mapping[str, Any]) -> SimulationRequest:
    """The request of a stored document: the body of ``POST /v1/simulations`` without gaps."""
    since, until = (
        None if document[key] is None else datetime.fromisoformat(document[key]).timestamp()
        for key in ("since", "until")
    )
    return SimulationRequest(
        policies=document["policies"],
        from_now=document["from_now"],
        window=Window(since, until),
        servers=document["servers"],
        predictor=document["predictor"] or RECORDED,
        preemption=document["preemption"],
        network=document["network"] or "reserved",
        samples=document["samples"] or SAMPLES,
        seed=document["seed"],
    )


def plan_of(text: str, settings: Settings, predictor: str, preemption: str | None) -> Plan:
    """The run of a policy that is written ``NAME`` or ``NAME:OPTION=VALUE:...``, or of ``current`` or ``shadow``.

    Raises OptionError, and :class:`~service.config.settings.SettingsError` for a shadow policy that the settings get wrong.
    """
    if text == CURRENT:
        return current_plan(settings, predictor)
    if text == SHADOW:
        plan = shadow_plan(settings, predictor)
        if plan is None:
            raise OptionError(NO_SHADOW)
        return plan
    name, *written = text.split(":")
    options = named_values(written)
    if preemption is not None:
        if "preemption" in options:
            raise OptionError("preemption is given for this policy and for all policies")
        options["preemption"] = preemption
    make_policy(name, options)
    return Plan(text, name, options, predictor)


def current_plan(settings: Settings, predictor: str) -> Plan:
    """The run of the policy in force."""
    return Plan(CURRENT, settings.policy, configured_options(settings), predictor)


NO_SHADOW = f"'{SHADOW}' needs the setting {env_name('shadow_policy')}, which is empty"


def shadow_plan(settings: Settings, predictor: str) -> Plan | None:
    """The run of the shadow policy; None without one. Raises SettingsError."""
    found = configured_shadow(settings)
    return None if found is None else Plan(SHADOW, settings.shadow_policy, dict(found.options), predictor)


def more_servers(text: str) -> int | None:
    """The N of ``+N``; None for another text."""
    found = re.match(MORE_SERVERS, text.strip())
    return None if found is None else int(found[1])


def machines_of(present: Cluster, servers: str | Sequence[Mapping[str, Any]] | None) -> Cluster:
    """The servers to simulate, in the network of those that are there. Raises ClusterFileError."""
    if servers is None:
        return present
    if isinstance(servers, str):
        if not present.servers:
            raise ClusterFileError("servers", f"{servers} adds servers like the last one, but all servers are down")
        return with_servers(present, more_servers(servers) or 0)
    return replace(present, servers=parse_cluster({"schema": SCHEMA, "servers": list(servers)}).servers)
