"""The outbox and its delivery: what is put there, in which order of ids, how often it is tried, and what a failure costs."""

import json
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from policies.lifecycle import Cause, JobState
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.reasons import Reason
from service.background import webhooks as sending
from service.background.webhooks import WebhookSender
from service.config.settings import Settings
from service.db import access, webhooks
from service.db.rows import event_values
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import DELIVERIES, EVENTS, WEBHOOKS
from service.db.webhooks import OVERFLOW, Attempted, NewWebhook
from service.domain.webhooks import WebhookEvent, signature
from service.engine.events import JobEvent
from service.telemetry import log
from tests.unit.service.runtime.test_webhook_post import Receiver, receiver

ENDS = (WebhookEvent.SUCCEEDED, WebhookEvent.FAILED, WebhookEvent.CANCELLED)
SECRET = "a-secret-of-the-test"


@dataclass
class Post:
    """A leader's side: a database, a clock that stands, and a sender."""

    database: Database
    folder: Path
    now_s: float = 1_000_000.0
    leads: bool = True
    counted: list[str] = field(default_factory=list)

    def sender(self, **settings: Any) -> WebhookSender:
        given = {"webhook_private_addresses": True, "webhook_timeout_s": 60.0, **settings}
        chosen = Settings(data_dir=self.folder, **given)
        return WebhookSender(self.database, chosen, lambda: self.now_s, lambda: self.leads, self.counted.append)

    def add(
        self, url: str, events: Sequence[WebhookEvent] = ENDS, user: str | None = None, project: str | None = None
    ) -> int:
        with self.database.writing() as session:
            new = NewWebhook(url, events, "", user, project, SECRET)
            number = webhooks.add_webhook(session.connection(), new, 100, self.now_s)
        assert number is not None
        return number

    def submit(self, *specs: JobSpec) -> list[JobId]:
        with self.database.writing() as session:
            return SqlStore(self.database).submit(session, specs, self.now_s)

    def happen(self, job: JobId, target: JobState, cycle: int = 1, **more: Any) -> None:
        event = JobEvent(job, self.now_s, JobState.RUNNING, target, Cause.STOPPED, Reason.CRASHED, cycle, None)
        with self.database.writing() as session:
            session.connection().execute(insert(EVENTS), event_values(event) | more)

    def outbox(self) -> list[Any]:
        with self.database.reading() as session:
            return list(session.connection().execute(select(DELIVERIES).order_by(DELIVERIES.c.id)).all())

    def told(self) -> list[tuple[int, str, int]]:
        return [(row.webhook_id, row.event, row.body["job"]["id"]) for row in self.outbox()]


@pytest.fixture
def desk(any_database: Database, tmp_path: Path) -> Post:
    return Post(any_database, tmp_path)


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def test_an_event_is_delivered_once_signed_and_recorded(desk: Post, there: Receiver) -> None:
    hook = desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "ann", 2, project="nlp"))
    desk.happen(job, JobState.RUNNING)
    desk.happen(job, JobState.FAILED)
    sender = desk.sender()
    sender.run()
    sender.run()
    [(_, headers, body)] = there.got
    assert headers["sooner-event"] == "job.failed"
    assert headers["sooner-signature"] == signature(SECRET, 1_000_000, body)
    document = json.loads(body)
    assert document["id"].startswith("evt_")
    assert document["at"] == "1970-01-12T13:46:40Z"
    assert document["job"] == {
        "id": job,
        "name": "a",
        "user": "ann",
        "project": "nlp",
        "gpus": 2,
        "array_id": None,
        "array_index": None,
    }
    assert (document["source"], document["target"], document["reason"]) == ("running", "failed", "crashed")
    [row] = desk.outbox()
    assert (row.webhook_id, row.state, row.attempts, row.status, row.error) == (hook, "delivered", 1, 204, "")
    assert row.ended_at_s == desk.now_s
    assert desk.counted == ["delivered"]


