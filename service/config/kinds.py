"""Kinds of settings: how words, pairs and folders are written in the environment, and numbers with their bounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from service.domain.duration import seconds_of

DAY_S = 86_400.0
MIB = 1 << 20


def split(value: object) -> object:
    """``a, b`` from the environment; lists from a file stay what they are."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _pairs(value: object) -> object:
    """``k=v,k=v`` from the environment or the command line; mappings from a file get their values as words."""
    if isinstance(value, Mapping):
        return {str(key): str(entry) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    parts = [part.partition("=") for part in value.split(",") if part.strip()]
    if any(not separator or not key.strip() for key, separator, _ in parts):
        raise ValueError("write it as name=value,name=value")
    return {key.strip(): entry.strip() for key, _, entry in parts}


def _absolute(value: Path) -> Path:
    return value.expanduser().absolute()


def _seconds(value: object) -> object:
    """``90``, ``90s``, ``2h``, ``1d12h`` or ``02:30:00`` from the environment, a file or the command line."""
    return seconds_of(value) if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Words = Annotated[tuple[str, ...], BeforeValidator(split)]
Pairs = Annotated[dict[str, str], BeforeValidator(_pairs)]
Folder = Annotated[Path, AfterValidator(_absolute)]


def between(default: float, least: float, most: float, description: str) -> Any:
    """A number with its bounds, both included; the description gives the reason for the default."""
    return Field(
        default, ge=least, le=most, allow_inf_nan=False if isinstance(default, float) else None, description=description
    )
