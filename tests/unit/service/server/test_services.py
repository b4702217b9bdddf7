"""The services of a database: who is alive, who was given up, who leads and for how long he may believe it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from policies.lifecycle import AttemptState
from policies.model.ids import AttemptId, JobId
from policies.model.job import JobSpec
from service.background.prune import prune_left_files
from service.config.settings import load_settings
from service.db import attempt_reports, services
from service.db import lease as leases
from service.db.lease import LEADER_LEASE, MARGIN_RATIO, FencedOff, LeaderLease
from service.db.services import Registered
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import ATTEMPTS, JOBS
from service.engine.events import Report, ReportKind
from service.server.startup import StartError, advertised_url, bind, host_of

A = Registered("a", "first", "http://a:1", "1", 60.0)
B = replace(A, id="b", name="second", url="http://b:1")


class Clock:
    """The database's, moved by hand."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(Database, "now_s", lambda self, session: made.time_s)
    return made


def lead_of(database: Database, clock: Clock, holder: str = "a") -> LeaderLease:
    return LeaderLease(database, LEADER_LEASE, holder, 10.0, clock.now_s)


def with_attempt(database: Database, number: int, host: str, state: AttemptState = AttemptState.RUNNING) -> JobId:
    """A job with one attempt of that number and host."""
    with database.writing() as session:
        (job,) = SqlStore(database).submit(session, [JobSpec(name="x", user="ada", gpus=1)], 0.0)
        row = {"id": f"{job}.{number}", "job_id": job, "number": number, "state": state.value, "host": host}
        more = {"placement": {}, "gpu_ids": [], "opened_at_s": 0.0}
        session.connection().execute(insert(ATTEMPTS), row | more)
    return job


def test_a_silent_service_is_condemned_and_comes_back_only_by_itself(any_database: Database, clock: Clock) -> None:
    database = any_database
    lead = lead_of(database, clock, "b")
    assert lead.take()
    assert lead.token is not None
    assert services.register(database, A, claim=False)
    clock.time_s += 29.0
    [(before_s, _)] = services.heartbeats_of(database, ["a"]).values()
    assert services.heartbeat(database, "a")
    assert not services.condemn(database, "a", before_s, LEADER_LEASE, lead.token)
    assert services.heartbeats_of(database, ["a", "nobody"]) == {"a": (clock.time_s, 60.0)}
    newest_s = clock.time_s
    clock.time_s += 30.0
    with pytest.raises(FencedOff):
        services.condemn(database, "a", newest_s, LEADER_LEASE, lead.token - 1)
    assert services.condemn(database, "a", newest_s, LEADER_LEASE, lead.token)
    assert services.condemn(database, "a", newest_s, LEADER_LEASE, lead.token)
    assert not services.heartbeat(database, "a")
    assert not services.register(database, A, claim=False)
    assert [(service.silent_s, service.condemned) for service in services.services(database)] == [(30.0, True)]
    services.reinstate(database, "a")
    assert services.heartbeat(database, "a")
    assert not services.condemn(database, "nobody", newest_s, LEADER_LEASE, lead.token)


def test_a_service_takes_the_attempts_of_its_folder_from_before_attempts_had_hosts(
    database: Database, clock: Clock
) -> None:
    old, ended, others = (
        with_attempt(database, 1, host, state)
        for host, state in (
            ("", AttemptState.RUNNING),
            ("", AttemptState.COMPLETED),
            ("b", AttemptState.RUNNING),
        )
    )
    services.register(database, A, claim=False)
    services.register(database, A, claim=True)
    with database.reading() as session:
        rows = session.connection().execute(select(ATTEMPTS.c.job_id, ATTEMPTS.c.host)).all()
    assert {row.job_id: row.host for row in rows} == {old: "a", ended: "", others: "b"}


def test_a_shorter_lease_counts_when_no_attempt_has_the_longer_one(any_database: Database, clock: Clock) -> None:
    """Supervisors keep the lease with which they were started, whatever the settings say since."""
    services.register(any_database, A, claim=False)
    job = with_attempt(any_database, 1, "a")

    def lease_s() -> float:
        return services.heartbeats_of(any_database, ["a"])["a"][1]

    for given_s, expected_s in ((20.0, 60.0), (90.0, 90.0), (20.0, 90.0)):
        services.register(any_database, replace(A, lease_s=given_s), claim=False)
        assert lease_s() == expected_s
    with any_database.writing() as session:
        closed = update(ATTEMPTS).where(ATTEMPTS.c.job_id == job).values(state=AttemptState.COMPLETED.value)
        session.connection().execute(closed)
    services.register(any_database, replace(A, lease_s=20.0), claim=False)
    assert lease_s() == 20.0


