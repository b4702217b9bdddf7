"""The actor that runs the program of one submission on one server. It is sent to the servers by value, so they need no Sooner.

Its records: see :mod:`service.executors.cluster.ray_records`. The process of the actor holds
the GPUs in Ray, so it lives until no process of its program is left.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

NAMESPACE = "sooner"
"""Of all names and records of Sooner in a Ray cluster."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ENTRY = (
    "import ctypes, os, sys\n"
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGTERM)})\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
"""Run by the child before the program: if Ray kills the actor, the kernel sends the program SIGTERM."""
_PAUSE_S = 0.05
_ROOT_LAST_S = 2.0
"""How long the program itself may live longer than its descendants, so that it can record how they ended."""
_ERROR_BYTES = 2000


class NodeRun:
    """Starts the program with the actor itself, and records ``run`` before and ``exit`` after it. ``index`` counts servers."""

    def __init__(self, cluster: str, attempt: str, index: int) -> None:
        self._record = f"{cluster}/live/{attempt}/"
        self._plan = f"{cluster}/plan/{attempt}"
        self._index = index
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self, kill_wait_s: float) -> None:
        """End the program: with SIGTERM now, and by killing all of its processes after ``kill_wait_s``. Returns at once."""
        with self._lock:
            again, self._stopped = self._stopped, True
            process = self._process
        if process is not None and not again:
            threading.Thread(target=self._end, args=(process, kill_wait_s), daemon=True).start()

    def _end(self, process: "subprocess.Popen[bytes]", kill_wait_s: float) -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill_wait_s)
        self._kill_all(process)

    def _run(self) -> None:
        try:
            self._put(f"run/{self._index}", self._identity())
            self._put(f"exit/{self._index}", self._attend())
        except BaseException:
            self._kill_all(self._process)
            os._exit(1)  # the death of the actor shows that there is no record of the end

    def _identity(self) -> dict[str, Any]:
        import ray

        context = ray.get_runtime_context()
        gpus = sorted(int(gpu) for gpu in ray.get_gpu_ids())
        return {"actor": context.get_actor_id(), "node": context.get_node_id(), "gpus": gpus}

    def _attend(self) -> dict[str, Any]:
        """Run the program. Returns the record of its end: ``error`` is set if it did not run."""
        job, plan = self._get(f"{self._record}job"), self._get(self._plan)
        # A stop writes its record before it looks for `run`, which is written already: one of the two sees the other.
        if job is None or plan is None or self._get(f"{self._record}stop") is not None:
            return {"code": None, "error": ""}
        described = json.loads(job)
        server, program = described["servers"][self._index], described["program"]
        if shutil.which(program[0]) is None:
            return {"code": None, "error": f"{server}: program {program[0]} not found"}
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") and name not in ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")
        }
        environment |= {"SOONER_NODE": server, "SOONER_LAUNCH": described["launch"]}
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._stopped:
                    return {"code": None, "error": ""}
                self._process = process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _ENTRY, str(os.getpid()), *program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    cwd="/",
                )
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(plan)
            code = process.wait()
            self._kill_all(process)
            errors.seek(max(0, errors.tell() - _ERROR_BYTES))
            said = errors.read().decode(errors="replace").strip() if code else ""
        return {"code": code, "error": "", "said": f"{server}: exit code {code}: {said}" if code else ""}

    def _kill_all(self, process: "subprocess.Popen[bytes] | None") -> None:
        """Kill the program's processes, itself last, until none is left."""
        begun = time.monotonic()
        root = process.pid if process is not None else -1
        while left := _descendants(os.getpid()):
            late = time.monotonic() - begun > _ROOT_LAST_S
            for pid in left:
                if pid != root or late:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if pid != root:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
            if process is not None:
                process.poll()
            time.sleep(_PAUSE_S)

    def _put(self, name: str, value: dict[str, Any]) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(self._record + name, json.dumps(value).encode(), overwrite=True, namespace=NAMESPACE)

    def _get(self, key: str) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        found: bytes | None = _internal_kv_get(key, namespace=NAMESPACE)
        return found


def _descendants(root: int) -> list[int]:
    """Processes below ``root``, those without a parent included, as ``root`` is a subreaper."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found.extend(level)
    return found
