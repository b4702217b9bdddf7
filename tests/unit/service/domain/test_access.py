"""Who may see and change what, rule by rule."""

import pytest

from service.domain.access import LOCAL, NO_PROJECT, Identity, Role


def caller(role: Role, *projects: str, user: str = "ada") -> Identity:
    everything = role.covers(Role.OPERATOR)
    return Identity(user, role, None if everything else frozenset((*projects, NO_PROJECT)), "k1")


def test_each_role_includes_those_before_it() -> None:
    order = [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR, Role.ADMIN]
    for position, role in enumerate(order):
        assert [role.covers(least) for least in order] == [index <= position for index in range(4)]


@pytest.mark.parametrize(
    ("role", "project", "user", "expected"),
    [
        # sees, changes, reads the log, reads the environment
        (Role.VIEWER, "nlp", "ada", (True, False, True, True)),
        (Role.VIEWER, "nlp", "bob", (True, False, False, False)),
        (Role.SUBMITTER, "nlp", "ada", (True, True, True, True)),
        (Role.SUBMITTER, "nlp", "bob", (True, False, False, False)),
        (Role.SUBMITTER, "vision", "bob", (False, False, False, False)),
        (Role.OPERATOR, "vision", "bob", (True, True, True, False)),
        (Role.ADMIN, "vision", "bob", (True, True, True, True)),
    ],
)
def test_rights_of_a_project_member_by_role(
    role: Role, project: str, user: str, expected: tuple[bool, bool, bool, bool]
) -> None:
    ada = caller(role, "nlp")
    found = (ada.sees(project, user), ada.changes(user), ada.reads_output(user), ada.reads_environment(user))
    assert found == expected


def test_a_job_without_a_project_is_visible_to_its_user_only() -> None:
    ada = caller(Role.SUBMITTER, "nlp")
    assert ada.sees(NO_PROJECT, "ada")
    assert not ada.sees(NO_PROJECT, "bob")
    narrow = Identity("ada", Role.SUBMITTER, frozenset({"nlp"}), "k2")
    assert not narrow.sees(NO_PROJECT, "ada"), "a key that is narrowed to projects opens those alone"


def test_jobs_of_a_former_project_are_not_visible() -> None:
    assert not caller(Role.SUBMITTER).sees("nlp", "ada")


def test_the_local_token_is_an_admin_without_a_name() -> None:
    assert LOCAL.role is Role.ADMIN
    assert LOCAL.sees("any", "body")
    assert LOCAL.reads_environment("body")
    assert not LOCAL.owns("")
