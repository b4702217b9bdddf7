"""The shadow policy: what a second policy would have done."""

from service.api.deps import ToLeader
from service.api.permissions import OPERATE
from service.api.problems import Problem, ProblemType
from service.api.routers.common import Routes
from service.api.shadow_documents import shadow_document
from service.wire.shadow import ShadowDocument

routes = Routes("shadow")


@routes.read("/shadow", OPERATE, "What would a second policy have done?", 404)
def show_shadow(leader: ToLeader) -> ShadowDocument:
    """Where the first policy and the shadow have agreed since `since`, and where they do not now."""
    found = leader.shadowing.report()
    if found is None:
        raise Problem(ProblemType.NOT_FOUND, "No shadow policy is set (SOONER_SHADOW_POLICY, serve --shadow-policy).")
    return shadow_document(found)
