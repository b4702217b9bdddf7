"""Named instants at which a crash would matter most. Passing one costs a call; nothing in the service ever acts on it.

Tests install a handler (:func:`on_reached`) that ends the process, or what plays it, at the passage of their choice: so "what
if it dies just here" is asked of the code that runs in production. No setting, variable or request leads to a handler, so
nobody outside of a test can make a service die by them.
"""

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """Where the process may die. Each is named after what has just happened."""

    LOADED = "loaded"
    """The world was read from the store; the policy's state is not rebuilt yet."""
    DECIDED = "decided"
    """A cycle has changed the world in memory; its transaction has not begun."""
    WRITTEN = "written"
    """Everything of the cycle is written, inside the transaction; it is not committed."""
    COMMITTED = "committed"
    """The cycle is committed; no report is acknowledged and no command sent."""
    SETTLED = "settled"
    """The executor has marked one attempt as over for good; others of the same acknowledgement are not."""
    ACKNOWLEDGED = "acknowledged"
    """All reports of the cycle are acknowledged; no command is sent."""
    SPAWNED = "spawned"
    """A supervisor's process exists; the executor has not noted its number."""
    COMMANDED = "commanded"
    """One command was carried out; others of the same cycle were not."""
    SENT = "sent"
    """All commands of the cycle were carried out."""
    RECONCILING = "reconciling"
    """What got lost is known; nothing of it was repeated."""
    RECONCILED = "reconciled"
    """All that got lost was repeated."""
    REQUEST_WRITTEN = "request_written"
    """A client's request and its key are written, inside the transaction; it is not committed."""
    REQUEST_COMMITTED = "request_committed"
    """A client's request is committed; the client has no answer."""
    FILES_DELETED = "files_deleted"
    """Files of ended jobs are gone; the database does not say so."""
    MODEL_TRAINED = "model_trained"
    """A model's files are complete; no row names them."""
    MODEL_REGISTERED = "model_registered"
    """The model has its row; what served before still serves."""
    MODEL_SERVED = "model_served"
    """The model serves; the row of the champion still names the old one."""
    MODEL_CROWNED = "model_crowned"
    """The model is the champion; the run that trained it is still open."""


Handler = Callable[[CrashPoint], None]

_handler: Handler | None = None


def reached(point: CrashPoint) -> None:
    """The process has come to ``point``."""
    if _handler is not None:
        _handler(point)


def on_reached(handler: Handler | None) -> None:
    """Call ``handler`` at every passage from now on (None: nothing any more). For tests alone."""
    global _handler
    _handler = handler
