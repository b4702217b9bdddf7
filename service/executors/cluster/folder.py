"""The files that all nodes of one attempt share, in a folder that the service and all servers reach.

``attempts/<attempt>/`` belongs to the service. In it, the *inbox* is the folder that node programs write into:

| file of the inbox | written by | when |
|---|---|---|
| ``claim`` | the first node program, or the executor | once: the word of the launch that may run, or ``stopped`` |
| ``stop.json`` | executor | a stop of the whole attempt is wanted |
| ``halt.json`` | the first node program whose part cannot go on | the other nodes stop, too |
| ``rendezvous.json`` | node 0 | all nodes are there; the port of its ranks |
| ``node-<k>/`` | the program on the k-th node | as the folder of a local attempt, see :mod:`service.executors.folder` |

``claim``, ``halt.json`` and the folders are made once and never replaced, by link(2) and rename(2), which NFS carries out
atomically, too. The records are sealed with the key of the attempt. Standard library only: the node program uses it.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from service.executors import folder as names
from service.executors.files import read_json, sync_folder, write_json
from service.executors.seal import Seal
from service.runtime.untrusted import open_below, open_file, read_small

INBOX = "nodes"
"""The name of the inbox unless the node programs run as another user than the service."""
CLAIM = "claim"
HALT = "halt.json"
RENDEZVOUS = "rendezvous.json"
STOPPED = "stopped"
"""The word of a claim that keeps an attempt from ever running."""

_ENTERED_BY_ALL = 0o711
_WRITTEN_BY_ALL = 0o1777
_READ_BY_ALL = 0o644
"""Of files that processes of two users exchange. They hold no secret, and others cannot enter their folder."""
_WORD_BYTES_MAX = 256
_GPUS_MAX = 1024


class Halt(NamedTuple):
    """Why the other nodes must stop. ``node``: the rank of the node that wrote it.

    ``by_engine``: the engine ended the part of this node (SIGTERM, or its process is gone), else the part failed.
    """

    node: int
    at_s: float
    by_engine: bool
    detail: str
    warning_signal: str | None
    grace_s: float


class NodeRecord(NamedTuple):
    """What one node's folder says. ``exists``: the program has begun. ``end``: what ``exit.json`` holds.

    ``gpus``: what the engine gave, as in CUDA_VISIBLE_DEVICES; empty if the launch names the GPUs. ``end`` has the key
    ``halted_by`` with a node's rank if the part ended because that node could not go on.
    """

    exists: bool
    gpus: tuple[str, ...] = ()
    started_at_s: float | None = None
    signalled: bool = False
    end: dict[str, Any] | None = None


def make_inbox(attempts: Path, attempt: str, inbox: str = INBOX) -> Path:
    """Create the folder of an attempt and its inbox, unless they exist; returns the inbox. Raises OSError.

    With another name than :data:`INBOX`, which must not be guessable, every user can write into it.
    """
    folder = attempts / attempt
    folder.mkdir(mode=_ENTERED_BY_ALL, parents=True, exist_ok=True)
    place = folder / inbox
    place.mkdir(mode=0o700, exist_ok=True)
    if inbox != INBOX:
        folder.chmod(_ENTERED_BY_ALL)
        place.chmod(_WRITTEN_BY_ALL)
    sync_folder(folder)
    sync_folder(attempts)
    return place


def node_folder(inbox: Path, node: int) -> Path:
    """The folder of the program on the node of this rank."""
    return inbox / node_name(node)


def node_name(node: int) -> str:
    """The name of a node's folder."""
    return f"node-{node}"


def claim(inbox: Path, word: str) -> str:
    """Claim the attempt for a launch, or with :data:`STOPPED` for none; returns the word that has it. Raises OSError."""
    _write_once(inbox, CLAIM, word.encode())
    holder = claimed(inbox)
    if holder is None:
        raise FileNotFoundError(inbox / CLAIM)
    return holder


