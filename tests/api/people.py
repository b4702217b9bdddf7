"""People with API keys, for tests: made in the database itself, as the first admin's key is."""

from contextlib import closing
from dataclasses import dataclass

from fastapi import FastAPI
from httpx import Client

from service.db.access import KeyGrant, add_key, add_member, add_user
from service.domain.access import Role
from service.domain.api_key import new_key
from tests.api.client import client_of
from tests.api.conftest import NOW_S, World


@dataclass(frozen=True)
class Person:
    """Somebody with a key: its id and its text."""

    user: str
    key_id: str
    key: str


def person(
    world: World,
    user: str,
    role: Role,
    *member_of: str,
    only: tuple[str, ...] | None = None,
    expires_at_s: float | None = NOW_S + 3600.0,
) -> Person:
    """A member of these projects with a new key, which is narrowed to ``only`` if given."""
    key = new_key()
    with world.database.writing() as session:
        connection = session.connection()
        add_user(connection, user, NOW_S)
        for project in member_of:
            add_member(connection, project, user, NOW_S)
        add_key(connection, key, KeyGrant(user, role, only, "", expires_at_s), NOW_S)
    return Person(user, key.id, key.text)


def client(app: FastAPI, who: Person) -> Client:
    """This person's client."""
    return client_of(app, who.key)


def submitted(app: FastAPI, world: World, *jobs: dict[str, object]) -> list[int]:
    """Jobs submitted with the local token, which takes any user and project."""
    with closing(client_of(app, world.token)) as admin:
        answer = admin.post("/v1/jobs", json={"jobs": list(jobs)})
        assert answer.status_code == 201, answer.text
        return [job["id"] for job in answer.json()["jobs"]]
