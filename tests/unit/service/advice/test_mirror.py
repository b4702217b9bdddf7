"""The mirror: what a cluster's nodes and jobs become in the engine's world, and what is left out with a reason."""

from collections.abc import Sequence
from dataclasses import replace

from policies.lifecycle import JobState
from policies.model.estimate import Estimate, Unit
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.registry import make_policy
from service.advice import mirror as rooms
from service.advice.mirror import Mirrored, MirrorJob, MirrorNode, Seen, mirror
from service.engine.record import JobRecord
from service.forecast.forecast import ForecastOptions, forecast

NOW_S = 1_700_000_000.0
NODES = [MirrorNode("node1", 4, "a100", ("main",)), MirrorNode("node2", 4, "a100", ("main",))]
JOB = MirrorJob("7", (7, 0), "train", "ann", 2, NOW_S - 60.0, account="vision", gpus_a_node=2, limit_s=3600.0)


def _mirrored(jobs: Sequence[MirrorJob], nodes: Sequence[MirrorNode] = NODES, jobs_max: int = 1000) -> Mirrored:
    return mirror(Seen(NOW_S, nodes, jobs), jobs_max)


def _record(mirrored: Mirrored, key: str) -> JobRecord:
    number = next(number for number, job in mirrored.jobs.items() if job.key == key)
    return next(record for record in mirrored.snapshot.jobs if record.id == number)


def test_a_waiting_job() -> None:
    record = _record(_mirrored([JOB]), "7")
    assert (record.state, record.submitted_at_s, record.held) == (JobState.QUEUED, NOW_S - 60.0, False)
    spec = record.spec
    assert (spec.name, spec.user, spec.project, spec.gpus, spec.walltime_s) == ("train", "ann", "vision", 2, 3600.0)
    assert not record.graceful and spec.max_retries == 0


def test_a_running_job_holds_its_gpus_and_has_run_since_its_start() -> None:
    job = replace(JOB, started_at_s=NOW_S - 30.0, held_gpus={"node2": 2})
    mirrored = _mirrored([job])
    record = _record(mirrored, "7")
    assert record.state is JobState.RUNNING and record.attempt is not None
    assert [(share.server, share.gpus) for share in record.attempt.placement.shares] == [(1, 2)]
    assert record.done(Unit.SERVICE_S, NOW_S) == 30.0


def test_the_forecast_of_a_running_job_knows_how_long_it_has_run() -> None:
    job = replace(JOB, started_at_s=NOW_S - 30.0, held_gpus={"node2": 2})
    mirrored = _mirrored([job])
    world = mirrored.world({JobId(1): Estimate((100.0,), Unit.SERVICE_S, "test")})
    made = forecast(world, mirrored.order(), options=ForecastOptions(samples=5))
    finish = made.jobs[JobId(1)].finish
    assert finish is not None and finish.p50_s == NOW_S + 70.0


def test_states_of_nodes() -> None:
    nodes = [MirrorNode("a", 4, drained=True), MirrorNode("b", 4, down=True), MirrorNode("c", 0), MirrorNode("d", 2)]
    snapshot = _mirrored([], nodes).snapshot
    assert [server.name for server in snapshot.cluster.servers] == ["a", "b", "d"]
    assert [(record.drained, record.down) for record in snapshot.servers] == [
        (True, False),
        (False, True),
        (False, False),
    ]


def test_jobs_that_cannot_be_mirrored_are_counted_by_reason() -> None:
    jobs = [
        replace(JOB, key="1", gpus=0),
        replace(JOB, key="2", allowed=frozenset({"cpu1"})),
        replace(JOB, key="3", gpus=5, gpus_a_node=5),
        replace(JOB, key="4", gpu_type="h100"),
        replace(JOB, key="5", started_at_s=NOW_S, held_gpus={"node1": 2}),
        replace(JOB, key="6", started_at_s=NOW_S, held_gpus={"node1": 2}),
        replace(JOB, key="8", started_at_s=NOW_S, held_gpus={"node1": 2}),
        replace(JOB, key="9", after=("4",)),
        replace(JOB, key="10", after=("9",)),
    ]
    mirrored = _mirrored(jobs)
    assert {job.key for job in mirrored.jobs.values()} == {"5", "6"}
    assert mirrored.left_out == {
        rooms.NO_GPUS: 1,
        rooms.NO_NODES: 2,
        rooms.TOO_LARGE: 1,
        rooms.ODD_HOLDING: 1,
        rooms.UNKNOWN_DEPENDENCY: 2,
    }


