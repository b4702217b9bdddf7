"""What a shadow policy leaves in the data folder, so that its account outlives a restart of the service.

The file is a convenience: one that is missing, damaged or of other policies means that counting begins anew.
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
from service.shadow.agreement import Remembered
from service.shadow.shadow import Memory

logger = logging.getLogger(__name__)

SCHEMA = "sooner.shadow.state/1"
FILE = "shadow.json"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two policies that an account is about. Under other names or options it would say nothing."""

    first: str
    first_options: Mapping[str, str]
    shadow: str
    shadow_options: Mapping[str, str]


def save(folder: Path, pair: Pair, memory: Memory) -> None:
    """Replace the folder's file, at once or not at all. Raises OSError."""
    document = {
        "schema": SCHEMA,
        "policies": encode(pair),
        "account": encode(memory.account),
        "dump": memory.dump,
    }
    draft = folder / f"{FILE}.draft"
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(document, stream, allow_nan=False)
    draft.replace(folder / FILE)


def load(folder: Path, pair: Pair) -> Memory | None:
    """What an earlier service left for these two policies; None if there is nothing of use."""
    file = folder / FILE
    try:
        with os.fdopen(open_file(file), encoding="utf-8") as stream:
            document = json.load(stream)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"it is not {SCHEMA}")
        if decode(Pair, document["policies"]) != pair:
            return None
        return Memory(decode(Remembered, document["account"]), _dump(document["dump"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        logger.warning("%s: the shadow's account begins anew: %s", file, error)
        return None


def _dump(value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise CodecError("the policy's state is not an object")
    return value
