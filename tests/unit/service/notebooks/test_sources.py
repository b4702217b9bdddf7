"""The data sources of notebooks: the database and the API give the same jobs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, func, insert, select

from policies.registry import make_policy
from predictor import dataset
from service.api.app import create_app
from service.client import Client
from service.db.migrate import upgrade
from service.db.servers import enroll
from service.db.session import open_database
from service.db.store import SqlStore
from service.db.tables import PREDICTIONS
from service.notebooks import SourceError, by_history, open_source, score, sources
from service.notebooks.live import LiveSource
from service.notebooks.source import Source
from service.notebooks.stored import StoredSource
from service.sim.experiment import SimulationOptions, run_jobs
from service.sim.jobs import prepare
from service.sim.workloads.generate import generate
from service.sim.workloads.model import WorkloadJob
from service.sim.workloads.table import write_workload
from tests.api.client import AppTransport
from tests.api.conftest import World, make_world
from tests.docs.test_notebooks import NAMES, Ran
from tests.parity.test_stores import CLUSTER, SqlSimulator

OPTIONS = SimulationOptions(restart_s=20.0)
WORKLOAD = generate(5, 60, gpus=CLUSTER.gpus, programs=6, users=3, communication=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service whose 60 jobs have all ended: the real engine, predictor and database."""
    world = ended_world(tmp_path_factory.mktemp("world"))
    yield world
    world.database.close()


def ended_world(folder: Path) -> World:
    world = make_world(folder)
    world.database.close()
    url = f"sqlite:///{folder / 'own.db'}"
    upgrade(url)
    world.database = open_database(url)
    world.store, world.servers = SqlStore(world.database), list(CLUSTER.servers)
    enroll(world.database, CLUSTER)
    prepared = prepare(WORKLOAD, CLUSTER)
    simulator = SqlSimulator(prepared.jobs, CLUSTER, make_policy("asrpt"), "trained", OPTIONS)
    simulator.use(world.database, "asrpt")
    simulator.run()
    return world


def live(world: World, newest: int = 1000) -> LiveSource:
    transport = AppTransport(create_app(world.dependencies()))
    return LiveSource(
        Client("http://127.0.0.1:8765", world.token, transport=transport), "http://127.0.0.1:8765", newest
    )


def stored(world: World, newest: int = 1000) -> StoredSource:
    return StoredSource(world.database, world.settings, newest)


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("SOONER_URL", "SOONER_DATABASE_URL", "SOONER_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SOONER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SOONER_PORT", "9")  # nobody listens there


def told(source: Source) -> list[tuple[object, ...]]:
    """What every source tells of a prediction."""
    return [
        (
            *(each.job_id, each.program, each.gpus, each.unit, each.p10, each.p50, each.p90),
            *(each.predicted, each.actual, each.source, each.model),
        )
        for each in source.predictions()
    ]


def test_service_and_database_give_the_same_predictions(world: World) -> None:
    database, service = stored(world), live(world)
    assert told(service) == told(database)
    assert len(told(database)) > 50
    assert [each.job_id for each in database.predictions()] == sorted(each.job_id for each in database.predictions())
    assert score(database.predictions()) == score(service.predictions())
    assert by_history(service.predictions()).keys() == by_history(database.predictions()).keys()


def test_the_database_has_more_data_than_the_service(world: World) -> None:
    prediction = stored(world).predictions()[-1]
    assert len(prediction.points) == 32
    assert prediction.points[0] <= prediction.p10 <= prediction.p50 <= prediction.p90 <= prediction.points[-1]
    assert "baseline/recurrence_median20" in prediction.others
    bare = live(world).predictions()[-1]
    assert (list(bare.points), dict(bare.others)) == ([], {})


def test_the_first_prediction_of_a_job_counts(world: World) -> None:
    """A job that was predicted again, and better, is scored as it was when it came."""
    before = told(stored(world))
    with world.database.writing() as session:
        connection = session.connection()
        again = dict(connection.execute(select(PREDICTIONS).where(PREDICTIONS.c.job_id == 30)).mappings().one())
        del again["id"]
        number = connection.execute(insert(PREDICTIONS).values(again | {"p50": again["actual"]})).inserted_primary_key[
            0
        ]
    try:
        assert told(stored(world)) == told(live(world)) == before
    finally:
        with world.database.writing() as session:
            session.connection().execute(delete(PREDICTIONS).where(PREDICTIONS.c.id == number))


