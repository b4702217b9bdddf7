"""The invariants of every decision, checked before it is applied. O(actions)."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.lifecycle import JobState
from policies.model.decision import Decision, Preempt, Start
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement
from policies.model.resources import NOTHING, Amounts, demand_of
from policies.model.view import ClusterView, JobView
from policies.placement.shapes import allowed
from policies.rules.registered import placement_rules


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: its name (the label of the metric) and the details."""

    invariant: str
    job: JobId
    detail: str


def check(view: ClusterView, decision: Decision) -> Sequence[Violation]:
    """All rules that the decision breaks against this view; empty = it may be applied."""
    violations: list[Violation] = []
    taken: dict[ServerIndex, int] = {}
    amounts: dict[ServerIndex, Amounts] = {}
    started: set[JobId] = set()
    preempted: set[JobId] = set()
    for action in decision.actions:
        job = view.jobs.get(action.job)
        placement = None if isinstance(action, Preempt) else action.placement
        if job is None:
            violations.append(Violation("known_job", action.job, "the job is not an unfinished one"))
        elif placement is not None and not _well_formed(view, placement):
            violations.append(Violation("well_formed", action.job, f"shares {placement.shares}"))
        elif isinstance(action, Start):
            violations += _check_start(view, job, action, taken, repeated=action.job in started)
            violations += _check_amounts(view, job, action, amounts)
            started.add(action.job)
        elif isinstance(action, Preempt):
            if job.state not in (JobState.STARTING, JobState.RUNNING) or action.job in preempted:
                violations.append(Violation("preempts_running", action.job, f"its state is {job.state}"))
            preempted.add(action.job)
        elif job.state is not JobState.QUEUED or action.job in started:
            violations.append(Violation("reserves_for_waiting", action.job, f"its state is {job.state}"))
        elif action.placement is not None and action.placement.gpus != job.spec.gpus:
            violations.append(Violation("whole_gang", action.job, f"reserves {action.placement.gpus} GPUs"))
    return violations


def _well_formed(view: ClusterView, placement: Placement) -> bool:
    """Known servers, at least one GPU on each, and as many stages in each share."""
    servers = len(view.cluster.servers)
    return (
        all(0 <= share.server < servers and share.gpus >= 1 for share in placement.shares)
        and len({len(share.replicas) for share in placement.shares}) == 1
    )


def _check_start(
    view: ClusterView, job: JobView, action: Start, taken: dict[ServerIndex, int], *, repeated: bool
) -> list[Violation]:
    found: list[Violation] = []
    if not job.waiting or repeated:
        found.append(Violation("starts_waiting", job.id, f"its state is {job.state}, started twice: {repeated}"))
    if action.placement.gpus != job.spec.gpus:
        found.append(Violation("whole_gang", job.id, f"{action.placement.gpus} of {job.spec.gpus} GPUs"))
    found += _check_shape(view, job, action.placement)
    for reserved in view.server_reservations:
        closed = reserved.active(view.now_s) and not reserved.admits(job.spec)
        if closed and not set(reserved.servers).isdisjoint(action.placement.servers):
            found.append(Violation("reserved_servers", job.id, f"server reservation {reserved.id} is for others"))
    for share in action.placement.shares:
        taken[share.server] = taken.get(share.server, 0) + share.gpus
        if taken[share.server] > view.free_gpus(share.server):
            detail = f"server {share.server}: {taken[share.server]} taken, {view.free_gpus(share.server)} free"
            found.append(Violation("no_oversubscription", job.id, detail))
    return found


def _check_amounts(
    view: ClusterView, job: JobView, action: Start, taken: dict[ServerIndex, Amounts]
) -> list[Violation]:
    """What the job needs beside GPUs."""
    found: list[Violation] = []
    demand = demand_of(job.spec)
    if demand is None:
        return found
    for share in action.placement.shares:
        if not demand.admits(view.cluster.servers[share.server]):
            detail = f"server {share.server}: needs {demand.gpu_memory_gib:g} GiB on each GPU"
            found.append(Violation("gpu_memory", job.id, detail))
        if (spare := view.spare(share.server)) is None:
            continue
        wanted = taken[share.server] = taken.get(share.server, NOTHING).plus(demand.of(share.gpus))
        if spare.plus(wanted, -1).lacking:
            detail = f"server {share.server}: {_in_words(wanted)} taken, {_in_words(spare)} free"
            found.append(Violation("no_oversubscription", job.id, detail))
    return found


def _in_words(amounts: Amounts) -> str:
    return f"{amounts.cpus} CPUs and {amounts.memory_mib} MiB"


def _check_shape(view: ClusterView, job: JobView, placement: Placement) -> list[Violation]:
    """One share a server, one GPU type, every replica somewhere exactly once."""
    found = []
    servers = placement.servers
    if len(set(servers)) != len(servers):
        found.append(Violation("one_share_a_server", job.id, f"servers {servers}"))
    types = {view.cluster.servers[server].gpu_type for server in servers}
    wanted = job.spec.gpu_types
    if len(types) > 1 or (wanted and not types.issubset(wanted)):
        found.append(Violation("one_gpu_type", job.id, f"types {sorted(types)}, wanted {', '.join(wanted) or 'any'}"))
    gangs = view.cluster.gangs
    if not allowed(gangs, placement):
        shares = [share.gpus for share in placement.shares]
        found.append(Violation("startable_gang", job.id, f"shares {shares}, it needs {gangs.demand}"))
    for rule in placement_rules(job.spec):
        if rule.required(job.spec) and not rule.allows(view.cluster, job.spec, placement):
            found.append(Violation(rule.name, job.id, f"servers {servers}, must be {rule.describe(job.spec)}"))
    config = job.spec.parallelism
    if config is not None:
        totals = tuple(sum(column) for column in zip(*(share.replicas for share in placement.shares), strict=True))
        if totals != config.replicas:
            found.append(Violation("every_replica_placed", job.id, f"{totals} of {config.replicas}"))
    return found
