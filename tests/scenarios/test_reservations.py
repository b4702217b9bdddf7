"""Servers set aside for a time: who starts there before, who is let in, who is stopped, and what happens at the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from policies.model.reasons import Reason
from policies.registry import BUILT_IN
from tests.scenarios.dsl import Story, cluster, policy


def story(shape: str, name: str = "fifo_backfill", **options: object) -> Story:
    return cluster(shape, policy(name, **options))


def test_before_maintenance_only_who_will_have_ended_is_started_there() -> None:
    made = story("2x4").reserve(0, from_s=100.0, until_s=200.0)
    made.job("short", gpus=4, runs_s=90).job("long", gpus=4, runs_s=150).job("long2", gpus=4, runs_s=150)
    made.until(0).starts("short", "long").on("short", 0).on("long", 1).waits("long2", Reason.RESOURCES)
    made.until(90).finishes("short").waits("long2", Reason.RESERVED_SERVERS)
    made.until(149).starts()
    made.until(150).finishes("long").starts("long2").on("long2", 1)


def test_the_p90_of_a_distribution_counts_and_a_walltime_bounds_it() -> None:
    made = story("1x4").reserve(0, from_s=100.0, until_s=200.0)
    wide = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 110.0, 500.0)
    made.job("risky", runs_s=10, predicted=wide).until(0).waits("risky", Reason.RESERVED_SERVERS)
    made.job("safe", runs_s=10, predicted=(*wide[:8], 90.0, 500.0)).until(1).starts("safe")
    made.job("bounded", runs_s=10, predicted=wide, walltime_s=80.0).until(2).starts("bounded")
    made.job("late", runs_s=10, predicted=wide, walltime_s=80.0, at_s=30).until(30).waits(
        "late", Reason.RESERVED_SERVERS
    )


@pytest.mark.parametrize("preempt", [True, False])
def test_who_cannot_be_predicted_starts_only_where_it_can_be_stopped(preempt: bool) -> None:
    made = story("1x4").reserve(0, from_s=100.0, until_s=200.0, preempt=preempt)
    made.job("a", runs_s=1000, predicted=None).until(0)
    if not preempt:
        made.waits("a", Reason.RESERVED_SERVERS).until(199).starts().until(200).starts("a")
        return
    made.starts("a").until(99).runs("a").until(100).preempts("a").waits("a", Reason.RESERVED_SERVERS)
    made.until(200).starts("a").until(1100).finishes("a")


def test_whoever_still_runs_is_left_to_end_if_so_wished() -> None:
    made = story("1x4")
    made.job("a", runs_s=150).until(0).starts("a").reserve(0, from_s=100.0, until_s=200.0, preempt=False)
    made.job("b", runs_s=10, at_s=120).until(120).waits("b", Reason.RESERVED_SERVERS).runs("a")
    made.until(150).finishes("a").starts().until(200).starts("b")


def test_only_the_owners_jobs_are_let_in() -> None:
    made = story("2x4").reserve(0, from_s=50.0, until_s=200.0, project="nlp")
    made.job("other", gpus=4, runs_s=500).until(0).starts("other").on("other", 1)
    made.job("other2", gpus=4, runs_s=20, at_s=60).job("mine", gpus=4, runs_s=20, at_s=61, project="nlp")
    made.until(60).waits("other2", Reason.RESERVED_SERVERS)
    made.until(61).starts("mine").on("mine", 0).waits("other2", Reason.RESOURCES)
    made.until(81).finishes("mine").waits("other2", Reason.RESERVED_SERVERS)
    made.until(199).starts().until(200).starts("other2")


def test_a_window_may_be_for_one_user_of_a_project() -> None:
    made = story("1x4").reserve(0, from_s=0.0, until_s=100.0, project="nlp", user="ann")
    made.job("bob", project="nlp", user="bob", runs_s=10).job("ann", project="nlp", user="ann", runs_s=10)
    made.until(0).starts("ann").waits("bob", Reason.RESERVED_SERVERS)


def test_who_is_stopped_for_it_goes_on_elsewhere_and_the_owner_gets_the_gpus() -> None:
    made = story("2x4", "srsf", guard_share=0)
    made.job("a", gpus=4, runs_s=300).job("b", gpus=4, runs_s=400).until(0).starts("a", "b")
    made.reserve(0, from_s=100.0, until_s=200.0, project="nlp").job("mine", gpus=4, runs_s=90, at_s=99, project="nlp")
    made.until(100)
    on_first = [name for name in ("a", "b") if made.record(name).preemptions]
    assert on_first
    assert made.record("mine").state in (JobState.STARTING, JobState.RUNNING)
    made.until(2000)
    assert {made.state(name) for name in ("a", "b", "mine")} == {JobState.SUCCEEDED}


def test_a_cancelled_reservation_frees_its_servers_at_once() -> None:
    made = story("1x4").reserve(0, from_s=0.0, until_s=1000.0)
    made.job("a", runs_s=10).until(0).waits("a", Reason.RESERVED_SERVERS).unreserve(1).until(1).starts("a")


def test_reservations_survive_a_restart() -> None:
    made = story("2x4").reserve(0, from_s=100.0, until_s=200.0)
    made.job("a", gpus=4, runs_s=150, predicted=None).job("b", gpus=4, runs_s=150, predicted=None).until(0).starts(
        "a", "b"
    )
    made.restart().until(99)
    made.restart().until(100)
    stopped = [name for name in ("a", "b") if made.record(name).preemptions]
    assert len(stopped) == 1
    made.restart().until(149).waits(stopped[0], Reason.RESERVED_SERVERS)
    made.until(1000)
    assert {made.state(name) for name in ("a", "b")} == {JobState.SUCCEEDED}


def test_without_preemption_gpus_are_set_aside_for_the_overdue_on_open_servers() -> None:
    made = story("2x4", guard_wait_s=60).reserve(0, from_s=0.0, until_s=5000.0)
    for number in range(60):
        made.job(f"n{number}", runs_s=40 + number % 7, at_s=number * 10)
    made.job("wide", gpus=4, runs_s=10, at_s=5).until(500)
    assert made.state("wide") is JobState.SUCCEEDED


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"wcs_duration", "wcs_workload"}))
@settings(max_examples=8, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(1, 60), st.sampled_from(["nlp", "cv"]), st.booleans(), st.integers(0, 100)
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 120),
    st.integers(1, 150),
    st.sampled_from([None, "nlp"]),
    st.booleans(),
)
def test_nobody_else_is_there_meanwhile_and_everybody_ends(
    name: str,
    jobs: list[tuple[int, int, str, bool, int]],
    from_s: int,
    lasts_s: int,
    project: str | None,
    preempt: bool,
) -> None:
    made = story("3x4", name)
    owner = {} if project is None else {"project": project}
    made.reserve(0, 1, from_s=float(from_s), until_s=float(from_s + lasts_s), preempt=preempt, **owner)
    for number, (gpus, runs_s, whose, known, at_s) in enumerate(jobs):
        made.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=at_s, project=whose, predicted="truth" if known else None)
    for at_s in range(0, 1500, 5):
        made.until(at_s)
        for job in made.engine.world.jobs.values():
            if from_s <= at_s < from_s + lasts_s and job.state is JobState.RUNNING and job.spec.project != project:
                assert job.placement is not None
                late = job.attempt_started_at_s is not None and job.attempt_started_at_s >= from_s
                assert set(job.placement.servers) <= {2} or not (preempt or late), f"job {job.id} at {at_s} s"
    assert {made.state(f"j{number}") for number in range(len(jobs))} == {JobState.SUCCEEDED}
