"""What holds the processes of a job together on this machine: found at the start, said in one line of the log."""

from pathlib import Path
from typing import NamedTuple

from service.config.settings import Settings
from service.runtime.cgroups import CgroupsUnavailable, limits_below, usable_parent
from service.server.startup import StartError
from service.wire.cluster import ContainmentKind


class Containment(NamedTuple):
    """``cgroups``: the folder of the attempts' control groups, None without. ``sentence``: what holds, for the log.

    ``limits``: the controllers by which CPUs and memory of a job are enforced.
    """

    cgroups: Path | None
    sentence: str
    limits: frozenset[str] = frozenset()

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
    limits, why = limits_below(parent)
    enforced = f"it enforces {' and '.join(sorted(limits))} of jobs that ask for them" if limits else ""
    missing = f"not all of CPUs and memory is enforced: {why}" if why else ""
    said = "; ".join(filter(None, (f"Each attempt runs in a control group below {parent}", enforced, missing)))
    return Containment(parent, said, limits)


def _subreapers(reason: str) -> Containment:
    held = f"Each attempt runs under two subreapers, without a control group ({reason})"
    return Containment(None, f"{held}; CPUs and memory of jobs are counted, but not enforced")
