"""Jobs that cannot checkpoint are not stopped for others, unless the setting allows it for a larger priority."""

from typing import Any

import pytest

from policies.model.cluster import Server
from policies.model.reasons import Reason
from service.engine.events import Report, ReportKind
from service.sim.executor import ExecutorCosts
from tests.scenarios.dsl import Story, cluster, policy
from tests.scenarios.test_gate_and_delay import _chatty

UNSAVED: dict[str, Any] = {"preemption": None, "checkpoint_period_s": None}
PREEMPTIVE = ("asrpt", "srsf", "srtf", "las", "gittins")


def story(shape: str, name: str, **options: object) -> Story:
    return cluster(shape, policy(name, **{"guard_share": 0, **options}))


@pytest.mark.parametrize("name", PREEMPTIVE)
@pytest.mark.parametrize("preemption", ["guided", "always"])
def test_it_is_not_stopped_even_for_a_larger_priority(name: str, preemption: str) -> None:
    told = story("1x4", name, preemption=preemption)
    told.job("long", gpus=4, runs_s=5000, **UNSAVED).until(300)
    told.job("short", gpus=4, runs_s=5).job("urgent", gpus=4, runs_s=5, priority=9)
    told.until(4999).preempts().until(5000).finishes("long").starts("urgent")


@pytest.mark.parametrize("name", PREEMPTIVE)
def test_with_priority_it_is_stopped_for_a_larger_priority_alone(name: str) -> None:
    told = story("1x4", name, preempt_unsaved="priority")
    told.job("long", gpus=4, runs_s=5000, priority=2, **UNSAVED).until(300)
    told.job("short", gpus=4, runs_s=5, priority=2).until(1000).preempts()
    told.job("urgent", gpus=4, runs_s=5, priority=3).until(1000).preempts("long").starts("urgent")


@pytest.mark.parametrize("can", [{"checkpoint_period_s": 300.0, "preemption": None}, {"checkpoint_period_s": None}])
def test_a_stated_period_or_a_warning_signal_makes_it_a_victim(can: dict[str, Any]) -> None:
    told = story("1x4", "srsf")
    told.job("long", gpus=4, runs_s=5000, **can).until(300)
    told.job("short", gpus=4, runs_s=5).until(300).preempts("long")


def test_its_first_checkpoint_makes_it_a_victim() -> None:
    told = story("1x4", "srsf")
    told.job("long", gpus=4, runs_s=5000, iterations=5000.0, **UNSAVED).until(300)
    told.job("short", gpus=4, runs_s=5).until(400).preempts()
    attempt = told.attempt("long")
    told.says(Report(ReportKind.PROGRESS, 400, attempt, iteration=400.0, checkpoint_iteration=200.0))
    told.until(401).preempts("long").starts("short")


@pytest.mark.parametrize("by_priority", ["never", "priority"])
def test_operators_stop_it(by_priority: str) -> None:
    for stop in ("hold", "cancel", "reserve"):
        told = story("1x4", "asrpt", preempt_unsaved=by_priority)
        told.job("long", gpus=4, runs_s=5000, **UNSAVED).until(100)
        if stop == "hold":
            told.hold("long", preempt=True).until(101).preempts("long")
        elif stop == "cancel":
            told.cancel("long").until(101).cancels("long")
        else:
            told.reserve(0, from_s=101, until_s=200).until(101).preempts("long")


@pytest.mark.parametrize("by_priority", ["never", "priority"])
def test_filling_servers_spares_it(by_priority: str) -> None:
    told = story("1x4", "asrpt", fill="server_filling", preempt_unsaved=by_priority)
    told.job("long", gpus=2, runs_s=5000, **UNSAVED).job("other", gpus=2, runs_s=4000).until(0)
    told.job("wide", gpus=4, runs_s=10).until(3999).preempts()
    told.job("urgent", gpus=4, runs_s=10, priority=1).until(3999)
    told.preempts() if by_priority == "never" else told.preempts("long", "other")


def test_filling_servers_spares_it_from_equals_while_a_larger_priority_waits() -> None:
    told = story("1x4", "asrpt", fill="server_filling", preempt_unsaved="priority")
    told.job("long", gpus=2, runs_s=5000, **UNSAVED).job("keep", gpus=2, runs_s=4000, priority=5).until(0)
    told.job("short", gpus=2, runs_s=10).job("urgent", gpus=4, runs_s=10, priority=1).until(3999).preempts()