def test_of_a_long_queue_the_first_jobs_are_kept() -> None:
    jobs = [replace(JOB, key=str(number), serial=(number, 0), priority=number) for number in range(20)]
    mirrored = _mirrored(jobs, jobs_max=5)
    assert {job.key for job in mirrored.jobs.values()} == {"15", "16", "17", "18", "19"}
    assert mirrored.left_out == {"comes after the first 5 waiting jobs": 15}


def test_held_jobs_and_begin_times() -> None:
    mirrored = _mirrored(
        [
            replace(JOB, key="1", serial=(1, 0), held=True),
            replace(JOB, key="2", serial=(2, 0), eligible_at_s=NOW_S + 500.0),
        ]
    )
    world = mirrored.world({number: Estimate((100.0,), Unit.SERVICE_S, "test") for number in mirrored.jobs})
    made = forecast(world, mirrored.order(), options=ForecastOptions(samples=5))
    assert made.jobs[JobId(1)].start is None and "held" in (made.jobs[JobId(1)].reason or "")
    start = made.jobs[JobId(2)].start
    assert start is not None and start.p50_s == NOW_S + 500.0
    assert _record(mirrored, "1").reason is Reason.HELD


def test_dependencies() -> None:
    jobs = [replace(JOB, key="1", serial=(1, 0)), replace(JOB, key="2", serial=(2, 0), after=("1",))]
    mirrored = _mirrored(jobs)
    world = mirrored.world({number: Estimate((100.0,), Unit.SERVICE_S, "test") for number in mirrored.jobs})
    start = forecast(world, mirrored.order(), options=ForecastOptions(samples=5)).jobs[JobId(2)].start
    assert start is not None and start.p50_s == NOW_S + 100.0


def test_an_array_runs_as_many_tasks_at_a_time_as_it_allows() -> None:
    tasks = [
        replace(JOB, key=f"7_{task}", serial=(7, task), gpus=1, gpus_a_node=1, array="7", array_running_max=2)
        for task in range(5)
    ]
    mirrored = _mirrored(tasks)
    world = mirrored.world({number: Estimate((100.0,), Unit.SERVICE_S, "test") for number in mirrored.jobs})
    for policy in (mirrored.order(), make_policy("asrpt", {"preemption": "never", "release": "early"})):
        made = forecast(world, policy, options=ForecastOptions(samples=5))
        starts = [each.start.p50_s - NOW_S for each in made.jobs.values() if each.start is not None]
        assert starts == [0.0, 0.0, 100.0, 100.0, 200.0]


def test_a_partition_of_nodes_is_kept_under_any_policy() -> None:
    """Both partitions have GPUs of one type; the job of the busy one does not start on the idle one."""
    nodes = [MirrorNode("node1", 4, "a100", ("old",)), MirrorNode("node2", 4, "a100", ("new",))]
    busy = replace(JOB, key="1", serial=(1, 0), gpus=4, gpus_a_node=4, started_at_s=NOW_S, held_gpus={"node1": 4})
    waits = replace(JOB, key="2", serial=(2, 0), gpus=4, gpus_a_node=4, allowed=frozenset({"node1"}))
    mirrored = _mirrored([busy, waits], nodes)
    assert {server.gpu_type for server in mirrored.snapshot.cluster.servers} == {"a100 (new)", "a100 (old)"}
    world = mirrored.world({number: Estimate((100.0,), Unit.SERVICE_S, "test") for number in mirrored.jobs})
    for policy in (mirrored.order(), make_policy("asrpt", {"preemption": "never", "release": "early"})):
        start = forecast(world, policy, options=ForecastOptions(samples=5)).jobs[JobId(2)].start
        assert start is not None and start.p50_s == NOW_S + 100.0


def test_names_of_types_are_those_of_the_cluster() -> None:
    nodes = [MirrorNode("node1", 4, "a100", ("main",)), MirrorNode("node2", 8, "", ("main",))]
    mirrored = _mirrored([replace(JOB, gpu_type="a100")], nodes)
    assert [server.gpu_type for server in mirrored.snapshot.cluster.servers] == ["a100", "gpu"]
    assert _record(mirrored, "7").spec.gpu_types == ("a100",)
    assert mirrored.requests()[0].spec.gpu_type == "a100"
