"""Recorded cycles, the input of ``sooner sim replay``."""

from typing import Annotated, cast

from fastapi import Path

from service.api.deps import Deps, ToLeader
from service.api.permissions import OPERATE
from service.api.problems import Problem, ProblemType
from service.api.routers.common import Routes
from service.history.cycle_file import cycle_document
from service.wire.bodies import CycleNumber
from service.wire.cluster import CycleSnapshotDocument, SnapshotsDocument

routes = Routes("cycles")


@routes.read("/snapshots", OPERATE, "List the cycles that can be replayed")
def list_snapshots(leader: ToLeader) -> SnapshotsDocument:
    """The newest cycles with actions. They are kept in memory until the service stops."""
    return SnapshotsDocument(cycles=list(leader.recorder.cycles()))


@routes.read("/snapshots/now", OPERATE, "Get a snapshot of the current cluster and queue", 409, computes=True)
def snapshot_now(dependencies: Deps, leader: ToLeader) -> CycleSnapshotDocument:
    """A cycle without changes and actions, for `sooner sim what-if --snapshot` and `sooner sim replay`."""
    found = leader.snapshot_now()
    if found is None:
        most = dependencies.settings.forecast_jobs_max
        raise Problem(
            ProblemType.CONFLICT, f"A snapshot includes at most {most} unfinished jobs (setting forecast_jobs_max)."
        )
    return cast(CycleSnapshotDocument, cycle_document(found))


@routes.read("/cycles/{number}/snapshot", OPERATE, "Get the snapshot of a recorded cycle", 404, computes=True)
def cycle_snapshot(
    dependencies: Deps, leader: ToLeader, number: Annotated[CycleNumber, Path()]
) -> CycleSnapshotDocument:
    """The input of its decision, for `sooner sim replay`."""
    found = leader.recorder.snapshot(number)
    if found is None:
        settings = dependencies.settings
        raise Problem(
            ProblemType.NOT_FOUND,
            f"Cycle {number} is not recorded: only the newest {settings.snapshots_kept} cycles with actions can be "
            f"replayed, with at most {settings.snapshot_jobs_max} unfinished jobs (snapshots_kept, snapshot_jobs_max).",
        )
    return cast(CycleSnapshotDocument, cycle_document(found))
