"""The GPUs of a launcher's flags: torchrun, ``torch.distributed.run`` and ``deepspeed``."""

from service.plans.arguments import Arguments
from service.plans.reading import Draft
from service.plans.values import ReadError

_NODES = ("nnodes", "num-nodes")
_PER_NODE = ("nproc-per-node", "num-gpus")
_TORCHRUN = ("nnodes", "nproc-per-node")


def machines(flags: Arguments, draft: Draft) -> None:
    """Take the servers and the processes on each, one a GPU.

    What torchrun leaves out is 1. What deepspeed leaves out is all: the servers of its hostfile, the GPUs of a server.
    """
    for name in _NODES:
        text = flags.text(name)
        if text is not None:
            if ":" in text:
                least, _, most = text.partition(":")
                if least != most and draft.given.nodes is None and draft.given.gpus is None:
                    raise ReadError(
                        flags.label(name), f"{text:.40} is a range; say the nodes with --nodes or the GPUs with --gpus"
                    )
                flags.content = {**flags.content, name: most}
            draft.set("nodes", flags.count(name), flags.label(name))
    if flags.flag("standalone"):
        draft.set("nodes", 1, flags.label("standalone"))
    for name in _PER_NODE:
        if flags.text(name) in ("gpu", "auto"):
            if draft.given.gpus_per_node is None and draft.given.gpus is None:
                raise ReadError(
                    flags.label(name), f"{flags.text(name)} means all GPUs of a server; say them with --gpus-per-node"
                )
        elif name in flags:
            draft.set("gpus_per_node", flags.count(name), flags.label(name))
    if any(name in flags for name in _TORCHRUN):
        for field in ("nodes", "gpus_per_node"):
            _default(draft, field, "default of torchrun")
    elif "num-gpus" in flags and "hostfile" not in flags:
        _default(draft, "nodes", "default of deepspeed")


def _default(draft: Draft, field: str, origin: str) -> None:
    if draft.get(field) is None and getattr(draft.given, field) is None and draft.given.gpus is None:
        draft.set(field, 1, origin)
