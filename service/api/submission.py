"""How a submission becomes rows.

1. :func:`parse` checks the body: every fault of every job at once, and whose jobs they are.
2. :meth:`service.api.idempotency.Keys.run` finds a repeated request, and hands a new one to the group commit, which lets
   submissions that arrive at the same time share a transaction.
3. In the transaction, :func:`insert` checks what only the database knows (dependencies, capacity), inserts the jobs and their
   SUBMITTED requests in a few statements, and makes the answers.
4. In the same transaction ``Keys`` records the audit log and keeps the answer for repetitions.
5. After the commit the route wakes the loop; :func:`wait_for_predictions` waits for its next cycle if the client asked for it.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from sqlalchemy import Connection
from sqlmodel import Session

from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.api.capacity import OwnersCapacity
from service.api.deps import ApiDependencies
from service.api.documents import job_document
from service.api.idempotency import Answer, BatchedEffect, Effect
from service.api.parse import Parsed, is_single, parse_submission, placed_jobs
from service.api.plans import job_plan_document
from service.api.problems import Fault, Problem, ProblemType, json_pointer
from service.db import reads
from service.db.access import seen_jobs
from service.db.dialects import take_locks
from service.db.retention import DEPENDENCIES_LOCK
from service.domain.access import NO_PROJECT, Identity
from service.runtime.accounts import NoAccount, account_of
from service.wire.bodies import CatalogueGraphBody, JobBody, JobsBody
from service.wire.jobs import JobDocument, JobsDocument
from service.wire.plans import JobPlanDocument

JOINT_JOBS_MAX = 16
"""Submissions of at most so many jobs share a transaction; a larger one gains nothing by it and would delay the others."""

PREDICTION_WAIT_S = 10.0
"""Longest wait for a prediction: it holds one of the threads that answer requests."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request with new jobs, checked as far as possible without the database."""

    dependencies: ApiDependencies
    specs: list[JobSpec]
    plans: list[JobPlanDocument | None]
    body: JobBody | JobsBody
    caller: Identity

    @property
    def effect(self) -> Effect:
        """What inserts it, alone or with others."""
        if len(self.specs) <= JOINT_JOBS_MAX:
            return self.joint_effect
        return lambda session: BatchedEffect(self, insert)(session)

    @property
    def joint_effect(self) -> "BatchedEffect[Submission]":
        """What inserts it with others."""
        return BatchedEffect(self, insert)


def parse(body: JobBody | JobsBody, caller: Identity, dependencies: ApiDependencies) -> Submission:
    """Step 1. Raises Problem: 422 for the body's faults and for users whose jobs cannot run, 403 for another user's name or a
    project that the key is not for."""
    cluster = dependencies.scheduler.layout()
    parsed = parse_submission(body, dependencies.settings, cluster)
    owned = in_the_name_of(caller, parsed.specs, body)
    if dependencies.settings.run_as == "submitter":
        check_accounts(caller, body, dependencies.settings.run_as_users)
    plans = _plans(parsed, cluster)
    return Submission(dependencies, owned, plans, body, caller)


def is_quickly_parsed(body: JobBody, dependencies: ApiDependencies) -> bool:
    """Whether :func:`parse` takes well below a millisecond for a small body, on a cluster of 10,000 servers too.

    Not for several jobs, for a plan or a model of the catalogue, whose layers are computed, and for what has to be placed on the
    empty cluster to see whether it fits: in one rack or server, in equal shares, or with stages that differ in tensor degree.
    """
    computed = body.plan is not None or isinstance(body.graph, CatalogueGraphBody)
    tensor = None if body.parallelism is None else body.parallelism.tensor
    placed = body.topology is not None or body.servers is not None or len(set(tensor or ())) > 1
    return body.array is None and not computed and not placed and dependencies.settings.run_as != "submitter"


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
            faults.append(Fault("must be null or the caller: only operators submit for other users", pointer=pointer))
        if caller.projects is not None and (job.project or default_project) not in caller.projects:
            faults.append(Fault(_why_no_project(job, caller.projects), pointer=json_pointer((*place, "project"))))
    if faults:
        raise Problem(ProblemType.FORBIDDEN, faults=faults)
    user = caller.user
    return [replace(spec, user=spec.user or user or "", project=spec.project or default_project) for spec in specs]


def _why_no_project(job: JobBody, projects: Collection[str]) -> str:
    if job.project:
        return "the API key does not include this project"
    if projects:
        return f"is required: the API key is for {', '.join(sorted(projects))}"
    return "the API key is for projects of which its user is no member"


def check_accounts(caller: Identity, body: JobBody | JobsBody, names: Mapping[str, str]) -> None:
    """422 that points to every job whose user has no system user that the job can run as."""
    placed = [(place, job.user or caller.user or "") for place, job in placed_jobs(body)]
    reasons: dict[str, str] = {}
    for user in {user for _, user in placed}:
        try:
            account_of(user, names)
        except NoAccount as refusal:
            reasons[user] = str(refusal)
    if reasons:
        faults = [
            Fault(reasons[user], pointer=json_pointer((*place, "user"))) for place, user in placed if user in reasons
        ]
        raise Problem(ProblemType.INVALID_BODY, faults=faults)