def claimed(inbox: Path) -> str | None:
    """The word that has the attempt; None if it was not claimed yet. Raises OSError."""
    try:
        return read_small(open_below(inbox, CLAIM), _WORD_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return None


def write_stop(inbox: Path, warning_signal: str | None, grace_s: float, seal: Seal) -> None:
    """Ask all nodes to stop their parts. A request never weakens an earlier one. Raises OSError."""
    names.write_stop(inbox, warning_signal, grace_s, seal, _READ_BY_ALL)


def read_stop(inbox: Path, seal: Seal) -> tuple[str | None, float] | None:
    """The warning signal and the grace period of the stop that the executor wants; None if there is none."""
    return names.read_stop(inbox, seal)


def write_halt(inbox: Path, halt: Halt, seal: Seal) -> bool:
    """Ask the other nodes to stop; False if a node has done so before. Raises OSError."""
    return _write_once(inbox, HALT, json.dumps(seal.sealed(HALT, halt._asdict())).encode())


def read_halt(inbox: Path, seal: Seal) -> Halt | None:
    """The first halt of a node; None if there is none."""
    record = seal.opened(HALT, read_json(inbox / HALT))
    if record is None or record.keys() != set(Halt._fields):
        return None
    return Halt(**record)


def write_rendezvous(inbox: Path, port: int, seal: Seal) -> None:
    """Let the ranks of all nodes start; those of node 0 listen on ``port``. Raises OSError."""
    write_json(inbox / RENDEZVOUS, seal.sealed(RENDEZVOUS, {"port": port}))


def read_rendezvous(inbox: Path, seal: Seal) -> int | None:
    """The port of the ranks of node 0; None while the ranks must wait."""
    port = (seal.opened(RENDEZVOUS, read_json(inbox / RENDEZVOUS)) or {}).get("port")
    return port if isinstance(port, int) else None


def read_node(inbox: Path, node: int, seal: Seal) -> NodeRecord:
    """What the folder of a node says. Raises OSError for an error that may pass."""
    folder = node_folder(inbox, node)
    if not names.exists(folder):
        return NodeRecord(exists=False)
    # The end is read first: what was written before it is then seen, too.
    end = names.read_end(folder, seal)
    identity = names.read_record(folder, names.SUPERVISOR, seal, strict=True) or {}
    started = names.read_record(folder, names.STARTED, seal, strict=True)
    return NodeRecord(
        True,
        tuple(str(gpu) for gpu in (identity.get("gpus") or ())[:_GPUS_MAX]),
        names.seconds(started.get("at_s")) if started is not None else None,
        names.has(folder, names.SIGNALLED),
        end,
    )


def combined_end(ends: Sequence[dict[str, Any]], halted: int | None = None) -> dict[str, Any]:
    """The end of an attempt from those of all its nodes, by node rank. ``halted``: the node of :func:`read_halt`.

    The first failure decides: that of the halted node, else the earliest; the failures of nodes that stopped because of another
    do not count. Without a failure the code is 75 if a node has 75, else 0. A warning is delivered if it is on any node.
    """
    own = [(node, end) for node, end in enumerate(ends) if "halted_by" not in end] or list(enumerate(ends))
    # A part that was stopped before it started has no code, and says nothing of the others.
    known = [(node, end) for node, end in own if end["outcome"] != "exited" or end["exit_code"] is not None] or own
    failed = [(node, end) for node, end in known if end["outcome"] != "exited" or end["exit_code"] not in (0, 75)]
    at_s = max(end["at_s"] for end in ends)
    signalled = any(end["stop_signalled"] for _, end in own)
    warned = {end.get("warning") for end in ends}
    warning = next((outcome for outcome in (names.DELIVERED, names.NOT_DELIVERED) if outcome in warned), None)
    if not failed:
        code = 75 if any(end["exit_code"] == 75 for _, end in known) else 0
        return names.end_record("exited", at_s, exit_code=code, stop_signalled=signalled, warning=warning)
    node, first = min(failed, key=lambda entry: (entry[0] != halted, entry[1]["at_s"], entry[0]))
    detail = f"node {node}: {first['detail']}" if len(ends) > 1 and first["detail"] else first["detail"]
    return first | {"at_s": at_s, "stop_signalled": signalled, "detail": detail, "warning": warning}


def _write_once(inbox: Path, name: str, content: bytes) -> bool:
    """Create a file with its content, durably; False if it exists. Raises OSError."""
    draft = inbox / f"{names.UNNAMED}{name}-{os.urandom(8).hex()}"
    try:
        descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, content)
            os.fchmod(descriptor, _READ_BY_ALL)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, inbox / name)
        except FileExistsError:
            # An answer that NFS has lost is asked for again, and then finds the own link.
            return draft.stat().st_nlink > 1
        sync_folder(inbox)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return True