def test_an_overdue_gang_gets_gpus_as_they_become_free_if_unsaved_jobs_hold_too_many() -> None:
    """Small unsaved jobs follow each other on both servers. Without a reservation the gang would never start."""
    told = cluster("2x2", policy("asrpt", guard_share=0.05, guard_wait_s=1000), costs=ExecutorCosts(restart_s=0.0))
    for number in range(100):
        told.job(f"n{number}", gpus=1, runs_s=200, at_s=50.0 * number, **UNSAVED)
    told.job("wide", gpus=4, runs_s=100, at_s=10).until(1010).starts("n0", *(f"n{n}" for n in range(1, 21)))
    told.until(1200)
    assert told.record("wide").first_started_at_s == 1200.0, "when the last of those that ran at 1,010 s has ended"


def test_an_overdue_job_gets_cpus_as_they_become_free_if_unsaved_jobs_hold_too_many() -> None:
    told = Story(
        "",
        policy("asrpt", guard_share=0.05, guard_wait_s=1000),
        names=[Server("a", 8, cpus=16)],
        costs=ExecutorCosts(restart_s=0.0),
    )
    for number in range(100):
        told.job(f"n{number}", gpus=1, cpus=4, runs_s=200, at_s=50.0 * number, **UNSAVED)
    told.job("wide", gpus=1, cpus=16, runs_s=100, at_s=10).until(1200)
    assert told.record("wide").first_started_at_s == 1200.0, "when the last of those that ran at 1,010 s has ended"


def test_the_last_holders_of_reserved_cpus_are_stopped_once_the_unsaved_job_has_ended() -> None:
    told = Story(
        "",
        policy("asrpt", guard_share=0.05, guard_wait_s=1000),
        names=[Server("a", 8, cpus=16)],
        costs=ExecutorCosts(restart_s=0.0),
    )
    told.job("stays", gpus=1, cpus=8, runs_s=1500, **UNSAVED).job("long", gpus=1, cpus=8, runs_s=5000).until(0)
    told.job("wide", gpus=1, cpus=16, runs_s=90_000, at_s=10).until(1499).preempts()
    told.until(1500).finishes("stays").preempts("long").starts("wide")


def test_the_last_holders_of_reserved_gpus_are_stopped_once_the_unsaved_job_has_ended() -> None:
    told = cluster("2x2", policy("asrpt", guard_share=0.05, guard_wait_s=1000), costs=ExecutorCosts(restart_s=0.0))
    told.job("stays", gpus=2, runs_s=1500, **UNSAVED).job("long", gpus=2, runs_s=5000).until(0)
    told.job("wide", gpus=4, runs_s=40_000, at_s=10).until(1499).preempts()
    told.until(1500).finishes("stays").preempts("long").starts("wide")


def test_an_overdue_gang_that_can_displace_others_reserves_nothing_before_the_time() -> None:
    """One server's jobs checkpoint: the guarded gang takes those GPUs by preemption.

    The other one that waits, ``long``, has its turn before: two GPUs for 50 s are what 0.2 GPUs do in 500 s.
    """
    told = cluster("2x2", policy("asrpt", guard_share=0.05, guard_wait_s=1000), costs=ExecutorCosts(restart_s=0.0))
    told.job("stays", gpus=2, runs_s=50_000, **UNSAVED).job("long", gpus=2, runs_s=500).until(0)
    for number in range(40):
        told.job(f"n{number}", gpus=2, runs_s=50, at_s=50.0 * number)
    told.job("wide", gpus=2, runs_s=900, at_s=10, topology=None)
    told.to_the_end()
    started = told.records["wide"].first_started_at_s
    assert started == 1500.0


def test_the_explanation_names_the_jobs_that_are_not_stopped() -> None:
    told = story("1x4", "asrpt")
    told.job("a", gpus=2, runs_s=5000, **UNSAVED).job("b", gpus=2, runs_s=4000, **UNSAVED).until(100)
    told.job("urgent", gpus=4, runs_s=5, priority=9).until(100).waits("urgent", Reason.RESOURCES)
    explained = told.engine.explain(told.ids["urgent"])
    assert explained.waiting_for == (told.ids["a"], told.ids["b"])
    assert (
        "Jobs 1 and 2 cannot checkpoint, so they are not stopped for it (preempt_unsaved=never)." in explained.sentence
    )


