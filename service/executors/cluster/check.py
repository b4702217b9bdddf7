"""The check of one node, as a program: whether attempts can run there. Any Python from 3.6 on starts it.

Run as ``python3 -I -S check.py FOLDER`` with ``SOONER_NODE`` (else ``SLURMD_NODENAME``) in its environment. It compares the
``nonce`` in the folder with that on its standard input, and writes what is wrong into the file ``answer`` of the folder. Exit
codes: 0 if nothing is wrong, 1 if something is. The same sentences go to standard error. It imports nothing of the service.
"""

import errno
import fcntl
import json
import os
import sys
import time
from pathlib import Path

PYTHON_MIN = (3, 11)
SKEW_S_MAX = 5.0


def problems(folder: Path, nonce: str, at_s: float) -> "list[str]":
    """What is wrong on this node, a sentence each. ``at_s``: the service's time when the check was requested."""
    found = []
    if sys.version_info < PYTHON_MIN:
        have = ".".join(str(part) for part in sys.version_info[:3])
        found.append(f"{sys.executable} is Python {have}; attempts need 3.11 or later (setting node_python)")
    behind_s = at_s - time.time()
    if behind_s > SKEW_S_MAX:
        found.append(f"the clock is {behind_s:.1f} s behind that of the service; the limit is {SKEW_S_MAX:g} s")
    try:
        seen = (folder / "nonce").read_text()
    except OSError as error:
        found.append(f"the shared folder cannot be read at {folder}: {error.strerror}")
        return found
    if seen != nonce:
        found.append(f"{folder} is another folder than that of the service")
        return found
    return found + write_problems(folder)


def write_problems(folder: Path) -> "list[str]":
    """What is wrong with writing into the folder: attempts need files, hard links and locks there, and a clock like its own."""
    draft = folder / f".try-{os.getpid()}-{os.urandom(4).hex()}"
    link = draft.with_name(f"{draft.name}-link")
    found = []
    try:
        descriptor = os.open(str(draft), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        return [f"the shared folder cannot be written at {folder}: {error.strerror}"]
    try:
        os.write(descriptor, b"x")
        os.fsync(descriptor)
        os.utime(str(draft))
        ahead_s = time.time() - os.fstat(descriptor).st_mtime
        if abs(ahead_s) > SKEW_S_MAX:
            where = "ahead of" if ahead_s > 0 else "behind"
            found.append(
                f"the clock is {abs(ahead_s):.1f} s {where} that of the shared folder; the limit is {SKEW_S_MAX:g} s"
            )
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(str(draft), str(link))
    except OSError as error:
        what = (
            "cannot be written"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "has no locks (flock) or no hard links"
        )
        found.append(f"the shared folder {what} at {folder}: {error.strerror}")
    finally:
        os.close(descriptor)
        for path in (draft, link):
            if path.exists():
                path.unlink()
    return found


def main() -> int:
    """Check this node and write the result. Returns the exit code."""
    folder = Path(sys.argv[1])
    request = json.load(sys.stdin)
    found = problems(folder, request["nonce"], request["at_s"])
    node = os.environ.get("SOONER_NODE") or os.environ.get("SLURMD_NODENAME") or ""
    if not node or "/" in node or node.startswith("."):
        found.append(f"SOONER_NODE={node}: it must be the name of this node")
    for problem in found:
        sys.stderr.write(f"sooner: {problem}\n")
    draft = folder / f".{os.urandom(4).hex()}"
    try:
        draft.write_text(json.dumps({"node": node, "problems": found}))
        draft.chmod(0o644)
        draft.rename(folder / request["answer"])
    except OSError as error:
        sys.stderr.write(f"sooner: the result cannot be written: {error}\n")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
