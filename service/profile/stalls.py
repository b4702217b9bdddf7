"""The parts of an iteration, from runs of one program on one GPU, on one server, and on two servers.

The differential method of Stash (Sharma et al., ICDCS 2023): the time by which an iteration is longer on more GPUs of a server is
the stall of the interconnect in the server, and the time by which it is longer on as many GPUs of two servers is the stall of the
network. Waiting for input is reported by the program, and is taken out of each time first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from service.profile.measure import Measured


class Place(StrEnum):
    """Where a run of a profile is placed."""

    GPU = "gpu"
    SERVER = "server"
    SERVERS = "servers"


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of an iteration by cause; they add up to it. None: not separable from ``compute_s``, or not measured.

    ``input_s`` is None where the program does not report it. ``interconnect_s`` is None without a run on one GPU, ``network_s``
    without a run on one server.
    """

    compute_s: float
    input_s: float | None
    interconnect_s: float | None
    network_s: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run: where, its GPUs and servers, and what was measured."""

    place: Place
    gpus: int
    servers: int
    measured: Measured


@dataclass(frozen=True, slots=True)
class Cost:
    """``speed``: work per second, relative to one GPU. ``gpu_hours``: GPU-hours for the work of 1,000 iterations on one GPU."""

    speed: float | None
    gpu_hours: float


def parts(runs: Mapping[Place, Run], place: Place, *, split_batch: bool) -> Parts:
    """The parts of an iteration of the run at ``place``.

    ``split_batch``: the GPUs divide a batch of fixed size, so each computes 1/n of what one GPU computes. Otherwise every GPU has
    a batch of its own, as large as that of one GPU.
    """
    run = runs[place]
    left = _own_s(run)
    network = interconnect = None
    if place is Place.SERVERS and Place.SERVER in runs:
        network = max(0.0, left - _own_s(runs[Place.SERVER]))
        left -= network
    elif place is not Place.SERVERS:
        network = 0.0
    if Place.GPU in runs and network is not None:
        alone_s = _own_s(runs[Place.GPU]) / (run.gpus if split_batch else 1)
        interconnect = max(0.0, left - alone_s) if run.gpus > 1 else 0.0
        left -= interconnect
    return Parts(left, run.measured.input_s, interconnect, network)


def cost(runs: Mapping[Place, Run], place: Place, *, split_batch: bool) -> Cost:
    """The speed of the run at ``place`` and what its work costs."""
    run = runs[place]
    work = 1.0 if split_batch else float(run.gpus)
    per_s = work / run.measured.seconds
    alone = runs.get(Place.GPU)
    speed = per_s * alone.measured.seconds if alone is not None else None
    return Cost(speed, run.gpus / per_s * 1000 / 3600)


def _own_s(run: Run) -> float:
    """Seconds of an iteration that are not waited for input."""
    return run.measured.seconds - (run.measured.input_s or 0.0)
