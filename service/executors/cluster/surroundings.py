"""What an attempt on the servers of an engine is given from outside: orders to stop, and what it shares with the others."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from policies.model.ids import AttemptId, ServerIndex
from service.engine.commands import Launch
from service.executors.cluster.shared import LaunchRecord

MARGIN_S = 10.0
"""Added to the times that node programs have for a stop: they look at the folder periodically."""


class StopOrder(NamedTuple):
    """A stop as it is wanted. A later one counts only if it is stronger: without a warning.

    ``fencing_token``: of the newest leader that has ordered it here; None if it was only found in the folder.
    """

    warning_signal: str | None
    grace_s: float
    fencing_token: int | None = None

    @property
    def takes_s(self) -> float:
        """Longest time in which node programs carry it out."""
        # The grace period counts twice: after the warning, and after SIGTERM.
        return (1 if self.warning_signal is None else 2) * self.grace_s + MARGIN_S


class Dropped(Exception):
    """The attempt is not one of the executor's any more: its folder has nothing of it, or its end is acknowledged already.

    ``refused``: a newer leader has sent commands, so those of this one are not carried out.
    """

    def __init__(self, refused: bool = False) -> None:
        super().__init__()
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all attempts of an executor share.

    ``now_s``: Unix time for reports. ``elapsed_s``: a monotonic clock. ``prepare``: makes folder and record for a launch;
    raises OSError, NoAccount or LookupError. ``open``: makes the folder of an attempt without a launch, and returns its
    inbox. ``close``: the attempt is not live any more. ``fenced``: while it is held, no leader sends a command with a newer
    fencing token; raises :class:`Dropped` if one has. ``call``: have submissions and cancellations of the attempt carried out
    soon. ``ask``: have the engine asked soon. ``position``: of a server in the cluster. ``running_pause_s``: between two
    looks at an attempt that runs. ``exact_gpus``: as in Abilities. ``poll_s``: time between two answers of the engine.
    """

    engine: str
    now_s: Callable[[], float]
    elapsed_s: Callable[[], float]
    prepare: Callable[[Launch], LaunchRecord]
    open: Callable[[AttemptId], Path]
    close: Callable[[AttemptId], None]
    fenced: Callable[[int], AbstractContextManager[None]]
    call: Callable[[AttemptId], None]
    ask: Callable[[], None]
    position: Callable[[str], ServerIndex | None]
    running_pause_s: Callable[[], float]
    exact_gpus: bool
    lease_s: float
    poll_s: float
