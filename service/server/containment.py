"""What holds the processes of a job together on this machine: found at the start, said in one line of the log."""

from pathlib import Path
from typing import NamedTuple

from service.config.settings import Settings
from service.runtime.cgroups import CgroupsUnavailable, usable_parent
from service.server.startup import StartError
from service.wire.cluster import ContainmentKind


class Containment(NamedTuple):
    """``cgroups``: the folder of the attempts' control groups, None without. ``sentence``: what holds, for the log."""

    cgroups: Path | None
    sentence: str

    @property
    def kind(self) -> ContainmentKind:
        """The word for it."""
        return "cgroup" if self.cgroups is not None else "subreaper"


def containment_of(settings: Settings) -> Containment:
    """What the setting ``containment`` and this machine permit. Raises StartError if it requires what cannot be had."""
    if settings.containment == "subreaper":
        return _subreapers("containment is subreaper")
    try:
        parent = usable_parent()
    except CgroupsUnavailable as reason:
        if settings.containment == "cgroup":
            raise StartError(f"containment cgroup: control groups cannot be made: {reason}") from None
        return _subreapers(f"control groups cannot be made: {reason}")
    return Containment(parent, f"Each attempt runs in a control group below {parent}")


def _subreapers(reason: str) -> Containment:
    return Containment(None, f"Each attempt runs under two subreapers, without a control group ({reason})")
