"""A submission that needs a job, beside the pruning that deletes it: one waits for the other."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from policies.model.ids import JobId
from service.db.dialects import take_locks
from service.db.retention import DEPENDENCIES_LOCK, delete_jobs
from tests.api.client import client_of
from tests.api.conftest import app_of, make_world
from tests.api.helpers import plain_job

WAITING = text(
    "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
    " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
)


@pytest.mark.slow
def test_a_submission_waits_until_the_pruning_has_deleted_what_it_needs(tmp_path: Path, postgres_url: str) -> None:
    world = make_world(tmp_path, postgres_url)
    client, answers = client_of(app_of(world), world.token), list[int]()
    needed = JobId(client.post("/v1/jobs", json=plain_job()).json()["id"])

    def submit() -> None:
        answers.append(client.post("/v1/jobs", json={**plain_job(), "after": [needed]}).status_code)

    submission = threading.Thread(target=submit)
    with world.database.writing() as pruning:
        take_locks(pruning.connection(), DEPENDENCIES_LOCK)
        delete_jobs(pruning.connection(), [needed])
        submission.start()
        waits = False
        while submission.is_alive() and not waits:
            with world.database.reading() as session:
                waits = session.connection().execute(WAITING).scalar_one() > 0
    submission.join(60.0)
    world.database.close()
    assert waits
    assert answers == [422]
