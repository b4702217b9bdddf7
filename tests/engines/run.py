"""Runs pytest on real engines, alone on a network and among processes of its own: ``python -m tests.engines.run [ARGUMENTS]``.

Engines open ports on every address, and leave processes behind when they are killed. So everything runs in a network
namespace with a loopback device and one more address, and in a process namespace that ends with pytest.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from tests.engines import accounted_cluster, prometheus, slurm_cluster, torch_program

ROOT = Path(__file__).parents[2]
REQUIRED = "ENGINE_TESTS_REQUIRED"
"""Set where a missing engine fails the tests instead of skipping them."""

_NETWORK = """
set -e
ip link set lo up
ip link add engines0 type veth peer name engines1
ip address add 10.99.0.1/24 dev engines0
ip link set engines0 up
ip link set engines1 up
"$@"
"""
"""Names are looked up only where an address beside the loopback one exists (AI_ADDRCONFIG), so there is a second device.

The shell stays the first process of its namespace, so that it collects the processes whose parents have ended.
"""


_PARTS: Final = (
    "test_slurm_service.py",
    "test_ray_service.py",
    "test_slurm*.py",
    "test_ray*.py",
    "test_graph*.py",
    "test_*.py",
)
"""Files that run one after another, beside those of the other parts. The first pattern that fits counts."""


def main(arguments: Sequence[str]) -> int:
    """Install what is missing, then run pytest. Returns its exit code; 2 where the tests cannot run."""
    try:
        _prepare()
    except RuntimeError as error:
        print(f"The tests with engines cannot run: {error}", file=sys.stderr)
        return 2
    if arguments:
        return _run(arguments, None)
    # They mostly wait, so all parts run at once, each on a network of its own. One shows its progress, the others their outcome.
    *others, last = _parts()
    with ThreadPoolExecutor(len(others)) as threads, contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in others]
        running = [threads.submit(_run, part, output) for part, output in zip(others, outputs, strict=True)]
        code = _run(last, None)
        for part, output in zip(running, outputs, strict=True):
            code = part.result() or code
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
            sys.stdout.flush()
    return code


def _parts() -> list[list[str]]:
    """The files of tests of each part."""
    parts: list[list[str]] = [[] for _ in _PARTS]
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        first = next(number for number, pattern in enumerate(_PARTS) if path.match(pattern))
        parts[first].append(str(path.relative_to(ROOT)))
    return parts


def _run(arguments: Sequence[str], output: IO[bytes] | None) -> int:
    pytest = [sys.executable, "-m", "pytest", "-m", "engines", "--durations=5", *arguments]
    environ = {**os.environ, REQUIRED: "1"}
    done = subprocess.run(apart(pytest), cwd=ROOT, env=environ, stdout=output, stderr=output, check=False)
    return done.returncode


def apart(command: Sequence[str]) -> list[str]:
    """The command as one that runs alone on a network and among processes of its own, which end with it."""
    spaces = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
    return [*spaces, "sh", "-c", _NETWORK, "sh", *command]


def _prepare() -> None:
    """Install what is missing: Slurm, its database and Prometheus from Debian, Ray, PyTorch. Raises RuntimeError on failure."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError("they need Linux (network namespaces)")
    if os.geteuid() != 0:
        raise RuntimeError("they need root, to start Slurm's daemons and to make network namespaces")
    for tool, package in (("unshare", "util-linux"), ("ip", "iproute2")):
        if shutil.which(tool) is None:
            raise RuntimeError(f"the command {tool} is missing: install the package {package}")
    for part in (slurm_cluster, accounted_cluster, prometheus):
        if part.missing():
            _install(part.PACKAGES)
    if importlib.util.find_spec("ray") is None:
        _install_ray()
    if torch_program.missing():
        torch_program.install()
    lacking = slurm_cluster.missing() or accounted_cluster.missing() or prometheus.missing() or torch_program.missing()
    if lacking:
        raise RuntimeError(lacking)


def _install(packages: Sequence[str]) -> None:
    if shutil.which("apt-get") is None:
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    for command in (["apt-get", "update"], install):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


def _install_ray() -> None:
    lock = str(ROOT / "requirements-ray.lock")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock]
    if subprocess.run(install, check=False).returncode != 0:
        raise RuntimeError(f"the package ray is missing, and {' '.join(install)} failed")
    importlib.invalidate_caches()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
