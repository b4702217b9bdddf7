"""Folders that ship with the code: inside the package in an installed wheel, at the top of the repository in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def packaged_folder(name: str) -> Path:
    """The folder ``name`` of the project, for instance ``examples``."""
    installed = _PACKAGE / f"_{name}"
    return installed if installed.is_dir() else _PACKAGE.parent / name
