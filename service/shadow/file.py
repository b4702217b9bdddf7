"""The file in the data folder that keeps the shadow's counts across restarts of the service.

If the file is missing, damaged or about other policies, counting begins anew.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.db.codec import CodecError, decode, encode
from service.runtime.untrusted import open_file
from service.shadow.agreement import SavedAgreement
from service.shadow.shadow import SavedShadow

logger = logging.getLogger(__name__)

SCHEMA = "sooner.shadow.state/1"
FILE = "shadow.json"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two compared policies. Saved counts are valid only for equal names and options."""

    first: str
    first_options: Mapping[str, str]
    shadow: str
    shadow_options: Mapping[str, str]


def save(folder: Path, pair: Pair, saved: SavedShadow) -> None:
    """Replace the folder's file atomically. Raises OSError."""
    document = {
        "schema": SCHEMA,
        "policies": encode(pair),
        "account": encode(saved.agreement),
        "dump": saved.dump,
    }
    draft = folder / f"{FILE}.draft"
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(document, stream, allow_nan=False)
    draft.replace(folder / FILE)


def load(folder: Path, pair: Pair) -> SavedShadow | None:
    """What an earlier service saved for these two policies; None without a usable file."""
    file = folder / FILE
    try:
        with os.fdopen(open_file(file), encoding="utf-8") as stream:
            document = json.load(stream)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"it is not {SCHEMA}")
        if decode(Pair, document["policies"]) != pair:
            return None
        return SavedShadow(decode(SavedAgreement, document["account"]), _dump(document["dump"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        logger.warning("%s: the counts of the shadow policy begin anew: %s", file, error)
        return None


def _dump(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise CodecError("the policy's state is not an object")
    return value
