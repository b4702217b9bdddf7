"""Which modules are compiled, and which of their classes others derive from."""

from pathlib import Path

PACKAGES = ("policies", "predictor", "service")
"""Copied whole: the compiler needs the types of what the modules import, and what is compiled runs beside them."""
DATA = ("migrations", "examples", "notebooks")
"""Folders that the service looks for beside its packages."""

_SIMULATOR = (
    "clock",
    "drive",
    "draws",
    "executor",
    "experiment",
    "faults",
    "jobs",
    "network",
    "predictors",
    "results",
    "work",
)
_PATTERNS = (
    "policies/*.py",
    *(f"policies/{room}/*.py" for room in ("builtin", "decision", "model", "placement", "rules", "state")),
    "service/engine/*.py",
    *(f"service/sim/{name}.py" for name in _SIMULATOR),
    "service/sim/workloads/model.py",
)
"""What runs in every cycle. Reading plans and models (``policies/training``, ``policies/catalogue``) happens once a job."""

_INTERPRETED = {
    "policies/model/value.py": "decorators, which the compiled copies do not use",
    "policies/model/written_out.py": "sets attributes of classes that nothing else may set",
}


def modules(root: Path) -> list[str]:
    """The modules to compile, as sorted paths below ``root``."""
    found = {path.relative_to(root).as_posix() for pattern in _PATTERNS for path in root.glob(pattern)}
    return sorted(name for name in found - _INTERPRETED.keys() if not name.endswith("/__init__.py"))
