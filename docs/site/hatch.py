"""The build hook of the wheel: what is installed contains the site, and an editable installation finds it in the checkout."""

import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SiteHook(BuildHookInterface):
    """Builds the site before each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling. Raises RuntimeError if the site cannot be built."""
        done = subprocess.run(
            [sys.executable, "-m", "docs.site"], cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