def test_a_job_with_many_predictions_hides_neither_others_nor_its_first(world: World) -> None:
    """Each report may change an estimate."""
    before = told(stored(world, 7))
    with world.database.writing() as session:
        connection = session.connection()
        newest = dict(
            connection.execute(select(PREDICTIONS).where(PREDICTIONS.c.job_id == 60)).mappings().first() or {}
        )
        last = connection.execute(select(func.max(PREDICTIONS.c.id))).scalar_one()
        del newest["id"]
        connection.execute(insert(PREDICTIONS), [newest | {"p50": newest["actual"]}] * 9)
    try:
        assert told(stored(world, 7)) == told(live(world, 7)) == before
    finally:
        with world.database.writing() as session:
            session.connection().execute(delete(PREDICTIONS).where(PREDICTIONS.c.id > last))


def test_only_the_newest_jobs_are_read(world: World) -> None:
    for source in (stored(world, 7), live(world, 7)):
        assert [row[0] for row in told(source)] == list(range(54, 61))
        assert [job.job_id for job in source.workload().jobs] == [str(number) for number in range(54, 61)]
        assert len(source.past().jobs.jobs) == 7


def test_live_and_stored_predictions_have_actual_totals(world: World) -> None:
    truth = dict(enumerate(WORKLOAD.jobs, start=1))
    for row in stored(world).predictions():
        job = truth[row.job_id]
        assert (row.name, row.user, row.project, row.gpus) == (job.name, job.user, job.project, job.gpus)
        total = job.iterations if row.unit == "iterations" else job.duration_s
        assert row.actual == pytest.approx(total, rel=1e-6)


def test_workloads_of_the_service_and_of_its_database(world: World) -> None:
    exact, held = stored(world).workload(), live(world).workload()
    assert [job.job_id for job in exact.jobs] == [job.job_id for job in held.jobs]
    by_id = {str(number): job for number, job in enumerate(WORKLOAD.jobs, start=1)}
    for theirs, ours in zip(held.jobs, exact.jobs, strict=True):
        truth = by_id[ours.job_id]
        assert _same(ours) == _same(theirs) == _same(truth)
        assert ours.duration_s == pytest.approx(truth.duration_s, rel=2e-3)
        # Holding GPUs is working, starting again, and writing checkpoints.
        assert theirs.duration_s >= ours.duration_s - 1e-3
        assert theirs.submit_time_s == pytest.approx(ours.submit_time_s, abs=1e-3)


def _same(job: WorkloadJob) -> tuple[object, ...]:
    return (job.user, job.project, job.name, job.gpus, job.iterations)


