"""Attempts written as the engine would, and answers of the timeline read back, for tests."""

from collections.abc import Iterator
from typing import Any

from httpx import Client
from sqlalchemy import insert, select

from policies.lifecycle import AttemptState, JobState
from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.model.reasons import Reason
from service.db.forecasts import NewForecast, store_forecasts
from service.db.retention import delete_jobs
from service.db.rows import attempt_values, new_job_values
from service.db.servers import enroll
from service.db.tables import ATTEMPTS, HISTORY, JOBS, SERVERS
from service.domain.forecast_scores import Milestone
from service.engine.record import AttemptRecord, JobRecord
from tests.api.conftest import NOW_S, World

Held = tuple[tuple[int, tuple[int, ...]], ...]
"""Servers by position, and the indices of the GPUs there."""


def put(
    world: World,
    job: int,
    opened_s: float,
    ended_s: float | None = None,
    held: Held = ((0, (0,)),),
    *,
    number: int = 1,
    name: str = "n",
    user: str = "u",
    project: str = "p",
    got: tuple[tuple[int, ...], ...] | None = None,
) -> str:
    """An attempt with its job, written as the engine would; returns its id."""
    spec = JobSpec(name, user, sum(len(ids) for _, ids in held), project)
    attempt = AttemptRecord(
        AttemptId(f"{job}.{number}"),
        JobId(job),
        number,
        AttemptState.RUNNING if ended_s is None else AttemptState.COMPLETED,
        place([ServerShare(ServerIndex(server), len(ids)) for server, ids in held]),
        tuple(ids for _, ids in held),
        NOW_S + opened_s,
        ended_at_s=None if ended_s is None else NOW_S + ended_s,
        reason=None if ended_s is None else Reason.COMPLETED,
        got_gpu_ids=got,
    )
    with world.database.writing() as session:
        connection = session.connection()
        if number == 1:
            record = JobRecord(JobId(job), spec, NOW_S, state=JobState.RUNNING)
            connection.execute(insert(JOBS), [new_job_values(spec, NOW_S, record) | {"id": job}])
        connection.execute(insert(ATTEMPTS), [attempt_values(attempt)])
    return attempt.id


def with_servers(world: World, *servers: Server) -> None:
    """These servers instead of those of the world."""
    world.servers = list(servers)
    world.database.execute(SERVERS.delete())
    enroll(world.database, Cluster("test", servers))


def forecast(world: World, job: int, *points_s: float, milestone: Milestone = Milestone.FINISH) -> None:
    p10_s, p50_s, p90_s = (NOW_S + point_s for point_s in points_s)
    new = NewForecast(JobId(job), milestone, world.now_s, 1, "fifo", "", "told", 16, 1, p10_s, p50_s, p90_s)
    with world.database.writing() as session:
        store_forecasts(session.connection(), [new])


def clear(world: World) -> None:
    with world.database.writing() as session:
        jobs = session.connection().execute(select(JOBS.c.id)).scalars().all()
        delete_jobs(session.connection(), [JobId(job) for job in jobs])
        session.connection().execute(HISTORY.delete())


def ask(client: Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/v1/timeline", params={key: value for key, value in query.items() if value is not None})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def pages(client: Client, **query: Any) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = ask(client, **query, after=after)
        yield page
        after = page["next"]
        if after is None:
            return


Entry = dict[str, Any]


def entries(document: dict[str, Any]) -> dict[str, Entry]:
    """The attempts of an answer by id, each with its bars as (server, first GPU, GPUs)."""
    columns = document["attempts"]
    assert len({len(column) for column in columns.values()}) == 1
    found: list[Entry] = [
        dict(zip(columns, values, strict=True)) | {"bars": set()} for values in zip(*columns.values(), strict=True)
    ]
    bars = document["bars"]
    for attempt, server, first_gpu, gpus in zip(*bars.values(), strict=True):
        found[attempt]["bars"].add((document["servers"][server]["name"], first_gpu, gpus))
    by_id = {entry["id"]: entry for entry in found}
    assert len(by_id) == len(found)
    return by_id
