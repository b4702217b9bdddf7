"""Who may call which route. Each route states its rule in its decorator; a route without one is for admins.

The rule is checked before the route runs, and the reference page of permissions shows it. A job that the caller does not see is
answered as one that does not exist (404). Lists are narrowed where they are read, and submissions are checked where they are
parsed; ``About`` says which routes these are.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from service.api.access import caller_of
from service.api.problems import Problem, ProblemType
from service.db.access import JobOwner, owner_of
from service.db.session import Database
from service.domain.access import Identity, Role
from service.wire.bodies import Id

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


class About(Enum):
    """What a route is about, which decides whose it is; the value says so in words."""

    OPEN = "Open to everyone, without a token."
    ATTEMPT = "The attempt's own token is required."
    SERVICE = "The whole service: only the role matters."
    LIST = "Only the jobs that the caller may see."
    JOB = "One job that the caller may see."
    CHANGE = "One job: the caller's own; any job for operators."
    OUTPUT = "The output of a job: the caller's own; any job for operators."
    KEY = "The caller's own API keys; any key for admins."
    SUBMISSION = "New jobs of the caller in its projects; for operators, of any user in any project."


class Rule(NamedTuple):
    """The least role that a route needs (None: no role at all), and what the route is about."""

    least: Role | None
    about: About


OPEN: Final = Rule(None, About.OPEN)
OF_ATTEMPT: Final = Rule(None, About.ATTEMPT)
READ: Final = Rule(Role.VIEWER, About.SERVICE)
LIST_JOBS: Final = Rule(Role.VIEWER, About.LIST)
READ_JOB: Final = Rule(Role.VIEWER, About.JOB)
READ_OUTPUT: Final = Rule(Role.VIEWER, About.OUTPUT)
OWN_KEYS: Final = Rule(Role.VIEWER, About.KEY)
CHANGE_JOB: Final = Rule(Role.SUBMITTER, About.CHANGE)
SUBMIT: Final = Rule(Role.SUBMITTER, About.SUBMISSION)
OWN_WEBHOOKS: Final = Rule(Role.SUBMITTER, About.SERVICE)
OPERATE: Final = Rule(Role.OPERATOR, About.SERVICE)
ADMINISTER: Final = Rule(Role.ADMIN, About.SERVICE)

_RULE: Final = "permission_rule"


def allow(rule: Rule) -> Callable[[Endpoint], Endpoint]:
    """Decorates the function of a route with its rule."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _RULE, rule)
        return endpoint

    return mark


def stated_rule(endpoint: Callable[..., object]) -> Rule | None:
    """The rule that :func:`allow` has stated; None without one."""
    rule: Rule | None = getattr(endpoint, _RULE, None)
    return rule


def rule_of(endpoint: Callable[..., object]) -> Rule:
    """The rule of a route."""
    return stated_rule(endpoint) or ADMINISTER


OWNERS_MAX: Final = 10_000
"""Jobs whose owner is cached, least recently used out first."""

_ONE_JOB: Final = frozenset({About.JOB, About.CHANGE, About.OUTPUT})

_NUMBER: Final[TypeAdapter[int]] = TypeAdapter(Id)
"""Parses a job's number exactly as the routes do, so that every spelling of it is checked."""


async def permitted(request: Request) -> None:
    """Raise 403 if the caller may not call the route, and 404 for a job that the caller does not see."""
    rule = rule_of(request.scope["route"].endpoint)
    if rule.least is None:
        return
    caller = caller_of(request)
    if not caller.role.covers(rule.least):
        raise Problem(
            ProblemType.FORBIDDEN,
            f"This request needs the role {rule.least.value}; the key has the role {caller.role.value}.",
        )
    if rule.about in _ONE_JOB and caller.projects is not None:
        job = job_of(request)
        if job is not None:
            await _check_job(request, caller, rule.about, job)


def job_of(request: Request) -> int | None:
    """The job of the path, or the first one of its array; None if it is no number, which the route itself refuses."""
    parameters = request.path_params
    try:
        return _NUMBER.validate_python(parameters["job_id"] if "job_id" in parameters else parameters["array_id"])
    except ValidationError:
        return None


class Owners:
    """A cache of the owners of jobs, which never change. Not thread-safe."""

    def __init__(self, database: Database, jobs_max: int = OWNERS_MAX) -> None:
        self._database = database
        self._jobs_max = jobs_max
        self._known: OrderedDict[int, JobOwner] = OrderedDict()

    async def of(self, job: int) -> JobOwner | None:
        """The owner of the job; None if there is no such job."""
        owner = self._known.get(job) or await run_in_threadpool(self._look_up, job)
        if owner is not None:
            self._known[job] = owner
            self._known.move_to_end(job)
            if len(self._known) > self._jobs_max:
                self._known.popitem(last=False)
        return owner

    def _look_up(self, job: int) -> JobOwner | None:
        with self._database.reading() as session:
            return owner_of(session.connection(), job)


async def _check_job(request: Request, caller: Identity, about: About, job: int) -> None:
    owners: Owners = request.app.state.owners
    owner = await owners.of(job)
    # The same answer whether the job does not exist or the caller may not know of it.
    if owner is None or not caller.sees(owner.project, owner.user):
        raise Problem(ProblemType.NOT_FOUND, f"There is no job {job}.")
    if about is About.CHANGE and not caller.changes(owner.user):
        raise Problem(ProblemType.FORBIDDEN, f"Job {job} is another user's; an operator may change it.")
    if about is About.OUTPUT and not caller.reads_output(owner.user):
        raise Problem(
            ProblemType.FORBIDDEN, f"Job {job} is another user's; only its user and operators may read its log."
        )