def test_the_past_is_simulated_and_compared_with_actual_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The past repeats itself, as long as no job was predicted again: a simulation repeats the first predictions."""
    for ends in ("TELLING_RUNS", "FIRST_ENDS"):
        monkeypatch.setattr(dataset, ends, frozenset())
    world = ended_world(tmp_path)
    past = stored(world).past()
    assert past.recorded
    assert past.actual is not None
    again = run_jobs(past.jobs, past.cluster, make_policy("asrpt"), "recorded", OPTIONS)
    assert again.result.finished == past.actual.finished == 60
    assert again.result.mean_jct_s == pytest.approx(past.actual.mean_jct_s)
    service = live(world).past()
    assert (service.actual, service.recorded) == (None, False)
    assert len(service.jobs.jobs) == 60
    world.database.close()


def test_servers_are_those_of_the_service(world: World) -> None:
    for source in (stored(world), live(world)):
        assert source.cluster().servers == CLUSTER.servers


# Which source is meant.


def test_without_a_name_and_a_service_the_generator_is_used() -> None:
    source = open_source(jobs=20)
    assert source.synthetic
    assert "made-up" in source.origin
    assert "cannot reach Sooner at http://127.0.0.1:9" in source.origin
    with pytest.raises(SourceError, match="generator: jobs must be from 0"):
        open_source("generator", jobs=-1)
    assert len(source.workload().jobs) == 20


def test_the_service_of_this_machine_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = live(world)
    monkeypatch.setattr(sources, "service_client", lambda *_: ours._client)
    source = open_source()
    assert not source.synthetic
    assert source.origin.startswith("the service at http://127.0.0.1:8765")
    assert told(source) == told(ours)


def test_a_database_is_named_by_argument_or_variable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(world.database.url)
    assert told(open_source(url)) == told(stored(world))
    monkeypatch.setenv("SOONER_DATABASE_URL", url)
    assert told(open_source()) == told(stored(world))
    assert open_source("generator", jobs=5).synthetic, "what is named goes before what the environment says"


def test_a_table_has_a_given_or_a_generated_cluster(tmp_path: Path) -> None:
    file, servers = tmp_path / "jobs.csv", tmp_path / "cluster.yaml"
    write_workload(WORKLOAD, file)
    servers.write_text("schema: sooner.cluster/1\nservers: [{count: 3, gpus: 4}]\n")
    source = open_source(str(file), jobs=50, cluster=str(servers))
    assert not source.synthetic
    assert source.cluster().gpus == 12
    assert source.workload().jobs == WORKLOAD.jobs[:50]
    made_up = open_source(str(file)).cluster()
    jobs = WORKLOAD.jobs
    busy = sum(job.gpus * job.duration_s for job in jobs) / (jobs[-1].submit_time_s - jobs[0].submit_time_s)
    assert made_up.gpus - 8 < max(busy / 0.85, max(job.gpus for job in jobs)) <= made_up.gpus


def test_a_table_is_predicted_only_from_ended_jobs(tmp_path: Path) -> None:
    """Change what a job took that ends after all others came: nothing that was said of any job changes."""
    said = []
    for factor in (1, 50):
        jobs = list(WORKLOAD.jobs)
        changed = jobs[10]
        jobs[10] = replace(
            changed,
            duration_s=changed.duration_s * factor,
            iterations=(changed.iterations or 1) * factor,
            end_time_s=1e9,
        )
        write_workload(replace(WORKLOAD, jobs=tuple(jobs)), tmp_path / "jobs.csv")
        said.append([each.points for each in open_source(str(tmp_path / "jobs.csv")).predictions()])
    assert said[0] == said[1]
    assert len(said[0]) > 50


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("http://127.0.0.1:9", "cannot reach Sooner at http://127.0.0.1:9"),
        ("https://", "is not an address"),
        ("sqlite:////nowhere/at/all.db", "no history"),
        ("oracle://x", "oracle"),
        ("nowhere.csv", "nowhere.csv"),
        ("nowhere.parquet", "nowhere.parquet"),
    ],
)
def test_a_named_source_that_cannot_be_read_is_an_error_of_one_line(named: str, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(named)
    assert words in str(caught.value)
    assert str(caught.value).endswith("name another source, or 'generator'")
    assert "\n" not in str(caught.value)


def test_a_service_that_refuses_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = AppTransport(create_app(world.dependencies()))
    stranger = Client("http://127.0.0.1:8765", "wrong", transport=transport)
    monkeypatch.setattr(sources, "service_client", lambda *_: stranger)
    with pytest.raises(SourceError, match="oken"):
        open_source("http://127.0.0.1:8765")
    assert open_source(jobs=5).synthetic, "nobody named it"


def test_a_service_without_scored_predictions_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = make_world(tmp_path)
    ours = live(empty)
    monkeypatch.setattr(sources, "service_client", lambda *_: ours._client)
    source = open_source(jobs=5)
    assert source.synthetic
    assert "no job that http://127.0.0.1:8765 predicted has ended yet" in source.origin
    empty.database.close()


@pytest.mark.parametrize("read", ["workload", "past"])
def test_a_service_without_ended_jobs_and_its_database_say_so(tmp_path: Path, read: str) -> None:
    empty = make_world(tmp_path)
    for source in (live(empty), open_source(str(empty.database.url))):
        with pytest.raises(SourceError, match=r"^no job has run and ended in the .*; name another source, or"):
            getattr(source, read)()
    empty.database.close()


def test_an_empty_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,submit_time_s,gpus,duration_s\n")
    with pytest.raises(SourceError, match="holds no job"):
        open_source(str(tmp_path / "jobs.csv"))


def test_the_generator_changes_programs_from_two_thirds_on() -> None:
    plain, changed = (open_source("generator", jobs=30, change=change).workload().jobs for change in (1.0, 3.0))
    ratios = [after.duration_s / before.duration_s for before, after in zip(plain, changed, strict=True)]
    assert ratios == [pytest.approx(1.0)] * 20 + [pytest.approx(3.0)] * 10
    assert json.dumps([job.submit_time_s for job in plain]) == json.dumps([job.submit_time_s for job in changed])


# The notebooks on them.


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("05")])  # it reads no jobs
@pytest.mark.parametrize("kind", ["database", "service"])
def test_each_notebook_runs_on_a_service_and_on_its_database(
    world: World, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = live(world)
    monkeypatch.setattr(sources, "service_client", lambda *_: ours._client)
    less = {"POLICIES": ["asrpt"], "ERRORS": ["oracle", "none"]} if name.startswith("02") else {}
    ran = Ran(name, SOURCE=str(world.database.url) if kind == "database" else "http://127.0.0.1:8765", **less)
    assert not ran.names["source"].synthetic
    assert len(ran.pictures) >= 5
    if name.startswith("02"):
        assert set(ran.names["results"]) == {"asrpt"} | ({"(what happened)"} if kind == "database" else set())
        assert ran.names["predictor"] == ("recorded" if kind == "database" else "noisy:0.7")
