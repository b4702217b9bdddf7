"""The proof that a service has the token of a data folder, made without showing the token.

A client draws a nonce and asks for its proof before it sends the token: else any program that listens on the port while the
service is down would get it. The proof holds the port at which the service was reached, so that another program cannot pass on
the nonce to the service at its own port. Made under the token itself, 256 random bits, from which a proof reveals nothing.
"""

import hashlib
import hmac
from typing import Final

PROOF_PATH: Final = "/proof"
NONCE_PATTERN: Final = r"^[0-9a-f]{32,128}$"


def proof(token: str, port: int, nonce: str) -> str:
    """The proof for this nonce at this port, in hexadecimal."""
    message = f"sooner-proof/1\n{port}\n{nonce}"
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()
