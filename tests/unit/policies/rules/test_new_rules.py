"""A rule is one class and one registration: new ones are obeyed by every part of a decision."""

import math
from collections.abc import Hashable, Iterator

import pytest

from policies.choose import find, fits_empty
from policies.invariants import check
from policies.model.cluster import Cluster, Server
from policies.model.decision import Decision, Start
from policies.model.ids import JobId, ServerIndex
from policies.model.job import JobSpec, Level, Topology
from policies.model.placement import Placement, ServerShare, place
from policies.model.reasons import Reason
from policies.model.view import JobView, PreemptionCosts
from policies.options import Options
from policies.placement.pool import FreePool
from policies.rules import registered
from policies.rules.protocols import PreemptionRule
from service.engine.record import JobRecord
from service.engine.world import Costs, World
from tests.scenarios.dsl import cluster, policy

FOUR_SERVERS = Cluster("c", tuple(Server(f"s{index}", 4) for index in range(4)))


class SpreadRule:
    """At most so many GPUs of a job on one server, as its label ``gpus_per_server_max`` says."""

    name = "spread"

    def demand(self, spec: JobSpec) -> Hashable | None:
        return spec.labels.get("gpus_per_server_max")

    def required(self, spec: JobSpec) -> bool:
        return spec.labels.get("spread") != "preferred"

    def allows(self, cluster: Cluster, spec: JobSpec, placement: Placement) -> bool:
        return all(share.gpus <= self._limit(spec) for share in placement.shares)

    def pools(self, pool: FreePool, cluster: Cluster, spec: JobSpec) -> Iterator[FreePool]:
        free = [pool.free(ServerIndex(index)) for index in range(len(pool))]
        yield FreePool(cluster, [min(gpus, self._limit(spec)) for gpus in free])

    def describe(self, spec: JobSpec) -> str:
        return f"at most {self._limit(spec)} GPUs on a server"

    def _limit(self, spec: JobSpec) -> int:
        return int(spec.labels["gpus_per_server_max"])


class NeverPreempted(PreemptionRule):
    """Jobs with the label ``critical`` run undisturbed."""

    @classmethod
    def under(cls, options: Options) -> "NeverPreempted":
        return cls()

    def protected_s(self, costs: PreemptionCosts, job: JobView) -> float:
        return math.inf if "critical" in job.spec.labels else 0.0


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "PLACEMENT_RULES", (*registered.PLACEMENT_RULES, SpreadRule()))


def job(gpus: int, limit: int, topology: Topology | None = None, **labels: str) -> JobSpec:
    return JobSpec("j", "u", gpus, labels={"gpus_per_server_max": str(limit), **labels}, topology=topology)


def shares(spec: JobSpec) -> list[int] | None:
    found = find(FreePool(FOUR_SERVERS, [4, 4, 4, 4]), FOUR_SERVERS, spec)
    return None if found is None else [share.gpus for share in found.placement.shares]


@pytest.mark.usefixtures("spread")
def test_a_placement_rule_is_applied_alone_and_with_others() -> None:
    assert shares(job(4, 2)) == [2, 2]
    assert shares(job(4, 4)) == [4]
    assert shares(JobSpec("j", "u", 4)) == [4], "a job without the label is free"
    assert shares(job(12, 2)) is None
    assert shares(job(12, 2, spread="preferred")) == [4, 4, 4]
    on_one_server = Topology(Level.SERVER)
    assert shares(job(4, 2, on_one_server)) is None, "the two rules contradict each other"
    assert shares(job(4, 2, on_one_server, spread="preferred")) == [4], "the required rule wins"
    assert (fits_empty(FOUR_SERVERS, job(8, 2)), fits_empty(FOUR_SERVERS, job(9, 2))) == (True, False)


@pytest.mark.usefixtures("spread")
def test_a_decision_against_a_placement_rule_breaks_an_invariant() -> None:
    world = World(FOUR_SERVERS, Costs())
    world.add_job(JobRecord(JobId(1), job(4, 2), 0.0))
    whole = Decision([Start(JobId(1), place([ServerShare(ServerIndex(0), 4)]))])
    (violation,) = check(world, whole)
    assert (violation.invariant, violation.detail) == ("spread", "servers (0,), must be at most 2 GPUs on a server")


@pytest.mark.usefixtures("spread")
def test_jobs_of_different_demands_do_not_block_each_other() -> None:
    """Two servers are free: too few for 6 GPUs of which at most 2 may be on one server, enough for any 6."""
    story = cluster("3x4", policy("fifo_backfill", guard_share=0))
    story.job("first", gpus=4, runs_s=100).until(0).starts("first")
    story.job("spread", gpus=6, runs_s=100, labels={"gpus_per_server_max": "2"})
    story.job("plain", gpus=6, runs_s=100).until(0).starts("plain").waits("spread", Reason.RESOURCES)
    story.until(100).finishes("first", "plain").starts("spread")
    assert [share.gpus for share in story.record("spread").placement.shares] == [2, 2, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize("critical", [False, True])
def test_a_preemption_rule_is_applied(monkeypatch: pytest.MonkeyPatch, critical: bool) -> None:
    monkeypatch.setattr(registered, "PREEMPTION_RULES", (*registered.PREEMPTION_RULES, NeverPreempted.under))
    story = cluster("1x4", policy("asrpt", guard_share=0))
    story.job("long", gpus=4, runs_s=5000, labels={"critical": "yes"} if critical else {}).until(0).starts("long")
    story.job("short", gpus=4, runs_s=50, at_s=100).until(100)
    if critical:
        story.preempts().waits("short", Reason.RESOURCES)
    else:
        story.preempts("long").starts("short").waits("long", Reason.RESOURCES)
