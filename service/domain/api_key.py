"""The text of an API key: ``sooner_<id>_<secret>``.

The id is public and names the key in lists, in the audit log and in the database. The secret has 256 random bits. The service
stores only its SHA-256. A slow password hash protects weak passwords; 256 random bits do not need it, and it would slow each
request down.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

KEY_PREFIX: Final = "sooner_"
"""Prefix of every key, by which scanners of repositories find published keys."""

LIFETIME_S_MIN: Final = 1.0
"""Shortest lifetime of a key: one that ends before the answer with it arrives opens nothing."""

SECRET_BYTES: Final = 32
_ID_LENGTH: Final = 12
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_KEY: Final = re.compile(rf"{KEY_PREFIX}([{_ID_LETTERS}]{{{_ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})")


class NewKey(NamedTuple):
    """A new key. Its ``text`` is shown once and not stored."""

    id: str
    secret_sha256: str
    text: str


def new_key() -> NewKey:
    """Create a random key."""
    name = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return NewKey(name, _digest(secret), f"{KEY_PREFIX}{name}_{secret}")


def key_id(text: str) -> str | None:
    """The public part of a key; None if the text is not a key."""
    found = _KEY.fullmatch(text)
    return found[1] if found is not None else None


def opens(text: str, secret_sha256: str) -> bool:
    """Whether the key has this secret. Takes constant time."""
    found = _KEY.fullmatch(text)
    return found is not None and hmac.compare_digest(_digest(found[2]), secret_sha256)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
