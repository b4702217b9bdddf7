"""A training program without GPUs whose stalls are known: busy work that takes a given time, whatever runs beside it.

Arguments, in seconds of every iteration: computing, waiting for input, the interconnect (with more than one GPU), the network (on
more than one server).
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from sooner_progress import report

COMPUTE_S, INPUT_S, INTERCONNECT_S, NETWORK_S = map(float, sys.argv[1:])
GPUS, SERVERS, RANK = (int(os.environ[name]) for name in ("WORLD_SIZE", "NNODES", "NODE_RANK"))


def work(seconds: float) -> None:
    """Compute until the time is over."""
    until_s, value = time.monotonic() + seconds, 1.0
    while time.monotonic() < until_s:
        value = value * 1.0000001 + 1e-9


waited_s, iteration = 0.0, 0
while True:
    began_s = time.monotonic()
    work(INPUT_S)
    waited_s += time.monotonic() - began_s
    work(COMPUTE_S + (INTERCONNECT_S if GPUS > 1 else 0.0) + (NETWORK_S if SERVERS > 1 else 0.0))
    iteration += 1
    if RANK == 0:
        report(iteration, input_s=waited_s)
