"""The check at start-up that the import names ``policies``, ``predictor`` and ``service`` belong to Sooner.

Another distribution that installs a top-level ``policies``, ``predictor`` or ``service`` would shadow ours or, worse, mix its
files with ours in one folder. Such a mixture would fail later with an unrelated error, so the start is refused.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

IMPORT_NAMES = ("policies", "predictor", "service")
DISTRIBUTION = "sooner"

_HOME = Path(__file__).resolve().parents[2]
"""The folder that holds our three packages."""


def conflict() -> str | None:
    """One line that names the first conflict; None where the names are ours."""
    return shadowed({name: _origin(name) for name in IMPORT_NAMES}, _HOME) or claimed(_claims())


def shadowed(origins: Mapping[str, Path | None], home: Path) -> str | None:
    """The line about a package that Python finds somewhere else than beside this one."""
    for name, origin in origins.items():
        if origin != home / name:
            found = f"is imported from {origin}" if origin is not None else "is not found"
            return (
                f"the package {name!r} {found}, but must be {home / name}: another package has the same name; "
                "install Sooner in a separate environment"
            )
    return None


def claimed(claims: Mapping[str, Sequence[str]]) -> str | None:
    """The line about a distribution that installs files under one of our names."""
    for owner, names in claims.items():
        if names and owner.lower() != DISTRIBUTION:
            return (
                f"the distribution {owner!r} also installs {', '.join(map(repr, names))}, a top-level package of Sooner; "
                "install Sooner in a separate environment"
            )
    return None


def _origin(name: str) -> Path | None:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _claims() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for distribution in distributions():
        names = top_level_names(distribution)
        ours = [name for name in IMPORT_NAMES if name in names]
        if ours:
            found[str(distribution.metadata["Name"])] = ours
    return found


def top_level_names(distribution: Distribution) -> frozenset[str]:
    """Names that a distribution installs at the top, from its list of files alone: reading thousands of paths takes
    milliseconds where building a path object for each takes a quarter of a second."""
    record = distribution.read_text("RECORD") or ""
    names = {line.partition("/")[0] for line in record.splitlines() if "/" in line}
    declared = distribution.read_text("top_level.txt") or ""
    return frozenset(names | set(declared.split()))
