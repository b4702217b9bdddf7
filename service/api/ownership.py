"""In whose name and for which project a job is submitted, checked against who asks."""

from collections.abc import Sequence
from dataclasses import replace

from policies.model.job import JobSpec
from service.api.parse import placed_jobs
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.api.schemas import JobBody, JobsBody
from service.domain.access import NO_PROJECT, Identity


def in_the_name_of(caller: Identity, specs: Sequence[JobSpec], body: JobBody | JobsBody) -> list[JobSpec]:
    """The jobs with their users: the caller where none is named. Whoever has no name (the local token) is believed.

    Raises 403, with a pointer to each, for another user's name and for projects that the caller is not a member of.
    """
    faults: list[Fault] = []
    for place, job in placed_jobs(body):
        if (job.user or caller.user) != caller.user and caller.user is not None and not caller.acts_for_others:
            pointer = json_pointer((*place, "user"))
            faults.append(Fault("Only operators submit in another user's name; leave it out", pointer=pointer))
        if caller.projects is not None and (job.project or NO_PROJECT) not in caller.projects:
            faults.append(Fault("The caller's key is not for this project", pointer=json_pointer((*place, "project"))))
    if faults:
        raise Problem(ProblemType.FORBIDDEN, f"{faults[0].detail}.", faults)
    user = caller.user
    return [spec if spec.user or user is None else replace(spec, user=user) for spec in specs]
