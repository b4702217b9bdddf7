"""Runs a program that reads a model in a process with limits, without secrets, and without network where the kernel allows it.

The model's code is foreign, and a file may be hostile. What comes back is JSON of limited size, checked before it is used.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from service.graphs.trace import Trace, trace_of
from service.plans.values import ReadError
from service.runtime.limited_process import limit_this_process

ANSWER_BYTES_MAX = 256 << 20
"""Limit of an answer; 70 billion parameters in 80 layers take 1.4 MB."""

ERRORS_BYTES_MAX = 64 << 10
"""So much of the end of what the program prints is kept."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
    "LD_LIBRARY_PATH", "HF_HOME", "TORCH_HOME",
)  # fmt: skip
"""Variables that the program sees, with those that begin with ``LC_``. No other, so that none with a key or a token."""

_OPTIONS = ("batch", "dim", "input")
"""Options that an error of the program may begin with."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the process may take: seconds, and bytes of address space (code of libraries included)."""

    wall_s: float
    memory_bytes: int


def traced(program: str, request: Mapping[str, Any], python: str, bounds: Bounds) -> Trace:
    """The trace that a program of this package answers with. Raises :class:`ReadError` for a model that cannot be read."""
    script = str(Path(__file__).parent / program)
    # -P: the current folder may have a package of our name.
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(bounds.memory_bytes), python, script]
    try:
        process = subprocess.Popen(
            [*command, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise ReadError("model", f"its process cannot be started: {error.strerror or error}") from None
    answer, errors, ended = _outputs(process, bounds.wall_s)
    if not ended:
        raise ReadError("model", f"reading it took longer than {bounds.wall_s:,.0f} s (--time-limit)")
    if len(answer) > ANSWER_BYTES_MAX:
        raise ReadError("model", f"its trace is larger than {ANSWER_BYTES_MAX:,} bytes")
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        raise ReadError("model", _ended(process.returncode, errors, bounds)) from None
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        option, _, problem = document["error"].partition(": ")
        raise ReadError(option, problem) if option in _OPTIONS else ReadError("model", document["error"])
    return trace_of(document)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    # Without a network a library that looks for a model's files there must not wait for it.
    return {**kept, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


def _outputs(process: subprocess.Popen[bytes], wall_s: float) -> tuple[bytes, bytes, bool]:
    """The answer, the end of what the process printed, and whether it ended in time. Its whole session is killed in the end."""
    assert process.stdout is not None
    assert process.stderr is not None
    found: dict[str, bytes] = {"answer": b"", "errors": b""}

    def read_answer(stream: IO[bytes]) -> None:
        with stream:
            found["answer"] = stream.read(ANSWER_BYTES_MAX + 1)
        if len(found["answer"]) > ANSWER_BYTES_MAX:
            process.kill()

    def read_errors(stream: IO[bytes]) -> None:
        with stream:
            while part := os.read(stream.fileno(), 1 << 16):
                found["errors"] = (found["errors"] + part)[-ERRORS_BYTES_MAX:]

    readers = [
        threading.Thread(target=read_answer, args=(process.stdout,), daemon=True),
        threading.Thread(target=read_errors, args=(process.stderr,), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait(wall_s)
        ended = True
    except subprocess.TimeoutExpired:
        ended = False
    finally:
        _kill(process)
    for reader in readers:
        reader.join(timeout=5.0)  # a process that left the session may hold the pipe
    return found["answer"], found["errors"], ended


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _ended(code: int, errors: bytes, bounds: Bounds) -> str:
    text = errors.decode("utf-8", "replace").strip()
    if code and ("MemoryError" in text or "bad_alloc" in text or "Cannot allocate memory" in text or code == -9):
        return f"reading it took more than {bounds.memory_bytes / 2**30:,.0f} GiB of memory (--memory-gib)"
    said = text.splitlines()[-1] if text else "nothing was printed"
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process that read it ended with {how}: {said}"


def _leave_network() -> None:
    """Enter a network namespace of its own, which has no device that is up; stay where the kernel does not allow it."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        libc.unshare(_CLONE_NEWNET)
    elif libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)


def main(arguments: Sequence[str]) -> None:
    """Limit this process, then execute the program: ``PARENT_PID MEMORY_BYTES PYTHON SCRIPT REQUEST``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parent", type=int)
    parser.add_argument("memory_bytes", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    limit_this_process(options.parent, -1, options.memory_bytes)
    _leave_network()
    python, script, request = options.command
    try:
        os.execvp(python, [python, script, request])  # noqa: S606 (the interpreter that the user names)
    except OSError as error:
        sys.exit(f"{python}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
