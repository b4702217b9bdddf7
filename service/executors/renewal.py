"""The renewal of the lease of all attempts of a folder, without which their supervisors stop them."""

import logging
from pathlib import Path

from service.executors import folder as names

logger = logging.getLogger(__name__)


class Renewal:
    """Renews the lease in ``file`` for ``lease_s`` at a time. One thread at a time may use it."""

    def __init__(self, file: Path, lease_s: float) -> None:
        self._file = file
        self._lease_s = lease_s
        self._fails = False

    def renew(self) -> None:
        """Renew it. A failure is logged once, until it works again: a read-only disk may end all attempts."""
        try:
            names.write_lease(self._file, names.boot_time_s() + self._lease_s)
        except OSError as error:
            if not self._fails:
                logger.error(
                    "the lease of the attempts cannot be renewed; those that run stop after %g s without it: %s",
                    self._lease_s,
                    error,
                )
            self._fails = True
            return
        if self._fails:
            logger.warning("the lease of the attempts is renewed again")
        self._fails = False