def test_logs_name_the_host_of_a_webhook_and_nothing_more_of_its_url(
    desk: Post, there: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Path and query of many receivers are all that their messages need."""
    desk.add(f"{there.url}hooks/s3cr3t-path?key=s3cr3t-query")
    refused = desk.add("http://127.0.0.1:1/hooks/s3cr3t-path?key=s3cr3t-query")
    [job] = desk.submit(JobSpec("a", "ann", 1))
    desk.happen(job, JobState.FAILED)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        log.configure()
        desk.sender(webhook_attempts_max=1).run()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    logged = capsys.readouterr().err
    assert f"webhook {refused} (http://127.0.0.1:1)" in logged
    assert "s3cr3t" not in logged
    assert len(there.got) == 1
    assert [row.error for row in desk.outbox()] == ["", "cannot connect"]


def test_filters_and_event_types_are_applied_and_earlier_events_are_left_out(desk: Post) -> None:
    ann, ben = desk.submit(JobSpec("a", "ann", 1, project="nlp"), JobSpec("b", "ben", 1))
    desk.happen(ann, JobState.FAILED)
    everything = desk.add("http://127.0.0.1:1/", list(WebhookEvent))
    of_ann = desk.add("http://127.0.0.1:1/", ENDS, user="ann")
    of_nlp = desk.add("http://127.0.0.1:1/", [WebhookEvent.STARTED], project="nlp")
    assert desk.sender()._add_deliveries() == 0
    for job, state in (
        (ann, JobState.STARTING),
        (ann, JobState.RUNNING),
        (ben, JobState.FAILED),
        (ann, JobState.SUCCEEDED),
    ):
        desk.happen(job, state)
    assert desk.sender()._add_deliveries() == 4
    assert desk.told() == [
        (everything, "job.started", ann),
        (of_nlp, "job.started", ann),
        (everything, "job.failed", ben),
        (everything, "job.succeeded", ann),
        (of_ann, "job.succeeded", ann),
    ]
    assert desk.sender()._add_deliveries() == 0


def test_a_new_webhook_gets_no_earlier_events_while_another_still_does(desk: Post) -> None:
    first = desk.add("http://127.0.0.1:1/")
    before, after = desk.submit(JobSpec("a", "u", 1), JobSpec("b", "u", 1))
    desk.happen(before, JobState.FAILED)
    second = desk.add("http://127.0.0.1:1/")
    desk.happen(after, JobState.FAILED)
    desk.sender()._add_deliveries()
    assert desk.told() == [(first, "job.failed", before), (first, "job.failed", after), (second, "job.failed", after)]


def test_a_submission_is_read_and_not_delivered(desk: Post) -> None:
    """It has the target of a requeued job, and no source. Requests of release 0.1 wrote it for cycle 0."""
    desk.add("http://127.0.0.1:1/", list(WebhookEvent))
    first, second = desk.submit(JobSpec("a", "u", 1), JobSpec("b", "u", 1))
    desk.happen(first, JobState.QUEUED, cycle=0, source=None)
    desk.happen(second, JobState.QUEUED, source=None)
    desk.happen(first, JobState.QUEUED)
    assert desk.sender()._add_deliveries() == 3
    assert [(event, job) for _, event, job in desk.told()] == [("job.requeued", first)]
    desk.happen(second, JobState.QUEUED, source=None)
    assert desk.sender()._add_deliveries() == 1
    assert desk.sender()._add_deliveries() == 0


def test_two_concurrent_leaders_add_each_event_once(desk: Post) -> None:
    """One of them has lost the lead and does not know it yet."""
    hooks = [desk.add("http://127.0.0.1:1/") for _ in range(2)]
    jobs = desk.submit(*(JobSpec("a", "u", 1) for _ in range(30)))
    for job in jobs:
        desk.happen(job, JobState.FAILED)
    senders = [desk.sender() for _ in range(4)]
    barrier = threading.Barrier(4)

    def expand(sender: WebhookSender) -> None:
        barrier.wait()
        sender._add_deliveries()

    threads = [threading.Thread(target=expand, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(desk.told()) == sorted((hook, "job.failed", job) for hook in hooks for job in jobs)


def test_many_events_are_added_in_portions_each_once(desk: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "OUTBOX_ROWS_MAX", 3)
    chance = random.Random(3)
    for events, user in ((ENDS, None), (tuple(WebhookEvent), None), (tuple(WebhookEvent), "nobody")):
        desk.add("http://127.0.0.1:1/", events, user)
    jobs = desk.submit(*(JobSpec("a", "u", 1) for _ in range(20)))
    expected = []
    for job in jobs:
        state = chance.choice((JobState.FAILED, JobState.RUNNING))
        desk.happen(job, state)
        expected += [job] if state is JobState.FAILED else []
    portions = []
    sender = desk.sender()
    while done := sender._add_deliveries():
        portions.append(done)
    assert max(portions) <= 3
    assert sum(portions) == len(jobs)
    assert [job for hook, _, job in desk.told() if hook == 1] == expected
    assert [job for hook, _, job in desk.told() if hook == 2] == jobs


def test_a_failed_delivery_is_retried_with_growing_pauses_and_then_given_up(desk: Post, there: Receiver) -> None:
    there.answer = lambda: (500, {})
    desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender(webhook_attempts_max=3)
    for pause_s in (10.0, 20.0):
        sender.run()
        [row] = desk.outbox()
        assert (row.state, row.status, row.error) == ("pending", 500, "answered with status 500")
        assert row.next_at_s == desk.now_s + pause_s
        desk.now_s += pause_s - 1.0
        sender.run()
        assert len(there.got) == row.attempts, "not before its time"
        desk.now_s += 1.0
    sender.run()
    [row] = desk.outbox()
    assert (row.state, row.attempts, row.ended_at_s) == ("given_up", 3, desk.now_s)
    desk.now_s += 1e6
    sender.run()
    assert len(there.got) == 3
    assert desk.counted == ["failed", "failed", "given_up"]
    assert len({json.loads(body)["id"] for _, _, body in there.got}) == 1, "the receiver can tell repetitions"


def test_an_unreachable_receiver_does_not_delay_others_and_gets_one_attempt(desk: Post, there: Receiver) -> None:
    gone, fine = desk.add("http://127.0.0.1:1/"), desk.add(there.url)
    jobs = desk.submit(*(JobSpec("a", "u", 1) for _ in range(5)))
    for job in jobs:
        desk.happen(job, JobState.FAILED)
    desk.sender().run()
    assert len(there.got) == 5
    attempts = {hook: [row.attempts for row in desk.outbox() if row.webhook_id == hook] for hook in (gone, fine)}
    assert attempts == {gone: [1, 0, 0, 0, 0], fine: [1] * 5}
    assert [row.error for row in desk.outbox() if row.error] == ["cannot connect"]


def test_a_round_that_ended_early_continues_with_the_webhooks_that_it_missed(
    desk: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "HOOKS_AT_ONCE", 1)
    hooks = [desk.add("http://127.0.0.1:1/") for _ in range(3)]
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender()
    reached: list[int] = []

    async def attempt(row: Any) -> Attempted:
        reached.append(row.webhook_id)
        desk.leads = False
        return Attempted(row.id, row.attempts + 1, False, None, "no", desk.now_s)

    monkeypatch.setattr(sender, "_attempt", attempt)
    for _ in range(4):
        desk.leads = True
        sender.run()
    assert reached == [*hooks, hooks[0]]


def test_after_a_crash_before_recording_a_delivery_is_repeated(
    desk: Post, there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    dying = desk.sender()

    def die(outcomes: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(dying, "_store_outcomes", die)
    with pytest.raises(RuntimeError):
        dying.run()
    desk.sender().run()
    assert len(there.got) == 2
    assert there.got[0][2] == there.got[1][2]
    assert [row.state for row in desk.outbox()] == ["delivered"]


@pytest.mark.parametrize("state", ["delivered", "pending"])
def test_an_outcome_recorded_by_another_leader_is_kept(desk: Post, there: Receiver, state: str) -> None:
    desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender()

    def meanwhile() -> tuple[int, dict[str, str]]:
        with desk.database.writing() as session:
            session.connection().execute(update(DELIVERIES).values(state=state, attempts=1, status=299))
        return 500, {}

    there.answer = meanwhile
    sender.run()
    assert [(row.state, row.status) for row in desk.outbox()] == [(state, 299)]


def test_a_service_that_does_not_lead_sends_nothing(desk: Post, there: Receiver) -> None:
    desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    desk.leads = False
    desk.sender().run()
    assert (there.got, desk.outbox()) == ([], [])


@pytest.mark.parametrize("names", [("ann",), ("ann", "ben")])
def test_a_disabled_webhook_gets_no_events_also_later(desk: Post, names: tuple[str, ...]) -> None:
    with desk.database.writing() as session:
        connection = session.connection()
        for name in names:
            access.add_user(connection, name, desk.now_s)
            new = NewWebhook("http://127.0.0.1:1/", ENDS, name, name, None, SECRET)
            webhooks.add_webhook(connection, new, 100, desk.now_s)
        access.set_disabled(connection, "ann", desk.now_s)
    [of_ann, of_ben] = desk.submit(JobSpec("a", "ann", 1), JobSpec("b", "ben", 1))
    desk.happen(of_ann, JobState.FAILED)
    desk.happen(of_ben, JobState.FAILED)
    desk.sender()._add_deliveries()
    with desk.database.writing() as session:
        access.set_disabled(session.connection(), "ann", None)
    desk.sender()._add_deliveries()
    assert desk.told() == [(2, "job.failed", of_ben)][: len(names) - 1]


def test_deliveries_that_wait_are_not_sent_while_their_owner_is_disabled(desk: Post, there: Receiver) -> None:
    there.answer = lambda: (500, {})
    with desk.database.writing() as session:
        connection = session.connection()
        access.add_user(connection, "ann", desk.now_s)
        webhooks.add_webhook(connection, NewWebhook(there.url, ENDS, "ann", "ann", None, SECRET), 100, desk.now_s)
    [of_ann] = desk.submit(JobSpec("a", "ann", 1))
    desk.happen(of_ann, JobState.FAILED)
    desk.sender().run()
    for disabled_at_s, sent in ((desk.now_s, 1), (None, 2)):
        with desk.database.writing() as session:
            access.set_disabled(session.connection(), "ann", disabled_at_s)
        desk.now_s += 60.0
        desk.sender().run()
        assert len(there.got) == sent


def test_deliveries_beyond_the_limit_are_given_up_with_a_reason(desk: Post) -> None:
    desk.add("http://127.0.0.1:1/")
    jobs = desk.submit(*(JobSpec("a", "u", 1) for _ in range(4)))
    for job in jobs:
        desk.happen(job, JobState.FAILED)
    desk.sender(webhook_pending_max=3)._add_deliveries()
    assert [(row.state, row.error) for row in desk.outbox()] == [*[("pending", "")] * 3, ("given_up", OVERFLOW)]


def test_removing_a_webhook_deletes_its_secret(desk: Post, there: Receiver) -> None:
    hook, other = desk.add(there.url), desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    desk.sender()._add_deliveries()
    with desk.database.writing() as session:
        webhooks.remove_webhook(session.connection(), hook)
    desk.sender().run()
    assert [row.webhook_id for row in desk.outbox()] == [other]
    assert len(there.got) == 1
    with desk.database.reading() as session:
        assert list(session.connection().execute(select(WEBHOOKS.c.id)).scalars()) == [other]


def test_ended_deliveries_are_deleted_and_waiting_ones_are_kept(desk: Post, there: Receiver) -> None:
    desk.add(there.url)
    desk.add("http://127.0.0.1:1/")
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender(deliveries_kept_s=60.0)
    sender.run()
    desk.now_s += 61.0
    sender.run()
    assert [row.state for row in desk.outbox()] == ["pending"]


def test_without_webhooks_nothing_is_written(desk: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender()
    monkeypatch.setattr(desk.database, "writing", None)
    sender.run()


def test_closing_cancels_a_round_that_waits_for_a_receiver(desk: Post, there: Receiver) -> None:
    """A minute is the limit here; whoever takes the service down does not wait for it."""
    asked, enough = threading.Event(), threading.Event()

    def wait() -> tuple[int, dict[str, str]]:
        asked.set()
        enough.wait(60.0)
        return 204, {}

    there.answer = wait
    desk.add(there.url)
    [job] = desk.submit(JobSpec("a", "u", 1))
    desk.happen(job, JobState.FAILED)
    sender = desk.sender(webhook_timeout_s=60.0)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        assert asked.wait(30.0)
        sender.close()
        thread.join(30.0)
        assert not thread.is_alive()
    finally:
        enough.set()
    assert [row.state for row in desk.outbox()] == ["pending"]
    sender.run()
    assert len(there.got) == 1, "a closed sender sends nothing"
