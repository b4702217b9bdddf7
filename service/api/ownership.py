"""In whose name and for which project a job is submitted, checked against who asks."""

from collections.abc import Sequence
from dataclasses import replace

from policies.model.job import JobSpec
from service.api.parse import placed_jobs
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.api.schemas import JobBody, JobsBody
from service.domain.access import NO_PROJECT, Identity


def in_the_name_of(caller: Identity, specs: Sequence[JobSpec], body: JobBody | JobsBody) -> list[JobSpec]:
    """The jobs with their users and projects: the caller, and the only project of the caller's key, where none is named.

    A caller without a name (the local token) may name any user. Raises 403, with a pointer to each, for another user's name
    and for projects that the caller is not a member of.
    """
    faults: list[Fault] = []
    default_project = _only_project(caller)
    for place, job in placed_jobs(body):
        if (job.user or caller.user) != caller.user and caller.user is not None and not caller.acts_for_others:
            pointer = json_pointer((*place, "user"))
            faults.append(Fault("Only operators submit in another user's name; leave it out", pointer=pointer))
        if caller.projects is not None and (job.project or default_project) not in caller.projects:
            faults.append(Fault("The caller's key is not for this project", pointer=json_pointer((*place, "project"))))
    if faults:
        raise Problem(ProblemType.FORBIDDEN, f"{faults[0].detail}.", faults)
    user = caller.user
    return [replace(spec, user=spec.user or user or "", project=spec.project or default_project) for spec in specs]


def _only_project(caller: Identity) -> str:
    """The project of a key that is for one alone, else :data:`NO_PROJECT`."""
    return next(iter(caller.projects)) if caller.projects is not None and len(caller.projects) == 1 else NO_PROJECT
