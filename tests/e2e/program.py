"""A training program of the tests: counts iterations, checkpoints, obeys signals, and writes its story down.

Arguments: iterations, seconds per iteration, iterations between checkpoints. The story (one JSON line an event) lies in the
checkpoint folder, so a test can see who ran when, and from where. While it runs it holds a lock of its rank in that folder,
and with ``LOCK_GPUS`` (a folder) one of each GPU that it was given: whoever finds one taken tells ``overlap`` or ``shared``.
With ``GO`` (a path) it makes its last iteration when that file exists: it runs for as long as a test needs it to.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

ITERATIONS, STEP_S, CHECKPOINT_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
FOLDER = Path(os.environ["SOONER_CHECKPOINT_DIR"])
RANK = int(os.environ.get("RANK", os.environ["NODE_RANK"]))
asked = {"checkpoint": False}
held = []


def tell(event: str, iteration: int) -> None:
    line = {
        "event": event,
        "iteration": iteration,
        "resume": int(os.environ["SOONER_RESUME_ITERATION"]),
        "attempt": os.environ["SOONER_ATTEMPT"],
        "rank": RANK,
        "at_s": time.time(),
    }
    with (FOLDER / "story.jsonl").open("a") as story:
        story.write(json.dumps(line) + "\n")


def lock(path: Path, otherwise: str) -> None:
    """Hold the file until this process ends; whoever has it has no right to."""
    held.append(path.open("a"))
    try:
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell(otherwise, 0)


def checkpoint(iteration: int) -> None:
    draft = FOLDER / f"draft-{RANK}"
    draft.write_text(str(iteration))
    draft.rename(FOLDER / f"checkpoint-{RANK}")


def report(iteration: int, checkpoint_iteration: int) -> None:
    if RANK == 0:
        line = {"iteration": iteration, "total_iterations": ITERATIONS, "checkpoint_iteration": checkpoint_iteration}
        with Path(os.environ["SOONER_PROGRESS_FILE"]).open("a") as progress:
            progress.write(json.dumps(line) + "\n")


def may_end() -> bool:
    """Whether the last iteration may be made; who was asked to stop waits for nothing."""
    go = os.environ.get("GO")
    return go is None or Path(go).exists() or asked["checkpoint"]


def main() -> int:
    signal.signal(signal.SIGUSR1, lambda *_: asked.update(checkpoint=True))
    signal.signal(signal.SIGTERM, lambda *_: asked.update(checkpoint=True))
    lock(FOLDER / f"lock-{RANK}", "overlap")
    if gpus := os.environ.get("LOCK_GPUS"):
        for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
            lock(Path(gpus) / f"gpu-{gpu}", "shared")
    saved = FOLDER / f"checkpoint-{RANK}"
    iteration = int(saved.read_text()) if saved.exists() else 0
    tell("start", iteration)
    kept = iteration
    report(iteration, kept)
    said_s = time.monotonic()
    while iteration < ITERATIONS:
        time.sleep(STEP_S)
        if iteration == ITERATIONS - 1 and not may_end():
            continue
        iteration += 1
        # Read once: a signal between these lines counts from the next iteration on, so it never ends one without its checkpoint.
        stops = asked["checkpoint"]
        if iteration % CHECKPOINT_EVERY == 0 or stops:
            checkpoint(iteration)
            kept = iteration
        if time.monotonic() - said_s > 0.15 or iteration == ITERATIONS or stops:
            report(iteration, kept)
            said_s = time.monotonic()
        if stops and iteration < ITERATIONS:
            tell("yield", iteration)
            return 75
    tell("end", iteration)
    return 0


sys.exit(main())
