"""Whole simulations on a cluster that is busy with gangs whose traffic wants to stay local."""

from collections import Counter

import pytest

from policies.decision import victims
from policies.decision.preemption import PreemptionContext
from policies.decision.searches import VictimSearch
from policies.model.cluster import Cluster, Server
from policies.model.view import JobView
from policies.registry import make_policy
from policies.state.keys import JobKey
from service.sim.experiment import run
from service.sim.workloads.generate import generate


@pytest.mark.slow
def test_moves_for_the_sake_of_traffic_do_not_undo_each_other_for_ever() -> None:
    """Here a gang made room, whoever moved displaced a third job, and that one made room in turn, all at one instant."""
    workload = generate(1, 500, gpus=64, load=1.5, programs=40)
    cluster = Cluster("slow", tuple(Server(f"s{m}", 8, nic_bytes_s=25e9 / 8, intra_bytes_s=120e9) for m in range(8)))
    result = run(workload, cluster, make_policy("asrpt")).result
    assert result.finished == 500
    assert result.preemptions < 5 * 500


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"reserve": "true"}, {"preemption": "always"}, {"fair_share": "true"}],
    ids=["asrpt", "reserve", "always", "fair_share"],
)
def test_jobs_that_would_be_placed_alike_get_what_a_search_for_each_would_find(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    searches: Counter[str] = Counter()
    search = victims._searched

    def counted(context: PreemptionContext, job: JobView, key: JobKey, *, consolidated_only: bool) -> VictimSearch:
        searches["alone" if context.likeness(job) is None else "shared"] += 1
        return search(context, job, key, consolidated_only=consolidated_only)

    monkeypatch.setattr(victims, "_searched", counted)
    workload = generate(3, 600, gpus=64, load=1.5, programs=40)
    cluster = Cluster("slow", tuple(Server(f"s{m}", 8, nic_bytes_s=25e9 / 8, intra_bytes_s=120e9) for m in range(8)))
    shared = run(workload, cluster, make_policy("asrpt", options))
    monkeypatch.setattr(PreemptionContext, "likeness", lambda *_: None)
    assert run(workload, cluster, make_policy("asrpt", options)).outcomes == shared.outcomes
    assert searches["shared"] < searches["alone"]
