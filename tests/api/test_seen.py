"""What lists leave out, against the plain rule: the statements and :meth:`Identity.sees` are two ways to say one thing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lifecycle import JobState
from service.db import reads
from service.db.access import owner_of, seen_jobs
from service.db.reads import JobFilter
from service.domain.access import LOCAL, NO_PROJECT, Identity, Role
from tests.api.conftest import World, make_world
from tests.api.test_paging import fill

USERS = ["ada", "bob", ""]
PROJECTS = ["nlp", "vision", NO_PROJECT]
STATES = [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED]

JOBS = [
    (state, user, project, name) for name in ("a", "b") for user in USERS for project in PROJECTS for state in STATES
]


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[World, dict[int, tuple[JobState, str, str, str]]]]:
    folder: Path = tmp_path_factory.mktemp("seen")
    world = make_world(folder)
    yield world, dict(zip(fill(world, JOBS), JOBS, strict=True))
    world.database.close()


identities = st.one_of(
    st.just(LOCAL),
    st.builds(
        Identity,
        st.sampled_from(["ada", "bob", "eve"]),
        st.just(Role.VIEWER),
        st.none() | st.frozensets(st.sampled_from([*PROJECTS, "other"])),
        st.just("key"),
    ),
)
filters = st.builds(
    JobFilter,
    st.lists(st.sampled_from(STATES), unique=True, max_size=3).map(tuple),
    st.none() | st.sampled_from([*USERS, "eve"]),
    st.none() | st.sampled_from([*PROJECTS, "other"]),
    st.none() | st.sampled_from(["a", "b", "c"]),
    st.none(),
    identities,
)


@settings(max_examples=100, deadline=None)
@given(wanted=filters, limit=st.integers(7, 40))
def test_pages_hold_what_is_seen_and_nothing_else(
    filled: tuple[World, dict[int, tuple[JobState, str, str, str]]], wanted: JobFilter, limit: int
) -> None:
    world, jobs = filled
    expected = [
        number
        for number, (state, user, project, name) in sorted(jobs.items(), reverse=True)
        if wanted.seen_by.sees(project, user)
        and (not wanted.states or state in wanted.states)
        and wanted.user in (None, user)
        and wanted.project in (None, project)
        and wanted.name in (None, name)
    ]
    found: list[int] = []
    before = None
    while True:
        with world.database.reading() as session:
            page = [each.job.id for each in reads.jobs(session.connection(), wanted, before, limit)]
        if not page:
            break
        assert len(page) <= limit
        found += page
        before = page[-1]
    assert found == expected


@settings(max_examples=50, deadline=None)
@given(caller=identities, asked=st.frozensets(st.integers(1, len(JOBS) + 5)))
def test_jobs_by_number_are_seen_by_the_same_rule(
    filled: tuple[World, dict[int, tuple[JobState, str, str, str]]], caller: Identity, asked: frozenset[int]
) -> None:
    world, jobs = filled
    with world.database.reading() as session:
        connection = session.connection()
        found = seen_jobs(connection, asked, caller)
        owners = {number: owner_of(connection, number) for number in asked}
    assert found == {number for number in asked if number in jobs and caller.sees(jobs[number][2], jobs[number][1])}
    assert {number: owner for number, owner in owners.items() if owner is not None} == {
        number: (jobs[number][2], jobs[number][1]) for number in asked if number in jobs
    }
