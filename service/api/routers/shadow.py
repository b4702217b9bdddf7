"""The shadow policy: what a second policy would have done."""

from service.api.deps import ToLeader
from service.api.permissions import OPERATE
from service.api.problems import Problem, ProblemType
from service.api.routers.common import Routes
from service.api.shadow_documents import shadow_document
from service.wire.shadow import ShadowDocument

routes = Routes("shadow")


@routes.read("/shadow", OPERATE, "Compare the shadow policy with the active policy", 404)
def show_shadow(leader: ToLeader) -> ShadowDocument:
    """Counts of equal and different decisions since `since`, and the jobs on which the policies disagree now."""
    found = leader.shadowing.report()
    if found is None:
        raise Problem(ProblemType.NOT_FOUND, "No shadow policy is set (SOONER_SHADOW_POLICY, serve --shadow-policy).")
    return shadow_document(found)
