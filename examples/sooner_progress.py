"""Tell Sooner how far a training program is. One file without dependencies: copy it next to your program.

    from sooner_progress import report

    for iteration in range(start, total):
        train_step()
        report(iteration + 1, total, loss=loss)

Outside Sooner it does nothing, so a program needs no switch.
"""

import json
import os
import time
import urllib.request

_INTERVAL_S = 0.1
"""Sooner ignores more than ten lines a second, so no more are sent."""

_last_s = float("-inf")
_last_checkpoint = None


def report(iteration, total_iterations=None, checkpoint_iteration=None, **metrics):
    """Report that ``iteration`` iterations are done; returns whether the line was sent.

    ``checkpoint_iteration`` says that a checkpoint of that iteration is complete *on disk*: call it only after the file
    has been renamed to its final name. Lines that come too fast are dropped, except a new checkpoint and the last
    iteration. From ``loss=0.31`` Sooner learns when runs with such losses end; other metrics are for people.
    """
    global _last_s, _last_checkpoint
    now_s = time.monotonic()
    worth_it = checkpoint_iteration != _last_checkpoint or iteration == total_iterations
    if now_s - _last_s < _INTERVAL_S and not worth_it:
        return False
    line = {"iteration": iteration}
    if total_iterations is not None:
        line["total_iterations"] = total_iterations
    if checkpoint_iteration is not None:
        line["checkpoint_iteration"] = checkpoint_iteration
    if not _send(json.dumps(line | metrics).encode()):
        return False
    _last_s, _last_checkpoint = now_s, checkpoint_iteration
    return True


def _send(line):
    """To the file if there is one, else to the address. A scheduler that does not listen must not stop a training."""
    try:
        if path := os.environ.get("SOONER_PROGRESS_FILE"):
            # One write in append mode: lines of several processes never mix.
            with open(path, "ab", buffering=0) as stream:  # noqa: PTH123 plain, for programs that copy this file
                stream.write(line + b"\n")
            return True
        if url := os.environ.get("SOONER_PROGRESS_URL"):
            token = os.environ.get("SOONER_PROGRESS_TOKEN", "")
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(url, line, headers), timeout=5):
                return True
    except OSError:
        pass
    return False
