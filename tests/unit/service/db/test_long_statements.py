"""However many rows one call concerns, no statement has more parameters than a database takes: PostgreSQL 65,535."""

from dataclasses import replace

from sqlalchemy import func, insert, select

from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from service.db import commit, webhooks
from service.db.retention import delete_labels
from service.db.session import Database
from service.db.tables import DELIVERIES, THROUGHPUT, WEBHOOKS
from tests.conformance.store_suite import SPEC

MANY = 70_000


def test_labels(any_database: Database) -> None:
    with any_database.writing() as session:
        delete_labels(session.connection(), range(1, MANY))


def test_deliveries(any_database: Database) -> None:
    hook = {"id": 1, "url": "http://a.example/", "events": [], "owner": "", "secret": "s", "after_event": 0}
    delivery = {"webhook_id": 1, "event": "test", "body": {}, "state": "delivered", "attempts": 1, "error": ""}
    with any_database.writing() as session:
        connection = session.connection()
        connection.execute(insert(WEBHOOKS), [hook | {"created_at_s": 0.0}])
        connection.execute(
            insert(DELIVERIES), [delivery | {"created_at_s": 0.0, "next_at_s": 0.0, "ended_at_s": 1.0}] * MANY
        )
        assert webhooks.delete_ended(connection, 2.0, MANY) == MANY


def test_measured_speeds(any_database: Database) -> None:
    label = EndedJob(JobId(1), SPEC, 0.0, 1.0, 10.0, 1.0, "succeeded", 0.1, "V100", 1)
    labels = [replace(label, spec=replace(SPEC, name=f"job-{number}")) for number in range(MANY // 6)]
    for cycle in (1, 2):
        with any_database.writing() as session:
            commit._learn_throughput(session.connection(), labels, float(cycle))
    with any_database.reading() as session:
        counted = session.connection().execute(select(func.count(), func.min(THROUGHPUT.c.count))).one()
    assert tuple(counted) == (len(labels), 2)
