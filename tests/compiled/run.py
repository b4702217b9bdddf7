"""Tests the compiled modules: ``python -m tests.compiled.run [ARGUMENTS]``, or ``--build`` to make the wheel alone.

Builds the compiled wheel, unless one of the same source is there, unpacks it beside the checkout, and runs on it what defines the
scheduler: the conformance suite of policies, golden schedules, a seeded swarm, whole services, comparisons with plain Python, and
the files with long simulations.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "compiled-wheel"
UNPACKED = ROOT / "build" / "compiled-installed"
PURE = "TESTED_PURE_PYTHON"
"""Names the folder whose packages are plain Python, for the tests that compare both."""

_TESTED: Final = (
    *("tests/compiled", "tests/conformance/test_policies.py", "tests/golden", "tests/simulation/test_swarm.py"),
    # What libraries do with values, what crosses to a process of its own, and whole services.
    *("tests/api/test_jobs.py", "tests/api/test_job_bodies.py", "tests/api/test_plans.py"),
    *("tests/unit/service/forecast/test_forecast_process.py", "tests/unit/service/shadow/test_process.py"),
    *("tests/e2e/test_main_job.py", "tests/e2e/test_crashes.py", "tests/e2e/test_forecasts.py"),
)
_LONG: Final = "mark.compiled"
"""Marks the tests that run on the compiled modules alone."""
_LEFT_OUT: Final = "tests/simulation/test_swarm.py::test_the_command_names_the_seeds_that_fail"
"""Breaks the engine by replacing a function, which compiled code does not look up."""


def main(arguments: Sequence[str]) -> int:
    """Build, unpack and test. Returns the exit code of what failed first."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # As docs/how-to/compile.md says: pip's own environment for the build has the compiler, but none of the libraries.
    build = [*pip, "wheel", "--no-deps", "--wheel-dir", str(WHEELS), str(ROOT)]
    built = subprocess.run(build, env={**os.environ, "SOONER_COMPILE": "1"}, check=False)
    if built.returncode != 0 or arguments == ["--build"]:
        return built.returncode
    wheel = max(WHEELS.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    unpack = [*pip, "install", "--no-deps", "--upgrade", "--target", str(UNPACKED), str(wheel)]
    unpacked = subprocess.run(unpack, check=False)
    if unpacked.returncode != 0:
        return unpacked.returncode
    # Nothing comes before the unpacked wheel, here or in processes of the tests: no working directory, no folder of tests.
    environ = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{UNPACKED}{os.pathsep}{ROOT}", PURE: str(ROOT)}
    chosen = ["-m", "compiled or not traces", "--deselect", _LEFT_OUT]
    command = [sys.executable, "-m", "pytest", "--import-mode=append", *chosen, *_TESTED, *_long(), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


def _long() -> list[str]:
    """The files with long simulations that are not tested anyway."""
    files = (str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if _LONG in path.read_text())
    return sorted(set(files) - set(_TESTED))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
