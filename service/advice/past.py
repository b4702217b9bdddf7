"""Jobs of the past, and the queue as it stood at an instant of the past."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from service.advice.mirror import MirrorJob, MirrorNode, Seen
from service.slurm.accounting import AccountedJob


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job with what became of it. ``asked`` is the job as it waited; times are Unix seconds, None = not yet or never.

    ``ran_on``: its GPUs by node.
    """

    asked: MirrorJob
    started_at_s: float | None
    ended_at_s: float | None
    ran_on: Mapping[str, int] = field(default_factory=dict)
    final_state: str = ""

    @property
    def ran_s(self) -> float:
        """Seconds that it ran; 0 unless it has ended."""
        if self.started_at_s is None or self.ended_at_s is None:
            return 0.0
        return max(0.0, self.ended_at_s - self.started_at_s)

    def label(self, number: JobId) -> EndedJob:
        """What the predictor learns from a job that has ended."""
        assert self.ended_at_s is not None
        return EndedJob(
            job=number,
            spec=self.asked.spec,
            submitted_at_s=self.asked.submitted_at_s,
            ended_at_s=max(self.ended_at_s, self.asked.submitted_at_s),
            iterations=None,
            service_s=self.ran_s,
            final_state=self.final_state,
            gpu_type=self.asked.gpu_type,
            servers_spanned=len(self.ran_on) or None,
        )


def seen_at(past: Sequence[PastJob], nodes: Sequence[MirrorNode], now_s: float) -> Seen:
    """The cluster at an instant. O(jobs).

    When nodes were down or drained is not in the accounting: all are taken as usable.
    """
    jobs = []
    for each in past:
        # When a dependency would be over was not known before it was.
        known_at_s = max(each.asked.submitted_at_s, each.asked.eligible_at_s)
        if known_at_s > now_s or (each.ended_at_s is not None and each.ended_at_s <= now_s):
            continue
        if each.started_at_s is not None and each.started_at_s <= now_s:
            jobs.append(replace(each.asked, started_at_s=each.started_at_s, held_gpus=each.ran_on))
        else:
            jobs.append(each.asked)
    return Seen(now_s, [replace(node, drained=False, down=False) for node in nodes], jobs)


def name_of(job: MirrorJob) -> str:
    """What tells a job from all others: Slurm repeats job ids after a while (FirstJobId to MaxJobId)."""
    return f"{job.key} {job.submitted_at_s:.0f}"


def past_of(job: AccountedJob) -> PastJob:
    """A job of the accounting. Its GPUs are taken as spread evenly over its nodes, as far as they divide."""
    nodes = max(1, job.node_count or len(job.nodes))
    share, more = divmod(job.gpus, nodes)
    number, _, rest = job.id.replace("+", "_").partition("_")
    asked = MirrorJob(
        key=job.id,
        serial=(int(number) if number.isdecimal() else 0, int(rest) if rest.isdecimal() else 0),
        name=job.name,
        user=job.user,
        gpus=job.gpus,
        submitted_at_s=job.submit_s,
        account=job.account,
        nodes=nodes,
        gpus_a_node=None if more else share,
        gpu_type=job.gpu_type or None,
        limit_s=job.time_limit_s,
        priority=job.priority or 0,
        eligible_at_s=job.eligible_s or 0.0,
    )
    ran = job.start_s is not None and job.run_s > 0.0
    on = {node: share + (place < more) for place, node in enumerate(job.nodes)} if ran else {}
    started_at_s = job.start_s if ran else None
    return PastJob(asked, started_at_s, job.end_s, {node: gpus for node, gpus in on.items() if gpus}, job.state)


def unfinished(job: MirrorJob) -> PastJob:
    """A job of the present queue, as the past sees it."""
    asked = replace(job, started_at_s=None, held_gpus={})
    return PastJob(asked, job.started_at_s, None, job.held_gpus)
