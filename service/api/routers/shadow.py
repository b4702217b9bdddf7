"""The shadow policy: what a second policy would have done."""

from service.api.deps import Deps
from service.api.problems import Problem, ProblemType
from service.api.routers.common import problems, router
from service.api.shadow_documents import ShadowDocument, shadow_document

routes = router("shadow")


@routes.get("/shadow", responses=problems(404), summary="What would a second policy have done?")
def show_shadow(dependencies: Deps) -> ShadowDocument:
    """Where the first policy and the shadow have agreed since `since`, and where they do not now."""
    found = dependencies.shadow()
    if found is None:
        raise Problem(ProblemType.NOT_FOUND, "No shadow policy is set (SOONER_SHADOW_POLICY, serve --shadow-policy).")
    return shadow_document(found)
