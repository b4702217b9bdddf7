"""Usage in the database: as attempts end, as the migration sums up the past, and as it is asked for; counted anew each time."""

import importlib.util
import random
from collections import Counter
from types import ModuleType

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import select, text

from policies.lifecycle import AttemptState, JobState
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import JobSpec
from policies.model.placement import ServerShare, place
from policies.model.reasons import Reason
from service.db.migrate import scripts_folder
from service.db.session import Database
from service.db.store import SqlStore
from service.db.tables import ATTEMPTS, JOBS, USAGE
from service.db.usage import GROUPS, Group, UsageWanted, usage
from service.domain.access import LOCAL, NO_PROJECT, Identity, Role
from service.domain.usage import DAY_S, Usage
from service.engine.record import AttemptRecord, JobRecord
from tests.conformance.store_suite import Driver, ended, touched

DAY = 20_000
T0 = DAY * DAY_S
END = T0 + 10 * DAY_S
PLACEMENT = place([ServerShare(ServerIndex(0), 1)])
EVERYTHING = UsageWanted(GROUPS, DAY - 100, DAY + 100, LOCAL)


def open_attempt(job: JobRecord, at_s: float) -> None:
    job.attempts += 1
    number = attempt_id(job.id, job.attempts)
    job.attempt = AttemptRecord(
        number, job.id, job.attempts, AttemptState.RUNNING, PLACEMENT, ((0,),), at_s, resume_service_s=job.service_s
    )
    job.state = JobState.RUNNING


def live(driver: Driver, job: JobRecord, chance: random.Random) -> None:
    """Some attempts, each of which counts in part; at the end the job runs, waits or has ended."""
    at_s = job.submitted_at_s
    for _ in range(chance.randint(0, 4)):
        at_s += chance.choice((0.0, 5.0, 40_000.0))
        open_attempt(job, at_s)
        attempt = job.attempt
        assert attempt is not None
        write = touched(job)
        write.attempts.append(attempt)
        driver.commit(write, at_s=at_s)
        length_s = chance.choice((0.0, 60.0, 50_000.0, 200_000.0))
        counted_s = length_s * chance.choice((0.0, 0.5, 1.0))
        if chance.random() < 0.15:
            job.progressing, job.anchor_s, job.service_s = True, at_s + 100.0, job.service_s
            driver.commit(touched(job), at_s=at_s)
            return
        at_s += length_s
        job.service_s += counted_s
        attempt.state = chance.choice((AttemptState.PREEMPTED, AttemptState.FAILED, AttemptState.COMPLETED))
        attempt.ended_at_s = at_s
        attempt.reason, job.attempt = Reason.PREEMPTED, None
        last = chance.random() < 0.3
        write = ended(job) if last else touched(job)
        write.attempts.append(attempt)
        job.state, job.finished_at_s = (JobState.SUCCEEDED, at_s) if last else (JobState.QUEUED, None)
        # The service may learn of the end later.
        at_s += chance.choice((0.0, 0.0, 100_000.0))
        driver.commit(write, at_s=at_s)
        if last:
            return


def fill(database: Database, seed: int, jobs: int = 12) -> None:
    chance = random.Random(seed)
    store = SqlStore(database)
    specs = [
        JobSpec(
            "a", chance.choice(("ann", "ben", "")), chance.randint(1, 8), project=chance.choice(("nlp", "", "=1+1"))
        )
        for _ in range(jobs)
    ]
    with database.writing() as session:
        for spec in specs:
            store.submit(session, [spec], T0 + chance.uniform(0.0, 3 * DAY_S))
    driver = Driver(store)
    for job in driver.admit():
        live(driver, job, chance)


