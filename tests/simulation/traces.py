"""Where the real traces are: they are no part of the project, so tests that need one skip without it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def trace(name: str) -> Path:
    """The path of a trace, or a skip that says how to get there (variable SOONER_TRACES)."""
    folder = Path(os.environ.get("SOONER_TRACES") or ROOT.parent / "shared" / "traces")
    path = folder / name
    if not path.is_file():
        pytest.skip(f"needs {name} in {folder}; set SOONER_TRACES to the folder of real traces")
    return path
