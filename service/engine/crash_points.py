"""Named points in the code at which a crash is tested. In production they do nothing.

A test installs a handler (:func:`on_reached`) that ends the process, or its simulation, at a chosen point. So the tests cover
crashes of the production code. No setting, variable or request installs a handler.
"""

from collections.abc import Callable
from enum import StrEnum


class CrashPoint(StrEnum):
    """Points at which a test can end the process. Each is named after the step before it."""

    LOADED = "loaded"
    """The world was read from the store; the policy's state is not rebuilt yet."""
    DECIDED = "decided"
    """A cycle has changed the world in memory; its transaction has not begun."""
    WRITTEN = "written"
    """Everything of the cycle is written, inside the transaction; it is not committed."""
    COMMITTED = "committed"
    """The cycle is committed; no report is acknowledged and no command sent."""
    SETTLED = "settled"
    """The executor has marked one attempt as ended; others of the same acknowledgement are not."""
    ACKNOWLEDGED = "acknowledged"
    """All reports of the cycle are acknowledged; no command is sent."""
    SPAWNED = "spawned"
    """A supervisor's process exists; the executor has not noted its number."""
    COMMANDED = "commanded"
    """One command was carried out; others of the same cycle were not."""
    SENT = "sent"
    """All commands of the cycle were carried out."""
    RECONCILING = "reconciling"
    """The lost commands are known; none was sent again."""
    RECONCILED = "reconciled"
    """All lost commands were sent again."""
    REQUEST_WRITTEN = "request_written"
    """A client's request and its key are written, inside the transaction; it is not committed."""
    REQUEST_COMMITTED = "request_committed"
    """A client's request is committed; the client has no answer."""
    FILES_DELETED = "files_deleted"
    """Files of ended jobs are deleted; the database does not record it yet."""
    MODEL_TRAINED = "model_trained"
    """A model's files are complete; it has no row."""
    MODEL_REGISTERED = "model_registered"
    """The model has its row; the previous model still serves."""
    MODEL_SERVED = "model_served"
    """The model serves; the champion's row still names the previous model."""
    MODEL_CROWNED = "model_crowned"
    """The model is the champion; its training run is still open."""


Handler = Callable[[CrashPoint], None]

_handler: Handler | None = None


def reached(point: CrashPoint) -> None:
    """Call the handler, if any, with ``point``."""
    if _handler is not None:
        _handler(point)


def on_reached(handler: Handler | None) -> None:
    """Call ``handler`` at every point from now on (None: no calls). For tests only."""
    global _handler
    _handler = handler
