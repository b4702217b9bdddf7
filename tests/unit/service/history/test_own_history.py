"""The service's past as a workload: a story that really went through the database, told again by the simulator."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from policies.catalogue import pipeline
from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.estimate import Estimate, Unit
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import ArrayPlace, JobSpec, Launch, Level, PreemptionSignal, Topology
from policies.model.placement import Placement, ServerShare, place
from policies.registry import make_policy
from policies.throughput import iteration_times, stretch_of
from service.db.recorded_jobs import RecordedJob, ended_in, recorded_jobs, stored_servers
from service.db.servers import enroll
from service.db.session import Database
from service.db.tables import JOBS
from service.engine.cycle import Reached
from service.engine.record import AttemptRecord, JobRecord
from service.history.workload import (
    EARLIER,
    KEPT_NO_WORK,
    NEVER_RAN,
    UNFINISHED,
    actual_result,
    own_history,
    simulated_jobs,
)
from service.sim.experiment import SimulationOptions, run, run_jobs
from service.sim.jobs import prepare
from service.sim.predictors import PredictorNameError
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload, write_workload
from tests.parity.test_stores import CLUSTER, SqlSimulator

OPTIONS = SimulationOptions(restart_s=20.0)


def rows(count: int = 12) -> tuple[WorkloadJob, ...]:
    """A crowded morning on eight GPUs; every third job communicates."""
    return tuple(
        WorkloadJob(
            f"j{number}",
            40.0 * number,
            (1, 4, 2, 8)[number % 4],
            300.0 + 97.0 * (number * 7 % 11),
            user=f"u{number % 3}",
            name=f"program{number % 4}",
            model="resnet50" if number % 3 == 0 else "",
        )
        for number in range(count)
    )


def live(database: Database, policy: str, jobs: Sequence[WorkloadJob]) -> None:
    """Let the real engine run the jobs on the real database."""
    enroll(database, CLUSTER)
    prepared = prepare(Workload("w", tuple(jobs)), CLUSTER)
    simulator = SqlSimulator(prepared.jobs, CLUSTER, make_policy(policy), "oracle", OPTIONS)
    simulator.use(database, policy)
    simulator.run()


@pytest.mark.parametrize("policy", ["fifo", "asrpt"])
def test_a_simulation_of_the_past_under_the_same_policy_repeats_it(database: Database, policy: str) -> None:
    """The whole way: engine, database, history, simulator. Truth, predictions and placements all have to be right."""
    live(database, policy, rows())
    past = recorded_jobs(database, None, None)
    history = own_history(past, CLUSTER, None, carry=True)
    assert history.left_out == {}
    prepared = simulated_jobs(history, CLUSTER)
    actual = actual_result(history, CLUSTER, prepared.jobs)
    again = run_jobs(prepared, CLUSTER, make_policy(policy), "recorded", OPTIONS)
    assert again.result.mean_jct_s == pytest.approx(actual.mean_jct_s, rel=1e-4)
    assert again.result.makespan_s == pytest.approx(actual.makespan_s, rel=1e-4)
    assert again.result.preemptions == actual.preemptions
    assert again.result.mean_queueing_delay_s == pytest.approx(actual.mean_queueing_delay_s, rel=1e-3)
    assert actual.policy == "actual"
    assert actual.lower_bound_mean_jct_s == pytest.approx(again.result.lower_bound_mean_jct_s)
    for job in history.jobs:
        assert job.row.end_time_s is not None
        truth = rows()[job.recorded.record.id - 1]
        # A total in iterations is whole; the run time follows it.
        assert job.row.duration_s == pytest.approx(truth.duration_s, rel=2e-3)
        assert (job.row.gpus, job.row.user, job.row.name, job.row.model) == (
            *(truth.gpus, truth.user, truth.name, truth.model),
        )


def test_an_exported_past_can_be_read_and_simulated(database: Database, tmp_path: Path) -> None:
    live(database, "fifo", rows(6))
    history = own_history(recorded_jobs(database, None, None), CLUSTER, None, carry=False)
    write_workload(history.workload, tmp_path / "past.csv")
    table_again = read_workload(tmp_path / "past.csv")
    assert table_again.jobs == history.workload.jobs
    assert run(table_again, CLUSTER, make_policy("fifo"), "oracle", OPTIONS).result.finished == 6
    with pytest.raises(PredictorNameError, match="own history, which sooner sim what-if replays"):
        run(table_again, CLUSTER, make_policy("fifo"), "recorded", OPTIONS)


def test_a_window_includes_earlier_jobs_with_their_remaining_work(database: Database) -> None:
    live(
        database,
        "fifo",
        [WorkloadJob("a", 0.0, 8, 100.0), WorkloadJob("b", 10.0, 8, 400.0), WorkloadJob("c", 300.0, 2, 50.0)],
    )
    # a: 0-100, b: 100-500, c: 500-550.
    whole = recorded_jobs(database, 200.0, None)
    assert [job.record.id for job in whole] == [2, 3]
    history = own_history(whole, CLUSTER, 200.0, carry=True)
    first, second = history.jobs
    assert (first.carried, first.done_ratio, first.row.submit_time_s) == (True, 0.25, 0.0)
    assert first.row.duration_s == pytest.approx(300.0)
    assert first.row.end_time_s == pytest.approx(300.0)
    assert (second.carried, second.row.submit_time_s) == (False, 100.0)
    assert second.row.end_time_s == pytest.approx(350.0)
    prepared = simulated_jobs(history, CLUSTER)
    (left, _) = (job.predicted for job in prepared.jobs)
    assert left is not None
    assert left.points == pytest.approx((300.0,)), "the oracle had said 400 s, and 100 of them were over"
    actual = actual_result(history, CLUSTER, prepared.jobs)
    assert actual.mean_jct_s == pytest.approx((300.0 + 250.0) / 2)
    again = run_jobs(prepared, CLUSTER, make_policy("fifo"), "recorded", OPTIONS)
    assert again.result.mean_jct_s == pytest.approx(actual.mean_jct_s)
    empty = own_history(whole, CLUSTER, 200.0, carry=False)
    assert ([job.recorded.record.id for job in empty.jobs], empty.left_out) == ([3], {EARLIER: 1})
    assert [job.record.id for job in recorded_jobs(database, None, 10.0)] == [1]
    assert [job.record.id for job in recorded_jobs(database, 100.0, 300.0)] == [2]


# By hand.

SPEC = JobSpec("train", "ada", 2, project="nlp", preemption=PreemptionSignal())


def past(number: int = 1, state: JobState = JobState.SUCCEEDED, **changes: Any) -> RecordedJob:
    """A job that came at 1000, ran 100 s on two GPUs and was over at 1150."""
    attempts = changes.pop("attempts", [ran(place([ServerShare(ServerIndex(0), 2)]), 1050.0, 1150.0)])
    predicted = changes.pop("predicted", None)
    made = JobRecord(
        id=JobId(number),
        spec=SPEC,
        submitted_at_s=1000.0,
        state=state,
        finished_at_s=1150.0,
        first_started_at_s=1050.0,
        iterations=40.0,
        reports_iterations=True,
        service_s=100.0,
        held_gpu_s=200.0,
    )
    record = replace(made, **changes)
    return RecordedJob(record, predicted, attempts, Reached(record.service_s, record.iterations))


def ran(placement: Placement, started_at_s: float, ended_at_s: float) -> AttemptRecord:
    """An attempt that has ended."""
    return AttemptRecord(
        AttemptId("1-1"),
        JobId(1),
        1,
        AttemptState.COMPLETED,
        placement,
        (),
        started_at_s,
        started_at_s=started_at_s,
        ended_at_s=ended_at_s,
    )


def test_only_jobs_that_ran_and_ended_are_included() -> None:
    found = own_history(
        [
            past(1, JobState.FAILED),
            past(2, JobState.CANCELLED, submitted_at_s=1010.0),
            past(3, JobState.RUNNING, finished_at_s=None),
            past(4, JobState.CANCELLED, service_s=0.0, attempts=[]),
            past(5, JobState.CANCELLED, service_s=0.0),
        ],
        CLUSTER,
        None,
        carry=True,
    )
    assert [(job.row.job_id, job.row.submit_time_s, job.row.final_state) for job in found.jobs] == [
        ("1", 0.0, "failed"),
        ("2", 10.0, "killed"),
    ]
    assert found.left_out == {UNFINISHED: 1, NEVER_RAN: 1, KEPT_NO_WORK: 1}
    assert found.start_s == 1000.0
    row = found.jobs[0].row
    assert (row.duration_s, row.end_time_s, row.iterations, row.project) == (100.0, 150.0, 40, "nlp")


def test_what_is_left_of_a_job_is_at_least_what_a_table_tells() -> None:
    """By rounding, a job that had ended when the window began may have a little left, which no table takes."""
    found = own_history([past(1, service_s=9e-7), past(2, service_s=1e-6)], CLUSTER, None, carry=True)
    assert [job.row.job_id for job in found.jobs] == ["2"]
    assert found.left_out == {KEPT_NO_WORK: 1}
    carried = own_history([past(1, service_s=9e-7)], CLUSTER, 1001.0, carry=True)
    assert carried.left_out == {EARLIER: 1}


def test_a_job_that_ended_before_its_submission_by_another_clock_ends_at_its_submission() -> None:
    """A table with a job that ends before its submission could not be read again."""
    job = past(submitted_at_s=1000.0, first_started_at_s=997.0, finished_at_s=998.0, service_s=1.0)
    history = own_history([job], CLUSTER, None, carry=True)
    (own,) = history.jobs
    assert (own.row.submit_time_s, own.row.end_time_s) == (0.0, 0.0)
    assert actual_result(history, CLUSTER, simulated_jobs(history, CLUSTER).jobs).mean_jct_s == 0.0


def test_profile_runs_are_a_program_of_their_own() -> None:
    """A table teaches the length of a program from its name; these runs are stopped after a few iterations."""
    spec = replace(SPEC, name="bert: profile, 1 GPU", recurrence_key="bert", labels={"sooner/profile": "5"})
    real = replace(SPEC, name="night", recurrence_key="bert")
    found = own_history(
        [past(1, JobState.CANCELLED, spec=spec), past(2, JobState.SUCCEEDED, spec=real)], CLUSTER, None, carry=True
    )
    assert [job.row.name for job in found.jobs] == ["bert: profile, 1 GPU", "bert"]


def test_preemptions_before_the_window_are_not_counted() -> None:
    place_a = place([ServerShare(ServerIndex(0), 2)])
    times = ((1000.0, 1010.0), (1020.0, 1060.0), (1070.0, 1120.0))
    attempts = tuple(ran(place_a, began, over) for began, over in times)
    job = past(preemptions=2, attempts=attempts, finished_at_s=1120.0, first_started_at_s=1000.0)
    for since_s, preemptions, left_s in ((1000.0, 2, 100.0), (1015.0, 1, 90.0), (1065.0, 0, 50.0)):
        history = own_history([job], CLUSTER, since_s, carry=True)
        actual = actual_result(history, CLUSTER, simulated_jobs(history, CLUSTER).jobs)
        assert (actual.preemptions, history.jobs[0].row.duration_s) == (preemptions, pytest.approx(left_s)), since_s


def _communicating() -> tuple[Cluster, RecordedJob, float]:
    """A job that ran for 100 s on two servers and 50 s on one, on NICs that make the first slow; and how slow."""
    graph, parallelism = pipeline("vgg19", 2)
    cluster = Cluster("c", (Server("a", 2, nic_bytes_s=1e8), Server("b", 2, nic_bytes_s=1e8)))
    times = iteration_times(graph, parallelism, cluster, None)
    spec = replace(SPEC, stage_graph=graph, parallelism=parallelism, model="vgg19")
    apart = place([ServerShare(ServerIndex(server), 1, (1,)) for server in (0, 1)])
    together = place([ServerShare(ServerIndex(0), 2, (2,))])
    attempts = (ran(apart, 1000.0, 1100.0), ran(together, 1100.0, 1150.0))
    slow = stretch_of(cluster, spec, times, apart)
    assert slow > 1.5
    return cluster, past(spec=spec, service_s=150.0, iteration_times=times, attempts=attempts), slow


def test_the_duration_excludes_the_slowdown_of_the_placement() -> None:
    cluster, job, slow = _communicating()
    (own,) = own_history([job], cluster, None, carry=False).jobs
    assert own.row.duration_s == pytest.approx(100.0 / slow + 50.0)
    assert (own.row.model, own.own_graph) == ("vgg19", False)


def test_a_custom_graph_is_simulated_but_marked_as_missing_in_a_table() -> None:
    cluster, job, _ = _communicating()
    graph = job.record.spec.stage_graph
    assert graph is not None
    heavier = replace(
        graph, stages=tuple(replace(stage, parameter_bytes=2 * stage.parameter_bytes) for stage in graph.stages)
    )
    job = replace(job, record=replace(job.record, spec=replace(job.record.spec, stage_graph=heavier)))
    history = own_history([job], cluster, None, carry=False)
    (own,) = history.jobs
    assert (own.row.model, own.own_graph) == ("", True)
    (simulated,) = simulated_jobs(history, cluster).jobs
    assert simulated.spec.stage_graph == heavier
    assert simulated.times is not None


def test_a_faster_network_shortens_the_same_iterations() -> None:
    graph, parallelism = pipeline("vgg19", 4)
    slow = Cluster("c", tuple(Server(name, 2, nic_bytes_s=1e8) for name in "ab"))
    fast = replace(slow, servers=tuple(replace(server, nic_bytes_s=1e10) for server in slow.servers))
    before, after = (iteration_times(graph, parallelism, each, None).min_s for each in (slow, fast))
    assert before > 1.5 * after
    spec = replace(SPEC, gpus=4, stage_graph=graph, parallelism=parallelism, model="vgg19")
    placement = place([ServerShare(ServerIndex(server), 2, (2,)) for server in (0, 1)])
    times = iteration_times(graph, parallelism, slow, None)
    job = past(spec=spec, iteration_times=times, attempts=(ran(placement, 1050.0, 1150.0),))
    history = own_history([job], slow, None, carry=False)
    (here,), (there,) = (simulated_jobs(history, each).jobs for each in (slow, fast))
    assert there.row.duration_s / here.row.duration_s == pytest.approx(after / before)


def test_jobs_keep_the_fields_that_policies_use() -> None:
    estimate = Estimate((10.0, 20.0), Unit.SERVICE_S, "told")
    first = past(1, predicted=estimate, spec=replace(SPEC, preemption=None))
    second = past(
        2,
        spec=replace(SPEC, priority=3, after=(JobId(1), JobId(99)), preemption=None),
        submitted_at_s=1001.0,
        reports_checkpoints=True,
    )
    history = own_history([second, first], CLUSTER, None, carry=False)
    one, two = simulated_jobs(history, CLUSTER).jobs
    assert (one.predicted, one.spec.preemption) == (estimate, None)
    assert one.spec.checkpoint_period_s == math.inf, "a stop loses its work, but it may be stopped: it states a period"
    assert (two.spec.priority, two.spec.after) == (3, (one.id,))
    assert two.spec.preemption is not None, "it has shown that it checkpoints"
    assert two.spec.checkpoint_period_s == 300.0


def test_the_simulator_uses_priorities_and_dependencies() -> None:
    """Three jobs of all GPUs at once: the urgent one first, and the one that waits for it next, whatever the order."""
    whole = replace(SPEC, gpus=8)
    jobs = [
        past(1, spec=replace(whole, after=(JobId(3),))),
        past(2, spec=whole),
        past(3, spec=replace(whole, priority=5)),
    ]
    prepared = simulated_jobs(own_history(jobs, CLUSTER, None, carry=False), CLUSTER)
    done = run_jobs(prepared, CLUSTER, make_policy("fifo"), "oracle", OPTIONS)
    ends = {outcome.job_id: outcome.finish_time_s for outcome in done.outcomes}
    assert ends == {"3": 100.0, "1": 200.0, "2": 300.0}


@pytest.mark.parametrize("needs", ["after", "after_any"])
def test_a_job_may_need_one_that_has_ended_before_its_submission(needs: str) -> None:
    jobs = [past(1), past(2, submitted_at_s=2000.0, spec=replace(SPEC, **{needs: (JobId(1),)}))]
    prepared = simulated_jobs(own_history(jobs, CLUSTER, None, carry=False), CLUSTER)
    done = run_jobs(prepared, CLUSTER, make_policy("fifo"), "oracle", OPTIONS)
    assert {outcome.job_id: outcome.finish_time_s for outcome in done.outcomes} == {"1": 100.0, "2": 1100.0}


def test_a_failed_job_has_done_the_work_after_its_last_checkpoint(database: Database) -> None:
    """Its record was taken back to the checkpoint; its label says what it had done."""
    live(database, "fifo", [WorkloadJob("a", 0.0, 8, 100.0)])
    taken_back = {"state": JobState.FAILED.value, "service_s": 0.0, "iterations": 0.0}
    database.execute(update(JOBS).values(**taken_back))
    past = recorded_jobs(database, None, None)
    (own,) = own_history(past, CLUSTER, None, carry=True).jobs
    assert (own.row.duration_s, own.row.final_state) == (100.0, "failed")
    assert past[0].record.service_s == 0.0
    assert ended_in(database, None, None, 10) == (1, None)


def test_a_job_that_no_server_can_hold_is_named() -> None:
    history = own_history([past(7)], CLUSTER, None, carry=False)
    tiny = Cluster("tiny", (Server("a", 1),))
    with pytest.raises(WorkloadError, match="job '7' does not fit cluster 'tiny': needs 2 GPUs"):
        simulated_jobs(history, tiny)
    assert simulated_jobs(history, tiny, skip_invalid=True).skipped == 1


TYPED = Cluster("typed", (Server("a", 4, "V100", cpus=16), Server("b", 8, "A100", cpus=16)))


def on_a100(**changes: Any) -> RecordedJob:
    """A job of eight GPUs that prefers the type of which there are four, and ran on the other."""
    spec = replace(SPEC, gpus=8, gpu_type="V100", gpu_type_fallbacks=("A100",))
    return past(1, spec=spec, attempts=[ran(place([ServerShare(ServerIndex(1), 8)]), 1050.0, 1150.0)], **changes)


def test_a_job_that_ran_on_its_second_type_is_simulated_on_it() -> None:
    history = own_history([on_a100()], TYPED, None, carry=True)
    (job,) = simulated_jobs(history, TYPED).jobs
    assert job.spec.gpu_types == ("V100", "A100")
    (done,) = run_jobs(simulated_jobs(history, TYPED), TYPED, make_policy("fifo"), "none", OPTIONS).outcomes
    assert done.placement.servers == (1,)
    # Servers without the preferred type hold it as well, whatever they call the other one.
    other = Cluster("other", (Server("x", 8, "NVIDIA A100-SXM4-80GB"),))
    (job,) = simulated_jobs(history, other).jobs
    assert job.spec.gpu_types == ("NVIDIA A100-SXM4-80GB",)
    neither = Cluster("neither", (Server("x", 8, "T4"),))
    with pytest.raises(
        WorkloadError, match="job '1' does not fit cluster 'neither': no server has GPUs of type 'V100'"
    ):
        simulated_jobs(history, neither)


def test_a_table_names_the_type_on_which_a_job_of_several_ran() -> None:
    workload = own_history([on_a100()], TYPED, None, carry=True).workload
    assert workload.jobs[0].gpu_type == "A100"
    assert prepare(workload, TYPED).skipped == 0, "the table can be simulated on the same servers"
    (one,) = own_history([past(spec=replace(SPEC, gpu_type="V100"))], TYPED, None, carry=True).workload.jobs
    assert one.gpu_type == "V100"


def test_all_requirements_of_a_job_are_simulated() -> None:
    """What decides where and when a job may run."""
    spec = replace(
        SPEC,
        topology=Topology(Level.SERVER),
        servers=1,
        cpus=16,
        memory_gib=4.0,
        gpu_memory_gib=10.0,
        min_run_s=50.0,
        walltime_s=900.0,
        declared_iterations=70,
        launch=Launch.GPU,
        command=("python", "train.py"),
        labels={"team": "a"},
        recurrence_key="nightly",
        hold=True,
        max_retries=0,
    )
    (job,) = simulated_jobs(own_history([past(spec=spec)], TYPED, None, carry=True), TYPED).jobs
    assert replace(job.spec, hold=True, max_retries=0) == spec
    assert not job.spec.hold
    assert job.spec.max_retries > 1000


def test_jobs_that_took_turns_for_cpus_take_turns_in_the_simulation() -> None:
    spec = replace(SPEC, cpus=16)
    one = past(1, spec=spec, first_started_at_s=1000.0, finished_at_s=1100.0)
    two = past(2, spec=spec, first_started_at_s=1100.0, finished_at_s=1200.0)
    server = replace(TYPED, servers=TYPED.servers[:1])
    history = own_history([one, two], server, None, carry=True)
    prepared = simulated_jobs(history, server)
    again = run_jobs(prepared, server, make_policy("fifo"), "none", OPTIONS).result
    assert (again.mean_jct_s, actual_result(history, server, prepared.jobs).mean_jct_s) == (150.0, 150.0)


def test_the_limit_of_an_array_holds_in_the_simulation() -> None:
    """Its number is that of its first simulated element, so that it is not taken for another job's."""
    element = ArrayPlace(0, 3, JobId(41), max_running=1)
    jobs = [
        past(2, spec=SPEC),
        past(42, spec=replace(SPEC, array=element), array_index=1),
        past(43, spec=replace(SPEC, array=element), array_index=2),
    ]
    prepared = simulated_jobs(own_history(jobs, CLUSTER, None, carry=True), CLUSTER)
    assert [job.spec.array for job in prepared.jobs] == [
        None,
        ArrayPlace(1, 3, JobId(2), max_running=1),
        ArrayPlace(2, 3, JobId(2), max_running=1),
    ]
    done = run_jobs(prepared, CLUSTER, make_policy("fifo"), "none", OPTIONS)
    assert {outcome.job_id: outcome.finish_time_s for outcome in done.outcomes} == {
        "2": 100.0,
        "42": 100.0,
        "43": 200.0,
    }


def test_removed_servers_keep_their_positions(database: Database) -> None:
    enroll(database, CLUSTER)
    enroll(database, Cluster("c", (Server("c", 2),)))
    found = stored_servers(database)
    assert [(server.name, record.down) for server, record in found] == [("a", True), ("b", True), ("c", False)]


def test_recorded_jobs_equal_the_stored_ones(database: Database) -> None:
    """Whatever the engine's record says of an ended job is what the past says."""
    live(database, "fifo", rows(4))
    with database.reading() as session:
        stored = session.connection().execute(select(JOBS).order_by(JOBS.c.id)).mappings().all()
    for row, job in zip(stored, recorded_jobs(database, None, None), strict=True):
        assert (job.record.finished_at_s, job.record.service_s, job.record.held_gpu_s) == (
            row["finished_at_s"],
            row["service_s"],
            row["held_gpu_s"],
        )
        assert len(job.attempts) == row["attempts"]
        assert job.predicted is not None
