"""The wheel, built once, and installed into an environment of its own that borrows our dependencies and nothing else."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment with Sooner installed from the wheel. Commands run in ``folder``, far from the checkout."""

    home: Path
    folder: Path

    @property
    def site(self) -> Path:
        """Where it keeps packages."""
        return next((self.home / "lib").glob("python*")) / "site-packages"

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment (``sooner``, ``python``) with nothing inherited that could reveal the checkout."""
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "SOONER_DATA_DIR": str(self.folder / "data"),
            **variables,
        }
        return subprocess.run(
            [str(self.home / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def add_distribution(self, name: str, files: Sequence[str]) -> list[Path]:
        """Pretend that another distribution installed these files; what to remove afterwards."""
        info = self.site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        record = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,", *(f"{file},," for file in files)]
        (info / "RECORD").write_text("\n".join(record) + "\n")
        return [info / "METADATA", info / "RECORD", info]


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(source: Path, out: Path) -> None:
    """Build a folder's or a source distribution's wheel without a network."""
    _pip("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(out), str(source))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project."""
    out = tmp_path_factory.mktemp("wheel")
    build_wheel(ROOT, out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel alone; our own packages serve as its dependencies."""
    base = tmp_path_factory.mktemp("environment")
    home, folder = base / "venv", base / "elsewhere"
    folder.mkdir()
    venv.create(home, with_pip=False)
    _pip("--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    made = Environment(home, folder)
    # A path that a .pth file adds is searched for packages, but .pth files in it (an editable install of ours) are not read.
    (made.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made