def test_the_explanation_of_reserved_gpus_names_the_jobs_that_run_on_there() -> None:
    told = cluster("3x2", policy("asrpt", guard_share=0.05, guard_wait_s=1000), costs=ExecutorCosts(restart_s=0.0))
    told.job("stays", gpus=2, runs_s=1500, **UNSAVED).job("also", gpus=2, runs_s=1600, **UNSAVED).until(0)
    told.job("more", gpus=2, runs_s=9000, priority=9, **UNSAVED).job("wide", gpus=4, runs_s=40_000, at_s=10).until(1100)
    explained = told.engine.explain(told.ids["wide"])
    assert explained.reason is Reason.RESERVED
    assert explained.waiting_for == (told.ids["stays"], told.ids["also"])
    assert "GPUs are set aside for it; it starts when jobs 1 and 2 have ended." in explained.sentence


def test_the_explanation_does_not_blame_jobs_that_would_not_be_stopped_anyway() -> None:
    told = story("1x4", "asrpt")
    told.job("a", gpus=4, runs_s=50, **UNSAVED).until(10)
    told.job("longer", gpus=4, runs_s=5000).until(10)
    explained = told.engine.explain(told.ids["longer"])
    assert explained.waiting_for == ()
    assert "checkpoint" not in explained.sentence


def test_the_explanations_of_both_say_beforehand_when_one_is_stopped_for_the_other() -> None:
    told = story("1x4", "asrpt", attempt_duration_s_min=120)
    told.job("long", gpus=4, runs_s=10_000).until(0)
    told.job("short", gpus=4, runs_s=10, at_s=50).until(60)
    waits, runs = (told.engine.explain(told.ids[name]) for name in ("short", "long"))
    assert (waits.will_preempt, waits.preemption_at_s) == ((told.ids["long"],), 120.0)
    assert (runs.will_be_preempted_by, runs.preemption_at_s) == (told.ids["short"], 120.0)
    told.until(119.9).preempts().until(120).preempts("long")
    assert told.engine.explain(told.ids["short"]).preemption_at_s is None


def test_what_is_said_beforehand_follows_what_happens() -> None:
    told = story("1x4", "asrpt", attempt_duration_s_min=120)
    told.job("long", gpus=4, runs_s=10_000).until(0)
    told.job("short", gpus=4, runs_s=10, at_s=50).until(60)
    assert told.engine.explain(told.ids["short"]).preemption_at_s == 120.0
    told.job("shorter", gpus=4, runs_s=5).until(61)
    assert told.engine.explain(told.ids["short"]).preemption_at_s is None
    assert told.engine.explain(told.ids["shorter"]).preemption_at_s == 120.0
    told.cancel("shorter").cancel("short").until(62)
    assert told.engine.explain(told.ids["long"]).preemption_at_s is None


def half_empty(**options: object) -> Story:
    """Two GPUs free on each of two servers, beside a job that cannot checkpoint; a restart costs 60 s."""
    told = cluster("2x4", policy("asrpt", **{"guard_share": 0, **options}), costs=ExecutorCosts(restart_s=60.0))
    told.job("a", gpus=2, runs_s=900, **UNSAVED).job("x", gpus=2, runs_s=3, at_s=0.1)
    told.job("b", gpus=2, runs_s=900, at_s=0.2, **UNSAVED)
    return told.until(5).finishes("x").on("a", 0).on("b", 1)


def test_it_does_not_move_so_that_a_gang_stays_on_one_server() -> None:
    _chatty(half_empty(), "chatty", 10, priority=1).until(10).preempts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    like = _chatty(half_empty(preempt_unsaved="priority"), "chatty", 10).until(10)
    like.preempts().waits("chatty", Reason.CONSOLIDATION_DELAY)
    above = _chatty(half_empty(preempt_unsaved="priority"), "chatty", 10, priority=1)
    above.until(10).preempts("b").starts("b", "chatty").on("chatty", 1)


@pytest.mark.parametrize("by_priority", ["never", "priority"])
def test_it_does_not_migrate(by_priority: str) -> None:
    """A scattered gang that could start again on one server."""
    told = cluster(
        "2x4",
        policy("asrpt", guard_share=0, delay_factor=0, preempt_unsaved=by_priority),
        costs=ExecutorCosts(restart_s=60.0),
    )
    told.job("a", gpus=2, runs_s=3600).job("x", gpus=2, runs_s=3, at_s=0.1).job("b", gpus=2, runs_s=200, at_s=0.2)
    told.until(5).finishes("x").on("a", 0).on("b", 1)
    _chatty(told, "chatty", 10, priority=1, **UNSAVED).until(10).starts("chatty").on("chatty", 0, 1)
    told.until(3000).finishes("b").preempts().on("chatty", 0, 1)
