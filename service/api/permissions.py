"""Who may call which route: one table, enforced in one place before any route runs, and shown in the documentation.

What belongs to one job is checked here too: a job that the caller does not see is not there (404). Lists are narrowed where
they are read, and submissions checked where they are parsed; the table says which routes these are. A route that is not in the
table is for admins.
"""

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Final, NamedTuple

from fastapi import Request
from pydantic import Field, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from service.api.access import caller_of
from service.api.problems import Problem, ProblemType
from service.api.schemas import ID_MAX
from service.db.access import Owner, owner_of
from service.db.session import Database
from service.domain.access import Identity, Role


class About(Enum):
    """What a route is about, which decides whose it is; the value says so in words."""

    OPEN = "Open to everybody, without a token."
    ATTEMPT = "Opened by the token of the attempt, and by no other."
    SERVICE = "Nothing that belongs to somebody: the role decides."
    LIST = "Jobs that the caller sees; others are left out."
    JOB = "One job that the caller sees."
    CHANGE = "One job: the caller's own, or any for an operator."
    OUTPUT = "What a job printed: the caller's own, or any for an operator."
    KEY = "The caller's own API keys, or any for an admin."
    SUBMISSION = "New jobs in the caller's own name and projects, or in any for an operator."


class Rule(NamedTuple):
    """The least role that a route asks for (None: no role at all), and what it is about."""

    least: Role | None
    about: About


_OPEN = Rule(None, About.OPEN)
_READ = Rule(Role.VIEWER, About.SERVICE)
_LIST = Rule(Role.VIEWER, About.LIST)
_JOB = Rule(Role.VIEWER, About.JOB)
_OUTPUT = Rule(Role.VIEWER, About.OUTPUT)
_CHANGE = Rule(Role.SUBMITTER, About.CHANGE)
_SUBMIT = Rule(Role.SUBMITTER, About.SUBMISSION)
_SUBMITTED = Rule(Role.SUBMITTER, About.SERVICE)
_OPERATE = Rule(Role.OPERATOR, About.SERVICE)
_KEY = Rule(Role.VIEWER, About.KEY)
_ADMIN = Rule(Role.ADMIN, About.SERVICE)

PERMISSIONS: Final[Mapping[tuple[str, str], Rule]] = {
    ("GET", "/healthz"): _OPEN,
    ("GET", "/readyz"): _OPEN,
    ("GET", "/docs/problems/{slug}"): _OPEN,
    ("GET", "/metrics"): _READ,
    ("GET", "/v1/me"): _READ,
    ("GET", "/v1/services"): _READ,
    ("GET", "/v1/events"): _LIST,
    # Jobs
    ("POST", "/v1/jobs"): _SUBMIT,
    ("POST", "/v1/plans"): _SUBMIT,
    ("GET", "/v1/jobs"): _LIST,
    ("GET", "/v1/jobs/{job_id}"): _JOB,
    ("GET", "/v1/jobs/{job_id}/spec"): _JOB,
    ("GET", "/v1/jobs/{job_id}/explanation"): _JOB,
    ("GET", "/v1/jobs/{job_id}/attempts"): _JOB,
    ("GET", "/v1/jobs/{job_id}/events"): _JOB,
    ("GET", "/v1/jobs/{job_id}/progress"): _JOB,
    ("GET", "/v1/jobs/{job_id}/prediction"): _JOB,
    ("GET", "/v1/jobs/{job_id}/forecast"): _JOB,
    ("GET", "/v1/jobs/{job_id}/forecasts"): _JOB,
    ("GET", "/v1/jobs/{job_id}/logs"): _OUTPUT,
    ("POST", "/v1/jobs/{job_id}/cancel"): _CHANGE,
    ("POST", "/v1/jobs/{job_id}/hold"): _CHANGE,
    ("POST", "/v1/jobs/{job_id}/release"): _CHANGE,
    ("PUT", "/v1/jobs/{job_id}/priority"): _CHANGE,
    ("POST", "/v1/jobs/{job_id}/priority"): _CHANGE,
    ("GET", "/v1/arrays/{array_id}"): _JOB,
    ("POST", "/v1/arrays/{array_id}/cancel"): _CHANGE,
    ("POST", "/v1/arrays/{array_id}/hold"): _CHANGE,
    ("POST", "/v1/arrays/{array_id}/release"): _CHANGE,
    ("PUT", "/v1/arrays/{array_id}/priority"): _CHANGE,
    ("POST", "/v1/arrays/{array_id}/priority"): _CHANGE,
    ("POST", "/v1/attempts/{attempt_id}/progress"): Rule(None, About.ATTEMPT),
    ("GET", "/v1/forecasts"): _LIST,
    ("GET", "/v1/forecasts/accuracy"): _READ,
    ("GET", "/v1/predictions"): _LIST,
    ("GET", "/v1/throughput"): _LIST,
    ("GET", "/v1/usage"): _LIST,
    # Webhooks: a submitter's own, which tell of his own jobs
    ("GET", "/v1/webhooks"): _SUBMITTED,
    ("POST", "/v1/webhooks"): _SUBMITTED,
    ("GET", "/v1/webhooks/{webhook_id}"): _SUBMITTED,
    ("DELETE", "/v1/webhooks/{webhook_id}"): _SUBMITTED,
    ("POST", "/v1/webhooks/{webhook_id}/test"): _SUBMITTED,
    ("GET", "/v1/webhooks/{webhook_id}/deliveries"): _SUBMITTED,
    # The cluster and its models
    ("GET", "/v1/cluster"): _READ,
    ("POST", "/v1/cluster/servers"): _OPERATE,
    ("POST", "/v1/cluster/servers/{name}/drain"): _OPERATE,
    ("POST", "/v1/cluster/servers/{name}/resume"): _OPERATE,
    ("GET", "/v1/queue"): _READ,
    ("POST", "/v1/queue/pause"): _OPERATE,
    ("POST", "/v1/queue/resume"): _OPERATE,
    ("GET", "/v1/reservations"): _READ,
    ("POST", "/v1/reservations"): _OPERATE,
    ("POST", "/v1/reservations/{reservation_id}/cancel"): _OPERATE,
    ("GET", "/v1/quotas"): _READ,
    ("PUT", "/v1/quotas/{scope}/{name}"): _OPERATE,
    ("DELETE", "/v1/quotas/{scope}/{name}"): _OPERATE,
    ("GET", "/v1/models"): _READ,
    ("GET", "/v1/models/{model_id}"): _READ,
    ("GET", "/v1/predictor"): _READ,
    ("GET", "/v1/training-runs/{run}"): _READ,
    ("POST", "/v1/models/train"): _OPERATE,
    ("POST", "/v1/models/{model_id}/promote"): _OPERATE,
    # What shows everybody's jobs together
    ("GET", "/v1/cycles"): _OPERATE,
    ("GET", "/v1/cycles/{number}"): _OPERATE,
    ("GET", "/v1/cycles/{number}/snapshot"): _OPERATE,
    ("GET", "/v1/snapshots"): _OPERATE,
    ("GET", "/v1/snapshots/now"): _OPERATE,
    ("GET", "/v1/shadow"): _OPERATE,
    # Who may do what, and who did what
    ("POST", "/v1/keys"): _ADMIN,
    ("GET", "/v1/keys"): _KEY,
    ("POST", "/v1/keys/{key_id}/revoke"): _KEY,
    ("GET", "/v1/users"): _ADMIN,
    ("PUT", "/v1/users/{user}"): _ADMIN,
    ("GET", "/v1/projects"): _ADMIN,
    ("PUT", "/v1/projects/{project}/members/{user}"): _ADMIN,
    ("DELETE", "/v1/projects/{project}/members/{user}"): _ADMIN,
    ("GET", "/v1/audit"): _ADMIN,
}
"""By method and path. ``/v1/openapi.json`` is for every role."""

