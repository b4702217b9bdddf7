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
    """The newest ones in which the policy decided something; kept in memory, so a restart forgets them."""
    return SnapshotsDocument(cycles=list(leader.recorder.cycles()))


@routes.read("/snapshots/now", OPERATE, "The cluster and its queue as they are", 409, computes=True)
def snapshot_now(dependencies: Deps, leader: ToLeader) -> CycleSnapshotDocument:
    """A cycle in which nothing was told and nothing decided: for `sooner sim what-if --snapshot` and `sooner sim replay`."""
    found = leader.snapshot_now()
    if found is None:
        most = dependencies.settings.forecast_jobs_max
        raise Problem(
            ProblemType.CONFLICT, f"More than {most} jobs are unfinished (forecast_jobs_max): nothing is copied."
        )
    return cast(CycleSnapshotDocument, cycle_document(found))


@routes.read("/cycles/{number}/snapshot", OPERATE, "Everything that a cycle's decision rests on", 404, computes=True)
def cycle_snapshot(
    dependencies: Deps, leader: ToLeader, number: Annotated[CycleNumber, Path()]
) -> CycleSnapshotDocument:
    """A file for `sooner sim replay`."""
    found = leader.recorder.snapshot(number)
    if found is None:
        settings = dependencies.settings
        raise Problem(
            ProblemType.NOT_FOUND,
            f"Nothing is kept of cycle {number}: only the newest {settings.snapshots_kept} cycles with actions can be "
            f"replayed, with at most {settings.snapshot_jobs_max} unfinished jobs (snapshots_kept, snapshot_jobs_max).",
        )
    return cast(CycleSnapshotDocument, cycle_document(found))