def test_who_leads_and_where_an_attempt_is(database: Database, clock: Clock) -> None:
    for service in (A, B):
        services.register(database, service, claim=False)
    assert lead_of(database, clock, "b").take()
    clock.time_s += 5.0
    services.heartbeat(database, "a")
    found = services.services(database)
    assert [(service.registered, service.leads) for service in found] == [(A, False), (B, True)]
    job = with_attempt(database, 1, "b")
    assert services.url_of_attempt(database, "a", job, 1) == B.url
    assert services.url_of_attempt(database, "a", job, 2) is None
    assert services.url_of_attempt(database, "b", job, 1) is None
    assert services.url_of_attempt(database, "a", with_attempt(database, 1, "gone"), 1) is None
    clock.time_s += 5.1
    assert not any(service.leads for service in services.services(database))


def test_services_that_were_not_seen_for_long_are_forgotten_unless_something_may_run_there(
    database: Database, clock: Clock
) -> None:
    for service in (A, B, replace(A, id="c")):
        services.register(database, service, claim=False)
    with_attempt(database, 1, "b")
    with_attempt(database, 1, "a", AttemptState.COMPLETED)
    clock.time_s += 100.0
    services.heartbeat(database, "c")
    assert services.delete_silent(database, 100.0) == 0
    clock.time_s += 0.1
    assert services.delete_silent(database, 100.0) == 1
    assert {service.registered.id for service in services.services(database)} == {"b", "c"}


def test_a_lead_is_trusted_for_less_than_it_lasts(any_database: Database, clock: Clock) -> None:
    first, second = lead_of(any_database, clock), lead_of(any_database, clock, "b")
    assert (first.holds(), first.token, first.renew()) == (False, None, False)
    assert first.take()
    assert not second.take()
    clock.time_s += 10.0 * (1.0 - MARGIN_RATIO) - 0.01
    assert first.holds()
    first.check()
    clock.time_s += 0.01
    assert not first.holds()
    with pytest.raises(FencedOff):
        first.check()
    assert not second.take()
    assert first.renew()
    assert first.holds()
    token = first.token
    clock.time_s += 10.0
    assert second.take()
    assert second.token == (token or 0) + 1
    assert not first.renew()
    assert (first.token, first.holds()) == (None, False)
    assert not first.take()
    second.release()
    assert first.take()


def test_a_lead_that_cannot_be_trusted_stands_until_another_one_has_it(any_database: Database, clock: Clock) -> None:
    """Without a renewal: whoever was stopped finds out by himself that somebody else leads."""
    first, second = lead_of(any_database, clock), lead_of(any_database, clock, "b")
    assert first.take()
    clock.time_s += 60.0
    assert (first.holds(), first.still_leads()) == (False, True)
    assert second.take()
    assert not first.still_leads()
    assert first.token is None
    assert second.still_leads()