OWNERS_MAX: Final = 10_000
"""Jobs whose owner is remembered; the one that nobody has asked about for longest goes first."""

_ONE_JOB: Final = frozenset({About.JOB, About.CHANGE, About.OUTPUT})

_NUMBER: Final[TypeAdapter[int]] = TypeAdapter(Annotated[int, Field(ge=1, le=ID_MAX)])
"""Reads a job's number exactly as the routes do: what they take for a number, however it is written, is checked."""


def rule_of(method: str, path: str) -> Rule:
    """The rule of a route."""
    return PERMISSIONS.get((method, path), _ADMIN)


async def permitted(request: Request) -> None:
    """Let the caller call the route, or raise 403; for one job that he does not see, 404."""
    rule = rule_of(request.method, request.scope["route"].path)
    if rule.least is None:
        return
    caller = caller_of(request)
    if not caller.role.covers(rule.least):
        raise Problem(
            ProblemType.FORBIDDEN, f"This needs the role {rule.least.value}; this key's is {caller.role.value}."
        )
    if rule.about in _ONE_JOB and caller.projects is not None:
        job = _job_of(request)
        if job is not None:
            await _check_job(request, caller, rule.about, job)


def _job_of(request: Request) -> int | None:
    """The job of the path, or the first one of its array; None for what the route itself refuses as no number."""
    parameters = request.path_params
    try:
        return _NUMBER.validate_python(parameters["job_id"] if "job_id" in parameters else parameters["array_id"])
    except ValidationError:
        return None


class Owners:
    """Whose jobs are, remembered: it never changes, and programs ask about one job again and again. Not for threads."""

    def __init__(self, database: Database, jobs_max: int = OWNERS_MAX) -> None:
        self._database = database
        self._jobs_max = jobs_max
        self._known: OrderedDict[int, Owner] = OrderedDict()

    async def of(self, job: int) -> Owner | None:
        """Whose the job is; None where there is no such job."""
        owner = self._known.get(job) or await run_in_threadpool(self._look_up, job)
        if owner is not None:
            self._known[job] = owner
            self._known.move_to_end(job)
            if len(self._known) > self._jobs_max:
                self._known.popitem(last=False)
        return owner

    def _look_up(self, job: int) -> Owner | None:
        with self._database.reading() as session:
            return owner_of(session.connection(), job)


async def _check_job(request: Request, caller: Identity, about: About, job: int) -> None:
    owners: Owners = request.app.state.owners
    owner = await owners.of(job)
    # One answer for what is not there and for what is not the caller's to know of.
    if owner is None or not caller.sees(owner.project, owner.user):
        raise Problem(ProblemType.NOT_FOUND, f"There is no job {job}.")
    if about is About.CHANGE and not caller.changes(owner.user):
        raise Problem(ProblemType.FORBIDDEN, f"Job {job} is another user's; an operator may change it.")
    if about is About.OUTPUT and not caller.reads_output(owner.user):
        raise Problem(ProblemType.FORBIDDEN, f"Job {job} is another user's; an operator may read what it printed.")
