"""Prints which part of the job this process has: one line a GPU. Run it with ``launch: gpu``, or once a server."""

import json
import os


def lines(environ):
    """One line for each GPU of the process, or one without a plan."""
    visible = environ["CUDA_VISIBLE_DEVICES"].split(",")
    server, world = environ["NODE_RANK"], environ["WORLD_SIZE"]
    if "SOONER_PLAN" not in environ:
        return [f"server {server}: rank {environ.get('RANK', '-')} of {world}"]
    shown = []
    for place in json.loads(environ["SOONER_PLAN"])["places"]:
        gpu = visible[place["local_rank"]]
        part = f"stage {place['stage']} replica {place['replica']} tensor {place['tensor']}"
        shown.append(f"rank {place['rank']} of {world}: server {server}, GPU {gpu}: {part}")
    return shown


if __name__ == "__main__":
    for line in lines(os.environ):
        print(line, flush=True)
