"""Copies the node program into the shared folder, so that servers need a Python and nothing else, and checks the servers."""

import contextlib
import errno
import hashlib
import json
import os
import py_compile
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from service.executors.deletion import delete_path
from service.executors.files import read_json, sync_folder

RUNTIME = "runtime"
CHECKS = "checks"
PROGRAM = "service/executors/_supervise.py"
CHECK = "service/executors/cluster/check.py"
MODULES = (
    PROGRAM,
    CHECK,
    "service/executors/cluster/folder.py",
    "service/executors/cluster/node.py",
    "service/executors/deletion.py",
    "service/executors/files.py",
    "service/executors/folder.py",
    "service/executors/keeper.py",
    "service/executors/logs.py",
    "service/executors/output.py",
    "service/executors/ranks.py",
    "service/executors/seal.py",
    "service/executors/supervisor.py",
    "service/executors/warning.py",
    "service/runtime/cgroups.py",
    "service/runtime/processes.py",
    "service/runtime/untrusted.py",
)
"""All files of the service that the programs on the servers need, and no others."""
_SOURCES = Path(__file__).resolve().parents[3]
_DIGEST_DIGITS = 16
_TRIES = 3
_DRAFT_AGE_S = 3600.0
_ISOLATED = ("-I", "-S")


class Check(NamedTuple):
    """A check of servers, in a folder of its own."""

    nonce: str


class CheckRequest(NamedTuple):
    """The check of one server, once. ``plan``: the standard input of :func:`check_program`, which is kept from other users.

    ``answer``: the name of the file with the answer. Other users cannot learn it before the file exists, so they cannot write it.
    """

    server: str
    answer: str
    plan: bytes


def install_runtime(shared_dir: Path) -> str:
    """Make sure that ``shared_dir/runtime/<digest>`` holds the programs of this release; returns the digest. Raises OSError.

    Several services may do so at once. A folder of another content, which a fault has left, is replaced.
    """
    contents = {name: (_SOURCES / name).read_bytes() for name in MODULES}
    text = json.dumps([[name, hashlib.sha256(content).hexdigest()] for name, content in contents.items()])
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
    runtimes = shared_dir / RUNTIME
    runtimes.mkdir(mode=0o755, parents=True, exist_ok=True)
    _sweep(runtimes)
    for _ in range(_TRIES):
        if _is_complete(runtimes / digest, contents):
            return digest
        _replace(runtimes, digest, contents)
    raise OSError(errno.EIO, f"{runtimes / digest} does not keep what is written to it")


def node_program(node_python: str, shared_dir_on_nodes: Path, digest: str) -> tuple[str, ...]:
    """The arguments that start the node program: see :mod:`service.executors.cluster.node`."""
    return (node_python, *_ISOLATED, str(shared_dir_on_nodes / RUNTIME / digest / PROGRAM), "--node")


def check_program(node_python: str, shared_dir_on_nodes: Path, digest: str, check: Check) -> tuple[str, ...]:
    """The arguments that start the check of a node: see :mod:`service.executors.cluster.check`."""
    program = shared_dir_on_nodes / RUNTIME / digest / CHECK
    return (node_python, *_ISOLATED, str(program), str(shared_dir_on_nodes / CHECKS / check.nonce))


def begin_check(shared_dir: Path) -> Check:
    """Prepare a check of all servers: a folder with a file that only the servers that share it can read. Raises OSError.

    The programs may run as other users, so any user may write into the folder, and none can list it.
    """
    nonce = secrets.token_hex(8)
    folder = shared_dir / CHECKS / nonce
    folder.mkdir(parents=True)
    folder.chmod(0o1733)
    (folder / "nonce").write_text(nonce)
    (folder / "nonce").chmod(0o644)
    sync_folder(folder)
    return Check(nonce)


def request_check(check: Check, server: str) -> CheckRequest:
    """What one server is asked."""
    answer = secrets.token_hex(16)
    plan = {"nonce": check.nonce, "at_s": time.time(), "answer": answer}
    return CheckRequest(server, answer, json.dumps(plan).encode())


def take_answer(shared_dir: Path, check: Check, request: CheckRequest) -> list[str] | None:
    """What is wrong on the server that was asked, one sentence each; None while there is no answer from it. It is deleted."""
    path = shared_dir / CHECKS / check.nonce / request.answer
    answer = read_json(path) or {}
    found = answer.get("problems")
    if not isinstance(found, list) or answer.get("node") != request.server:
        return None
    with contextlib.suppress(OSError):
        path.unlink()
    return [str(problem) for problem in found]


def end_check(shared_dir: Path, check: Check) -> None:
    """Delete the files of a check."""
    with contextlib.suppress(OSError):
        delete_path(shared_dir / CHECKS / check.nonce)


def _is_complete(folder: Path, contents: dict[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == content for name, content in contents.items())
    except OSError:
        return False


def _replace(runtimes: Path, digest: str, contents: dict[str, bytes]) -> None:
    draft = runtimes / f".{digest}-{secrets.token_hex(8)}"
    try:
        for name, content in contents.items():
            _write(draft, name, content)
        if (runtimes / digest).exists():
            (runtimes / digest).rename(runtimes / f".{digest}-{secrets.token_hex(8)}")
        # Of several services at once the first one wins: a folder with files is never replaced.
        with contextlib.suppress(OSError):
            draft.rename(runtimes / digest)
        sync_folder(runtimes)
    finally:
        with contextlib.suppress(OSError):
            delete_path(draft)


def _write(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    path.chmod(0o644)
    # A server with this Python's version then starts the program without compiling it.
    with contextlib.suppress(OSError, py_compile.PyCompileError):
        py_compile.compile(str(path), dfile=name, doraise=True, quiet=1)
    sync_folder(path.parent)


def _sweep(runtimes: Path) -> None:
    """Delete drafts that a service has left, and folders that were replaced long ago."""
    for path in runtimes.glob(".*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < time.time() - _DRAFT_AGE_S:
                delete_path(path)
