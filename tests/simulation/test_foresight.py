"""What is foretold of the next preemption comes true, if nothing but time changes: on random workloads, decision by decision."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies.decision.foresight import foresee
from policies.model.cluster import Cluster, Server
from policies.model.decision import Change, Decision, Foreseen, Preempt
from policies.model.view import ClusterView
from policies.registry import make_policy
from service.engine.watch import WatchingPolicy
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import SimJob, SimJobs, prepare
from service.sim.workloads.model import Workload, WorkloadJob

SERVERS = Cluster("small", tuple(Server(f"s{number}", 4) for number in range(4)))


class Foreteller(WatchingPolicy):
    """Foretells after each decision that acts on nothing, and compares the decisions until something changes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.told: Foreseen | None = None
        self.true = 0
        self.early = 0
        """Cycles before the foretold time, in which nothing was to happen."""

    def decide(self, view: ClusterView, changes: Sequence[Change], state: Any) -> Decision:
        decision = self.inner.decide(view, changes, state)
        if self.told is not None and not changes:
            self.compare(self.told, view.now_s, decision)
        self.told = None
        if not decision.actions:
            dump = state.dump()
            self.told = foresee(self.inner, view, state)
            state.check(view)
            assert state.dump() == dump
        return decision

    def compare(self, told: Foreseen, now_s: float, decision: Decision) -> None:
        stops = tuple(action for action in decision.actions if isinstance(action, Preempt) and action.for_job)
        if told.stops and now_s >= told.at_s:
            assert stops == told.stops, (now_s, told)
            self.true += 1
        elif told.stops:
            assert decision.actions == [], (now_s, told)
            self.early += 1


def jobs(seed: int) -> SimJobs:
    """Bursts of jobs of all lengths, with least run times and a few priorities."""
    dice = random.Random(seed)
    rows, at_s = [], 0.0
    for number in range(40):
        at_s += dice.choice((0.0, 5.0, 400.0, 3000.0))
        seconds = dice.choice((30.0, 300.0, 3000.0, 20_000.0)) * dice.uniform(0.5, 1.5)
        model = dice.choice(("", "", "", "vgg19"))
        gpus = dice.choice((1, 1, 2, 4, 8))
        rows.append(
            WorkloadJob(
                f"j{number}", at_s, gpus, seconds, f"u{number % 3}", f"p{number % 2}", f"n{number}", model=model
            )
        )
    prepared = prepare(Workload("random", tuple(rows)), SERVERS)
    return replace(prepared, jobs=[_varied(job, dice) for job in prepared.jobs])


def _varied(job: SimJob, dice: random.Random) -> SimJob:
    unsaved = dice.random() < 0.15
    return replace(
        job,
        spec=replace(
            job.spec,
            min_run_s=dice.choice((0.0, 0.0, 100.0, 1500.0)),
            priority=dice.choice((0, 0, 0, 0, 0, 1)),
            checkpoint_period_s=None if unsaved else 300.0,
            preemption=None if unsaved or dice.random() < 0.1 else job.spec.preemption,
        ),
    )


@pytest.mark.parametrize(
    ("name", "options", "predictor", "least"),
    [
        ("asrpt", {"attempt_duration_s_min": "600"}, "noisy:1.5", 10),
        ("asrpt", {"attempt_duration_s_min": "600"}, "none", 10),
        ("asrpt", {"preemption": "always", "guard_wait_s": "3000"}, "none", 50),
        ("asrpt", {"fill": "server_filling", "preempt_unsaved": "priority"}, "noisy:1.5", 3),
        ("asrpt", {"fair_share": "true", "restarts_free": "1"}, "noisy:1.5", 10),
        ("srtf", {"attempt_duration_s_min": "900"}, "oracle", 10),
        ("las", {"guard_share": "0"}, "none", 20),
        ("gittins", {"guard_share": "0", "preempt_unsaved": "priority"}, "none", 20),
    ],
)
def test_what_is_foretold_comes_true(name: str, options: dict[str, str], predictor: str, least: int) -> None:
    true = early = 0
    for seed in range(3):
        foreteller = Foreteller(make_policy(name, options))
        watched = run_jobs(jobs(seed), SERVERS, foreteller, predictor, SimulationOptions())
        alone = run_jobs(jobs(seed), SERVERS, make_policy(name, options), predictor, SimulationOptions())
        assert watched.outcomes == alone.outcomes, "foretelling changes no decision"
        true, early = true + foreteller.true, early + foreteller.early
    assert min(true, early) >= least, f"{true} foretold, {early} cycles before: too few for a test"