def test_a_lead_that_is_lost_asks_nothing_of_the_database(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lost it while the database is away must stop leading at once."""
    lead = lead_of(database, clock)
    assert lead.take()
    lead.lose()
    monkeypatch.setattr(Database, "reading", None)
    assert not lead.still_leads()


@pytest.mark.parametrize("when", ["before it asks", "while it asks"])
def test_a_lead_that_is_lost_while_it_is_renewed_stays_lost(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The thread that renews it and the one whose transaction finds that it is over know nothing of each other."""
    lost = [False]

    def elapsed_s() -> float:
        if lost[0] and when == "before it asks":
            lead.lose()
        return 0.0

    def renew(*arguments: Any) -> leases.Lease | None:
        found = original(*arguments)
        if when == "while it asks":
            lead.lose()
        return found

    original = leases.renew
    lead = LeaderLease(database, LEADER_LEASE, "a", 10.0, elapsed_s)
    assert lead.take()
    lost[0] = True
    monkeypatch.setattr(leases, "renew", renew)
    assert not lead.renew()
    assert (lead.token, lead.holds()) == (None, False)
    lost[0] = False
    assert lead.take()


def test_the_lease_of_a_holder_that_has_ended_is_taken_at_once(database: Database, clock: Clock) -> None:
    dead: set[str] = set()
    first = lead_of(database, clock)
    second = LeaderLease(database, LEADER_LEASE, "b", 10.0, clock.now_s, dead.__contains__)
    assert first.take()
    assert not second.take()
    dead.add("a")
    assert second.take()
    assert second.token == 2
    assert not first.renew()


def test_a_holder_that_has_taken_the_lease_again_since_it_ended_keeps_it(database: Database, clock: Clock) -> None:
    """Its next process starts between the look at the lease and the look at the dead one."""
    again = lead_of(database, clock)
    second = LeaderLease(database, LEADER_LEASE, "b", 10.0, clock.now_s, lambda holder: again.take())
    assert lead_of(database, clock).take()
    assert not second.take()
    assert again.renew()
    assert (second.token, again.token) == (None, 2)


def test_a_lead_counts_from_before_it_asked(database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still while the database answered: the lease is as old as the question."""
    elapsed = [0.0]
    lead = LeaderLease(database, LEADER_LEASE, "a", 10.0, lambda: elapsed[0])
    original = Database.now_s

    def slow(self: Database, session: object) -> float:
        elapsed[0] += 9.0
        return clock.time_s

    monkeypatch.setattr(Database, "now_s", slow)
    assert lead.take()
    assert not lead.holds()
    monkeypatch.setattr(Database, "now_s", original)
    assert lead.renew()
    assert lead.holds()
    lead.lose()
    assert not lead.holds()


def test_reports_wait_until_they_are_committed(any_database: Database) -> None:
    database = any_database

    def tell(*reports: Report) -> None:
        with database.writing() as session:
            attempt_reports.store_reports(session, "a", reports)

    attempt, other = AttemptId("1.1"), AttemptId("2.1")
    started = Report(ReportKind.STARTED, 1.0, attempt)
    tell(started, Report(ReportKind.PROGRESS, 2.0, attempt, iteration=5.0))
    tell(Report(ReportKind.STARTED, 9.0, attempt), Report(ReportKind.EXITED, 4.0, other, exit_code=7, detail="x"))
    old = attempt_reports.pending_reports(database)[1]
    newer = Report(ReportKind.PROGRESS, 3.0, attempt, iteration=6.0)
    tell(newer)
    assert attempt_reports.pending_reports(database) == [
        started,
        newer,
        Report(ReportKind.EXITED, 4.0, other, exit_code=7, detail="x"),
    ]
    attempt_reports.delete_committed(database, [started, old])
    assert [report.at_s for report in attempt_reports.pending_reports(database)] == [3.0, 4.0]
    attempt_reports.delete_of_attempts(database, [other])
    attempt_reports.delete_committed(database, [newer])
    assert attempt_reports.pending_reports(database) == []


def test_any_number_of_reports_is_deleted_at_once(any_database: Database) -> None:
    attempts = [AttemptId(f"{job}.1") for job in range(attempt_reports.REPORTS_PER_READ_MAX + 1)]
    with any_database.writing() as session:
        attempt_reports.store_reports(session, "a", [Report(ReportKind.STARTED, 1.0, each) for each in attempts])
    committed = attempt_reports.pending_reports(any_database)
    assert len(committed) == attempt_reports.REPORTS_PER_READ_MAX
    attempt_reports.delete_committed(any_database, committed)
    assert len(attempt_reports.pending_reports(any_database)) == 1
    attempt_reports.delete_of_attempts(any_database, [AttemptId(f"{job}.1") for job in range(70_000)])
    assert attempt_reports.pending_reports(any_database) == []


def test_files_of_jobs_whose_time_is_over_go_wherever_they_are(database: Database) -> None:
    jobs = [with_attempt(database, 1, "a", AttemptState.COMPLETED) for _ in range(3)]
    with database.writing() as session:
        session.connection().execute(update(JOBS).where(JOBS.c.id == jobs[0]).values(files_deleted_at_s=1.0))
    gone, later = JobId(0), JobId(jobs[-1] + 5)
    deleted: list[JobId] = []
    kept = {*jobs, gone, later}
    assert prune_left_files(database, kept, deleted.extend) == 2
    assert sorted(deleted) == [gone, jobs[0]]


def test_a_folder_has_one_identity_for_ever(tmp_path: Path) -> None:
    first = host_of(tmp_path)
    assert not first.old
    (tmp_path / "attempts").mkdir()
    assert host_of(tmp_path) == first
    (tmp_path / "host_id").unlink()
    again = host_of(tmp_path)
    assert again.old
    assert again.id != first.id


def test_an_empty_identity_is_refused(tmp_path: Path) -> None:
    """As a power loss may leave it: two services without an id would be one."""
    (tmp_path / "host_id").touch()
    with pytest.raises(StartError, match="host_id is empty"):
        host_of(tmp_path)
    (tmp_path / "database_id").touch()
    with pytest.raises(StartError, match="database_id is empty"):
        bind(tmp_path, "0123")


@pytest.mark.parametrize(
    ("given", "address", "expected"),
    [
        ("https://x:1", ("127.0.0.1", 8765), "https://x:1"),
        ("", ("127.0.0.1", 8765), "http://127.0.0.1:8765"),
        ("", ("::1", 80), "http://[::1]:80"),
    ],
)
def test_an_address_for_the_others(given: str, address: tuple[str, int], expected: str, tmp_path: Path) -> None:
    assert advertised_url(load_settings({"data_dir": tmp_path, "advertise_url": given}), address) == expected
