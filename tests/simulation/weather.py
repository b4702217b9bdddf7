"""What a seed of the swarm draws: machines, costs, a policy with options, jobs, and which kinds of faults there are."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from policies.base import Policy
from policies.catalogue import pipeline
from policies.model.cluster import Cluster, Server
from policies.model.job import PreemptionSignal
from policies.options import OptionError, Options
from policies.registry import BUILT_IN, make_policy
from policies.throughput import NeverFits, iteration_times
from service.engine.cycle import EngineSettings
from service.sim.executor import ExecutorCosts

NIC_BYTES_S = 3.125e9
"""25 Gb/s: slow enough for placement to matter."""

KINDS = (
    *("server", "drain", "crash", "echo", "hold", "cancel", "priority", "late_jobs"),
    *("cut", "repeat", "restart", "store", "stale", "server_added"),
    *("away", "tardy", "clock", "death"),
)
"""Kinds of trouble; a seed draws about half of them, so that no kind always hides what another one would show."""

LOSSY = frozenset({"cut", "repeat", "restart", "store", "stale", "away", "tardy", "clock", "death"})
"""Kinds under which the engine may hear late of what happened."""

PREFERRED = ("asrpt", "asrpt", "asrpt", "las", "gittins", "srsf")
"""Drawn more often than others: they have the most to go wrong."""

_NUMBERS: Mapping[str, tuple[float, ...]] = {
    "eta": (0.5, 0.8, 1.0),
    "attempt_duration_s_min": (0.0, 0.0, 40.0),
    "restarts_free": (0.0, 2.0, 20.0),
    "restarted_attempt_s_min": (0.0, 40.0, 900.0),
    "tau": (1.0, 1.5),
    "delay_factor": (0.0, 0.2, 1.0),
    "guard_share": (0.0, 0.05, 0.5),
    "guard_wait_s": (60.0, 86_400.0),
}


@dataclass(frozen=True)
class Weather:
    """All that one seed draws besides the jobs."""

    policy: str
    options: Mapping[str, str]
    servers: tuple[Server, ...]
    costs: ExecutorCosts
    network: str
    settings: EngineSettings
    kinds: frozenset[str]
    communication: bool

    def make(self) -> Policy[Any]:
        """The policy."""
        return make_policy(self.policy, self.options)


def weather(dice: random.Random, name: str | None = None) -> Weather:
    """Draw; ``name`` settles the policy."""
    chosen = name if name is not None else dice.choice((*sorted(BUILT_IN), *PREFERRED))
    return Weather(
        policy=chosen,
        options=_options(dice, chosen),
        servers=_servers(dice),
        costs=ExecutorCosts(
            checkpoint_s=dice.choice((0.0, 8.0)),
            restart_s=dice.choice((0.0, 0.0, 15.0)),
            launch_latency_s=dice.choice((0.0, 0.0, 3.0)),
            stop_latency_s=dice.choice((0.0, 0.0, 2.5)),
        ),
        network=dice.choice(("reserved", "contended")),
        settings=EngineSettings(
            retry_backoff_s=dice.choice((0.0, 0.0, 7.0)), dump_every_s=dice.choice((0.0, 10.0, 100.0))
        ),
        kinds=frozenset(kind for kind in KINDS if dice.random() < 0.5),
        communication=dice.random() < 0.6,
    )


def _options(dice: random.Random, name: str) -> dict[str, str]:
    """Each option that the policy takes, half of the time, with any of its values; those that do not go together are left."""
    factory, drawn = BUILT_IN[name], dict[str, str]()
    for field in fields(Options):
        if field.name not in factory.options or dice.random() < 0.5:
            continue
        default = getattr(factory.defaults, field.name)
        if isinstance(default, StrEnum):
            value = str(dice.choice(list(type(default))))
        elif isinstance(default, bool):
            value = dice.choice(("true", "false"))
        else:
            value = str(dice.choice(_NUMBERS.get(field.name, (default,))))
        try:
            make_policy(name, drawn | {field.name: value})
        except OptionError:
            continue
        drawn[field.name] = value
    return drawn


def _servers(dice: random.Random) -> tuple[Server, ...]:
    shapes = (
        ((4, 4, "V100"),),
        ((2, 8, "V100"),),
        ((8, 2, "V100"),),
        ((1, 16, "V100"),),
        ((2, 4, "V100"), (2, 8, "A100")),
    )
    sizes = [(gpus, kind) for count, gpus, kind in dice.choice(shapes) for _ in range(count)]
    return tuple(
        Server(f"s{n}", gpus, kind, rack=f"r{n % 2}", nic_bytes_s=NIC_BYTES_S) for n, (gpus, kind) in enumerate(sizes)
    )


def draw_job(dice: random.Random, drawn: Weather, earlier: Sequence[str]) -> dict[str, Any]:
    """The arguments of :meth:`tests.scenarios.dsl.Story.job` for another job, which may wait for ``earlier`` ones."""
    largest = max(
        sum(s.gpus for s in drawn.servers if s.gpu_type == kind) for kind in {s.gpu_type for s in drawn.servers}
    )
    gpus = min(largest, dice.choice((1, 1, 1, 2, 2, 4, 8, 16)))
    runs_s = float(dice.choice((1, 5, 20, 60, 150, 400)) + dice.randrange(8))
    job: dict[str, Any] = {
        "gpus": gpus,
        "runs_s": runs_s,
        "predicted": dice.choice(("truth", "truth", None, runs_s * 4, runs_s / 4, (runs_s / 2, runs_s, runs_s * 4))),
        "priority": dice.choice((0, 0, 0, 0, 1)),
        "user": dice.choice("abc"),
        "max_retries": 1000,
        "checkpoint_period_s": dice.choice((None, 0.0, 30.0)),
        "preemption": dice.choice((PreemptionSignal(), None)),
        "hold": dice.random() < 0.05,
        "iterations": dice.choice((None, runs_s * 10.0)),
    }
    if earlier and dice.random() < 0.1:
        job["after"] = dice.sample(earlier, k=min(len(earlier), dice.choice((1, 2))))
    if dice.random() < 0.1:
        job["gpu_type"] = dice.choice([s.gpu_type for s in drawn.servers])
        job["gpus"] = min(gpus, sum(s.gpus for s in drawn.servers if s.gpu_type == job["gpu_type"]))
    if drawn.communication and gpus > 1 and dice.random() < 0.6:
        _communicate(dice, drawn, job)
    return job


def _communicate(dice: random.Random, drawn: Weather, job: dict[str, Any]) -> None:
    """Give the job the stage graph of a well-known network, if the cluster can hold it."""
    graph, parallelism = pipeline(dice.choice(("resnet50", "vgg19", "bert_large", "gpt2_medium")), job["gpus"])
    try:
        times = iteration_times(graph, parallelism, Cluster("c", drawn.servers), job.get("gpu_type"))
    except NeverFits:
        return
    job |= {"stage_graph": graph, "parallelism": parallelism, "times": times}
    job["iterations"] = job["runs_s"] / times.min_s
