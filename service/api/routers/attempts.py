"""Progress of a training program, which only the token of its attempt opens."""

from typing import Annotated

from fastapi import Path, Request, Response

from policies.model.ids import AttemptId
from service.api.deps import Deps
from service.api.permissions import OF_ATTEMPT
from service.api.problems import Problem, ProblemType
from service.api.routers.common import Routes
from service.api.security import bearer
from service.wire.bodies import ProgressBody

routes = Routes("attempts")

AttemptPath = Annotated[
    str, Path(pattern=r"^[1-9][0-9]{0,9}\.[1-9][0-9]{0,9}$", description="The attempt's id, such as 42.1.")
]


@routes.read(
    "/attempts/{attempt_id}/progress",
    OF_ATTEMPT,
    "Report progress",
    *(400, 413, 415),
    method="POST",
    status_code=202,
    response_class=Response,
    responses={202: {"description": "Accepted, or ignored under the rules for progress files."}},
    openapi_extra={"security": [{"attemptToken": []}]},
)
def report_progress(dependencies: Deps, request: Request, attempt_id: AttemptPath, body: ProgressBody) -> Response:
    """The body equals a line of the progress file. The same rules apply: decreasing iterations, and more than ten reports per
    second, are counted and ignored.
    """
    token = bearer(request.headers)
    line = body.model_dump(exclude_none=True)
    try:
        if token is None:
            raise PermissionError(attempt_id)
        dependencies.attempts.accept_progress(AttemptId(attempt_id), token, line)
    except PermissionError:
        detail = "Needs the token of this attempt, while it runs."
        headers = {"WWW-Authenticate": 'Bearer realm="attempt"'}
        raise Problem(ProblemType.UNAUTHORIZED, detail, headers=headers) from None
    return Response(status_code=202)