def _only_project(caller: Identity) -> str:
    """The project of a key that is for one alone, else :data:`NO_PROJECT`."""
    return next(iter(caller.projects)) if caller.projects is not None and len(caller.projects) == 1 else NO_PROJECT


def insert(session: Session, submissions: Sequence[Submission]) -> list[Answer | Problem]:
    """Step 3: check each submission by itself and insert all that pass in the same few statements."""
    connection = session.connection()
    dependencies = submissions[0].dependencies
    specs = [spec for each in submissions for spec in each.specs]
    owners = OwnersCapacity(connection, specs, dependencies.settings, for_update=True)
    if any(spec.needs for spec in specs):
        take_locks(connection, DEPENDENCIES_LOCK)
    refusals = [_refusal(connection, each, owners) for each in submissions]
    accepted = [each for each, refusal in zip(submissions, refusals, strict=True) if refusal is None]
    specs = [spec for each in accepted for spec in each.specs]
    sizes = [len(each.specs) for each in accepted]
    ids = dependencies.store.submit(session, specs, dependencies.now_s(), sizes)
    documents = {summary.job.id: job_document(summary) for summary in reads.new_jobs(connection, ids)}
    left = iter(ids)
    answers = iter([_answer(each, _with_plans(each, documents, islice(left, len(each.specs)))) for each in accepted])
    return [next(answers) if refusal is None else refusal for refusal in refusals]


def _plans(parsed: Parsed, cluster: Cluster) -> list[JobPlanDocument | None]:
    """What each job's plan asks of the cluster. The elements of an array have one plan, which the first of them shows."""
    found: list[JobPlanDocument | None] = []
    before: JobSpec | None = None
    for spec, warnings in zip(parsed.specs, parsed.warnings, strict=True):
        same = before is not None and spec.array is not None and replace(before, array=spec.array) == spec
        found.append(None if same else job_plan_document(spec, cluster, warnings))
        before = spec
    return found


def _with_plans(
    submission: Submission, documents: Mapping[JobId, JobDocument], ids: Iterable[JobId]
) -> list[JobDocument]:
    """The documents of a submission's jobs in ascending id, each with its plan."""
    rows = sorted(zip(ids, submission.plans, strict=True), key=lambda row: row[0])
    return [documents[job] | {"plan": plan} for job, plan in rows]


def _refusal(connection: Connection, submission: Submission, owners: OwnersCapacity) -> Problem | None:
    dependencies = submission.dependencies
    try:
        check_dependencies(connection, submission.body, submission.caller)
        dependencies.capacity.take(connection, len(submission.specs), dependencies.settings.jobs_queued_max)
        owners.take(submission.specs)
    except Problem as problem:
        return problem
    return None


def check_dependencies(connection: Connection, body: JobBody | JobsBody, caller: Identity) -> None:
    """422 that points to every job in 'after' that does not exist for the caller."""
    asked = [
        (json_pointer((*place, "after", position)), entry.job)
        for place, job in placed_jobs(body)
        for position, entry in enumerate(job.needs)
    ]
    known = seen_jobs(connection, {needed for _, needed in asked}, caller)
    faults = [Fault(f"There is no job {needed}", pointer=pointer) for pointer, needed in asked if needed not in known]
    if faults:
        raise Problem(ProblemType.INVALID_BODY, faults=faults)


def _answer(submission: Submission, documents: list[JobDocument]) -> Answer:
    first, last = documents[0]["id"], documents[-1]["id"]
    target = f"job {first}" if len(documents) == 1 else f"jobs {first}-{last}"
    if all(document["array_id"] == first for document in documents):
        target = f"array {first}"
    single = is_single(submission.body)
    location = documents[0]["links"]["self"] if single else "/v1/jobs"
    return Answer(201, _body(documents, single), location, target=target, detail={"jobs": len(documents)})


def _body(documents: list[JobDocument], single: bool) -> Any:
    return documents[0] if single else JobsDocument(jobs=documents)


def wait_for_predictions(dependencies: ApiDependencies, accepted: Response, single: bool) -> Response:
    """Step 5: the same answer with the jobs as they are after a cycle has admitted them, or after PREDICTION_WAIT_S."""
    document = json.loads(bytes(accepted.body))
    plans = {job["id"]: job["plan"] for job in ([document] if single else document["jobs"])}
    ids = list(plans)
    until_s = time.monotonic() + PREDICTION_WAIT_S
    cycles = dependencies.scheduler.wait_cycle(-1, 0.0)
    while True:
        with dependencies.reading() as connection:
            if reads.all_admitted(connection, ids) or time.monotonic() >= until_s:
                documents = [job_document(summary) for summary in reads.jobs_by_id(connection, ids)]
                break
        cycles = dependencies.scheduler.wait_cycle(cycles, max(0.0, until_s - time.monotonic()))
    documents = [found | {"plan": plans[found["id"]]} for found in documents]
    kept = {name: value for name, value in accepted.headers.items() if name not in ("content-length", "content-type")}
    return JSONResponse(_body(documents, single), accepted.status_code, kept)
