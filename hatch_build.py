"""The build hook of the wheel: it contains the documentation site and, where ``SOONER_COMPILE=1`` is set, compiled modules.

An editable installation finds the site in the checkout, and is never compiled: what is edited would not be what runs.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):
    """See the module."""

    def dependencies(self) -> list[str]:
        """What the build needs beside pyproject.toml's requirements. Called by hatchling."""
        return self.metadata.core.optional_dependencies["compile"] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before each wheel. Raises RuntimeError if the site or a module cannot be built."""
        self._run("docs.site")
        if not _wanted() or version == "editable":
            return
        self._run("compilation")
        built = Path(self.root, "build", "compiled")
        for line in (built / "modules.txt").read_text().split():
            build_data["force_include"][str(built / line)] = line
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _run(self, module: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"python -m {module} failed:\n{done.stdout}\n{done.stderr}")


def _wanted() -> bool:
    return os.environ.get("SOONER_COMPILE", "") not in ("", "0")
