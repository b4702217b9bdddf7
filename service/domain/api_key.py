"""The text of an API key: ``sooner_<id>_<secret>``.

The id is public: it names the key in lists, in the log of changes and in the database. The secret is 256 random bits, of which
the service keeps the SHA-256 alone. A slow password hash would add nothing: it makes guessing words expensive, and nobody
guesses 256 random bits; but it would cost every request the time of a hundred others.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

KEY_PREFIX: Final = "sooner_"
"""What every key begins with, so that scanners of repositories find one that was published by mistake."""

SECRET_BYTES: Final = 32
_ID_LENGTH: Final = 12
_ID_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_KEY: Final = re.compile(rf"{KEY_PREFIX}([{_ID_LETTERS}]{{{_ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})")


class NewKey(NamedTuple):
    """A key at the one moment at which its ``text`` is known."""

    id: str
    secret_sha256: str
    text: str


def new_key() -> NewKey:
    """Draw a key."""
    name = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return NewKey(name, _digest(secret), f"{KEY_PREFIX}{name}_{secret}")


def key_id(text: str) -> str | None:
    """The public part of a key; None for what is no key."""
    found = _KEY.fullmatch(text)
    return found[1] if found is not None else None


def opens(text: str, secret_sha256: str) -> bool:
    """Whether the key has this secret. Takes equally long however much of it is right."""
    found = _KEY.fullmatch(text)
    return found is not None and hmac.compare_digest(_digest(found[2]), secret_sha256)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
