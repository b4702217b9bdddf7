"""Runs the tests of the dashboard: ``python -m tests.web.run [ARGUMENTS]``.

Installs Node, npm and Chromium where they are missing. Pictures of all pages are kept in ``build/dashboard``.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
WEB = ROOT / "service" / "web"
REQUIRED = "WEB_TESTS_REQUIRED"
"""Set where a missing browser or bundler fails the tests instead of skipping them."""

_PACKAGES: Final = {"node": ("nodejs",), "npm": ("npm",), "chromium": ("chromium", "fonts-dejavu-core")}
"""Command -> Debian's packages of it."""


def main(arguments: Sequence[str]) -> int:
    """Install what is missing, then run pytest. Returns its exit code; 2 where the tests cannot run."""
    try:
        _prepare()
    except RuntimeError as error:
        print(f"The tests of the dashboard cannot run: {error}", file=sys.stderr)
        return 2
    environ = {"DASHBOARD_SCREENSHOTS": str(ROOT / "build" / "dashboard"), **os.environ, REQUIRED: "1"}
    pytest = [sys.executable, "-m", "pytest", "-m", "web", "--durations=5", *arguments]
    return subprocess.run(pytest, cwd=ROOT, env=environ, check=False).returncode


def _prepare() -> None:
    """Raises RuntimeError where something is missing and cannot be installed."""
    packages = [name for command, names in _PACKAGES.items() if shutil.which(command) is None for name in names]
    if packages:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise RuntimeError(f"install {', '.join(packages)}")
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _call(["apt-get", "update"], environ)
        _call(["apt-get", "install", "--yes", "--no-install-recommends", *packages], environ)
    installed, lock = WEB / "node_modules" / ".package-lock.json", WEB / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _call(["npm", "ci", "--no-audit", "--no-fund", "--prefix", str(WEB)], dict(os.environ))


def _call(command: Sequence[str], environ: dict[str, str]) -> None:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
