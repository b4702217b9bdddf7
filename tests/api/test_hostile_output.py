"""The API reads the output of jobs that put strange things in place of their files."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fastapi import FastAPI
from httpx import Client

from policies.model.ids import JobId, attempt_id
from service.engine.events import ReportKind
from service.executors.local import LocalExecutor
from tests.api.client import client_of
from tests.api.conftest import World
from tests.api.helpers import plain_job
from tests.hostile import Trick, each_trick, within
from tests.local_executor import CLUSTER, House, WallClock, house, launch, python

__all__ = ["house"]


def reading_files(app: FastAPI, world: World) -> LocalExecutor:
    """Let the application read the folders of attempts in the world's data folder."""
    executor = LocalExecutor(world.settings.data_dir, CLUSTER, clock=WallClock(), environ={})
    app.state.dependencies = replace(app.state.dependencies, attempts=executor)
    return executor


@each_trick
def test_logs_of_sixty_jobs(app: FastAPI, client: Client, world: World, trick: Trick) -> None:
    """More requests at once than there are threads that answer."""
    reading_files(app, world)
    jobs = [client.post("/v1/jobs", json=plain_job()).json()["id"] for _ in range(60)]
    for job in jobs:
        output = world.settings.data_dir / "attempts" / attempt_id(JobId(job), 1) / "output"
        output.mkdir(parents=True)
        trick(output / "0")
        (output / "²").touch()

    def statuses() -> set[int]:
        with ThreadPoolExecutor(60) as threads:
            asked = [threads.submit(client_of(app, world.token).get, f"/v1/jobs/{job}/logs") for job in jobs]
            found = {answer.result().status_code for answer in asked}
        return found | {client.get(path).status_code for path in ("/healthz", "/readyz")}

    assert within(statuses, 60.0) == {200}


@each_trick
def test_progress_of_an_attempt_without_a_file(app: FastAPI, client: Client, house: House, trick: Trick) -> None:
    executor = house.executor
    app.state.dependencies = replace(app.state.dependencies, attempts=executor)
    executor.send([launch(python("import signal; print('ready', flush=True); signal.pause()"))])
    house.wait_output("ready")
    house.wait_report(ReportKind.STARTED)
    file = house.folder() / "progress.jsonl"
    file.unlink()
    trick(file)
    headers = {"Authorization": f"Bearer {executor._keys.identity('1.1').token}"}
    path = "/v1/attempts/1.1/progress"
    answer = within(lambda: client.post(path, json={"iteration": 5}, headers=headers))
    assert answer.status_code == 202
    victim = house.folder() / "victim"
    assert not victim.exists() or victim.read_text() == "secret"
    assert within(executor.poll) is not None
