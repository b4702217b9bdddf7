"""Progress of a training program, opened by the token of its attempt and by nothing else."""

from typing import Annotated

from fastapi import Path, Request, Response

from policies.model.ids import AttemptId
from service.api.deps import Deps
from service.api.problems import Problem, ProblemType
from service.api.routers.common import problems, router
from service.api.schemas import ProgressBody
from service.api.security import bearer

routes = router("attempts")

AttemptPath = Annotated[str, Path(pattern=r"^[1-9][0-9]{0,9}\.[1-9][0-9]{0,9}$", description="<job>.<number>")]


@routes.post(
    "/attempts/{attempt_id}/progress",
    status_code=202,
    response_class=Response,
    responses={202: {"description": "Taken; the next poll of the loop sees it."}, **problems(400, 413, 415)},
    openapi_extra={"security": [{"attemptToken": []}]},
    summary="Report progress",
)
def report_progress(dependencies: Deps, request: Request, attempt_id: AttemptPath, body: ProgressBody) -> Response:
    """Takes what a line of the progress file says, under the same rules: falling iterations are counted and ignored.

    401 if nothing was taken.
    """
    token = bearer(request.headers)
    line = body.model_dump(exclude_none=True)
    if token is None or not dependencies.progress_sink(AttemptId(attempt_id), token, line):
        detail = "Needs the token of this attempt, while it runs, and not more than ten reports a second."
        raise Problem(ProblemType.UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="attempt"'})
    return Response(status_code=202)
