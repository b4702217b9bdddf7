"""The overview of the service."""

from fastapi import Request

from service.api.access import Caller
from service.api.deps import Deps
from service.api.forwarding import HeldElsewhere
from service.api.overview import Overviews, overview_document
from service.api.peers import is_from_peer
from service.api.permissions import READ
from service.api.routers.common import Routes
from service.wire.overview import OverviewDocument

routes = Routes("overview")


@routes.read("/overview", READ, "Show the state of the service in numbers")
def show_overview(request: Request, dependencies: Deps, caller: Caller) -> OverviewDocument:
    """GPUs, queue, scheduling loop, model, and what an operator must look at. Usually at most one second old: all callers share
    one reading, so it may be read often. A service that does not lead lets the leader answer. While no service leads, it
    answers from the database.
    """
    overviews: Overviews = request.app.state.overviews
    if dependencies.scheduler.leader() is None and not is_from_peer(request.scope):
        fleet = dependencies.fleet
        others = (each for each in fleet.services() if each.leads and each.registered.id != fleet.host)
        if (leader := next(others, None)) is not None:
            raise HeldElsewhere(leader.registered.url)
    return overview_document(overviews.now(dependencies.scheduler.status().cycle), dependencies.settings.policy, caller)