def counted(database: Database, now_s: float) -> dict[Group, Usage]:
    """From the attempts themselves, in the most simple-minded way: each attempt cut at each midnight."""
    sums: dict[Group, Usage] = {}

    def at(day: float, job: object) -> Usage:
        return sums.setdefault((int(day), job.user, job.project), Usage())  # type: ignore[attr-defined]

    with database.reading() as session:
        connection = session.connection()
        for job in connection.execute(select(JOBS)):
            rows = connection.execute(
                select(ATTEMPTS).where(ATTEMPTS.c.job_id == job.id).order_by(ATTEMPTS.c.number)
            ).all()
            going_on = [row.resume_service_s for row in rows[1:]] + [job.service_s]
            for row, reached_s in zip(rows, going_on, strict=False):
                useful_s = reached_s - row.resume_service_s
                end_s = row.ended_at_s
                if end_s is None:
                    end_s = now_s
                    useful_s += now_s - job.anchor_s
                else:
                    at(end_s // DAY_S, job).attempts += 1
                    at(end_s // DAY_S, job).preemptions += row.state == "preempted"
                for day in range(DAY - 5, DAY + 60):
                    seconds = min(end_s, (day + 1) * DAY_S) - max(row.opened_at_s, day * DAY_S)
                    if seconds > 0:
                        at(day, job).held_gpu_s += seconds * job.gpus
                        at(day, job).useful_gpu_s += seconds * job.gpus * useful_s / (end_s - row.opened_at_s)
            if job.finished_at_s is not None:
                at(job.finished_at_s // DAY_S, job).jobs += 1
    return sums


def asked(database: Database, wanted: UsageWanted, now_s: float) -> dict[Group, Usage]:
    with database.reading() as session:
        found = usage(session.connection(), wanted, now_s, 10_000)
    assert found is not None
    assert [group for group, _ in found] == sorted(group for group, _ in found)
    return dict(found)


def assert_equal(found: dict[Group, Usage], expected: dict[Group, Usage]) -> None:
    assert found.keys() == expected.keys()
    for group, sums in found.items():
        for name in ("held_gpu_s", "useful_gpu_s", "attempts", "preemptions", "jobs"):
            assert getattr(sums, name) == pytest.approx(getattr(expected[group], name)), (group, name)


def summed(expected: dict[Group, Usage], *kept: int) -> dict[Group, Usage]:
    sums: dict[Group, Usage] = {}
    for group, more in expected.items():
        sums.setdefault(tuple(group[position] for position in kept), Usage()).add(more)
    return sums


@pytest.mark.parametrize("seed", range(6))
def test_what_is_added_up_as_attempts_end_is_what_the_attempts_say(any_database: Database, seed: int) -> None:
    fill(any_database, seed)
    expected = counted(any_database, END)
    assert expected
    assert_equal(asked(any_database, EVERYTHING, END), expected)
    for groups, kept in ((("user",), (1,)), (("project", "day"), (0, 2)), (("user", "project"), (1, 2)), ((), ())):
        found = asked(any_database, UsageWanted(groups, DAY - 100, DAY + 100, LOCAL), END)
        assert_equal(found, summed(expected, *kept))


def test_days_users_projects_and_what_the_caller_sees_narrow_it(database: Database) -> None:
    fill(database, 1, jobs=30)
    expected = counted(database, END)

    def only(**changes: object) -> dict[Group, Usage]:
        asked_for = {"groups": GROUPS, "first_day": DAY - 100, "end_day": DAY + 100, "caller": LOCAL, **changes}
        return asked(database, UsageWanted(**asked_for), END)  # type: ignore[arg-type]

    within = {group: sums for group, sums in expected.items() if DAY + 1 <= int(group[0]) < DAY + 3}
    assert_equal(only(first_day=DAY + 1, end_day=DAY + 3), within)
    assert_equal(only(user="ann"), {group: sums for group, sums in expected.items() if group[1] == "ann"})
    assert_equal(only(project=""), {group: sums for group, sums in expected.items() if group[2] == ""})
    ann = Identity("ann", Role.VIEWER, frozenset({"nlp", NO_PROJECT}), "k")
    seen = {group: sums for group, sums in expected.items() if ann.sees(str(group[2]), str(group[1]))}
    assert seen
    assert_equal(only(caller=ann), seen)
    nobody = Identity("eve", Role.VIEWER, frozenset(), "k")
    assert only(caller=nobody) == {}
    assert only(caller=nobody, groups=()) == {}


def test_more_groups_than_are_allowed_are_told_and_not_cut_off(database: Database) -> None:
    fill(database, 2)
    number = len(asked(database, EVERYTHING, END))
    with database.reading() as session:
        assert usage(session.connection(), EVERYTHING, END, number - 1) is None
        assert len(usage(session.connection(), EVERYTHING, END, number) or ()) == number


def _migration() -> ModuleType:
    path = next((scripts_folder() / "versions").glob("*_usage.py"))
    spec = importlib.util.spec_from_file_location("usage_migration", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(3))
def test_the_migration_sums_up_the_past_to_the_same(any_database: Database, seed: int) -> None:
    fill(any_database, seed)
    rows = select(USAGE).order_by(*USAGE.primary_key)
    with any_database.writing() as session:
        connection = session.connection()
        before = connection.execute(rows).all()
        connection.execute(text("DROP TABLE usage"))
        with Operations.context(MigrationContext.configure(connection)):
            _migration().upgrade()
        after = connection.execute(rows).all()
    assert [tuple(row)[:3] for row in after] == [tuple(row)[:3] for row in before]
    for new, old in zip(after, before, strict=True):
        assert tuple(new)[3:] == pytest.approx(tuple(old)[3:])


def test_a_commit_that_is_dropped_counts_nothing(database: Database) -> None:
    """The attempts of a stale row are not written, so they are not counted either."""
    store = SqlStore(database)
    with database.writing() as session:
        store.submit(session, [JobSpec("a", "ann", 1)], T0)
    driver = Driver(store)
    [job] = driver.admit()
    open_attempt(job, T0)
    assert job.attempt is not None
    write = touched(job)
    job.attempt.state, job.attempt.ended_at_s = AttemptState.FAILED, T0 + 60.0
    write.attempts.append(job.attempt)
    stale = write.expected_version
    write.expected_version = stale + 7
    assert driver.commit(write, at_s=T0 + 60.0) == {JobId(1)}
    assert asked(database, EVERYTHING, END) == {}
    write.expected_version = stale
    driver.commit(write, at_s=T0 + 60.0)
    assert Counter(asked(database, EVERYTHING, END).keys()) == {(DAY, "ann", ""): 1}
