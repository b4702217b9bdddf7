"""Seals of the records that decide about an attempt, so that a program cannot write one in the supervisor's name.

A seal is a MAC with a key of the attempt, which the supervisor reads from its standard input and keeps in memory. Standard
library only: the supervisor uses it.
"""

import hashlib
import hmac
import json
from typing import Any, NamedTuple

_FIELD = "seal"


class Seal(NamedTuple):
    """The seal of one attempt's records. ``required``: False for attempts of a release that did not seal."""

    key: str
    required: bool = True

    def sealed(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its seal as the file ``name`` of the attempt."""
        return record | {_FIELD: self._mac(name, record)}

    def opened(self, name: str, record: dict[str, Any] | None) -> dict[str, Any] | None:
        """The record without its seal; None if there is no record, or if its seal is wrong."""
        if record is None or (self.required and not isinstance(record.get(_FIELD), str)):
            return None
        content = {key: value for key, value in record.items() if key != _FIELD}
        if _FIELD not in record and not self.required:
            return content
        mac = record.get(_FIELD)
        right = isinstance(mac, str) and hmac.compare_digest(
            mac.encode(errors="replace"), self._mac(name, content).encode()
        )
        return content if right else None

    def _mac(self, name: str, record: dict[str, Any]) -> str:
        text = json.dumps([name, record], sort_keys=True, separators=(",", ":"))
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()
