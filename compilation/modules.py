"""Which modules are compiled, and what stands beside them."""

from pathlib import Path

_COPIED = ("policies", "predictor", "service", "migrations", "examples", "notebooks")
"""The compiler needs the types of what the modules import, and what is compiled runs with all of it."""
_MADE = {"__pycache__", "_site", "node_modules"}
"""Folders in them that are made, not written."""

_SIMULATOR = (
    *("clock", "drive", "draws", "executor", "experiment", "faults", "jobs", "network", "predictors", "results"),
    *("work", "workloads/model", "workloads/table"),
)
_PATTERNS = (
    "policies/*.py",
    *(f"policies/{room}/*.py" for room in ("builtin", "decision", "model", "placement", "rules", "state")),
    "service/engine/*.py",
    *(f"service/sim/{name}.py" for name in _SIMULATOR),
)
"""What runs in every cycle. Reading plans and models (``policies/training``, ``policies/catalogue``) happens once a job."""

_INTERPRETED = {
    "policies/model/value.py": "decorators, which the compiled copies do not use",
    "policies/model/written_out.py": "sets attributes of classes that nothing else may set",
}


def copied(root: Path) -> list[Path]:
    """The files that stand in a compiled build, as sorted paths below ``root``."""
    every = (path.relative_to(root) for folder in _COPIED for path in (root / folder).rglob("*") if path.is_file())
    return sorted(path for path in every if _MADE.isdisjoint(path.parts))


def modules(root: Path) -> list[str]:
    """The modules to compile, as sorted paths below ``root``."""
    found = {path.relative_to(root).as_posix() for pattern in _PATTERNS for path in root.glob(pattern)}
    return sorted(name for name in found - _INTERPRETED.keys() if not name.endswith("/__init__.py"))
