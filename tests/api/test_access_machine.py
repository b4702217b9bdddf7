"""Any history of keys, members and users: after each step every key sees exactly what a plain model says."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.api.app import create_app
from service.domain.access import NO_PROJECT, Role
from tests.api.client import client_of
from tests.api.conftest import NOW_S, make_world
from tests.api.helpers import plain_job

USERS = ["ada", "bob"]
PROJECTS = ["nlp", "vision"]
LIFE_S = 100.0

users = st.sampled_from(USERS)
projects = st.sampled_from(PROJECTS)


class Access(RuleBasedStateMachine):
    """Everything is asked of the API; the model is three dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = make_world(Path(self.folder.name), failed_logins_burst_max=1_000_000, requests_burst_max=1_000_000)
        self.app = create_app(self.world.dependencies())
        self.admin = client_of(self.app, self.world.token)
        jobs = [plain_job(user=user, project=project) for user in USERS for project in (*PROJECTS, None)]
        answer = self.admin.post("/v1/jobs", json={"jobs": jobs})
        self.jobs = {job["id"]: (job["project"] or NO_PROJECT, job["user"]) for job in answer.json()["jobs"]}
        self.members: dict[str, set[str]] = {}
        self.disabled: set[str] = set()
        self.keys: dict[str, dict[str, Any]] = {}

    def teardown(self) -> None:
        self.admin.close()
        self.world.database.close()
        self.folder.cleanup()

    @rule(user=users, role=st.sampled_from(list(Role)), only=st.none() | st.sets(projects, min_size=1))
    def make_key(self, user: str, role: Role, only: set[str] | None) -> None:
        body = {"user": user, "role": role.value, "projects": sorted(only) if only else None, "expires_in_s": LIFE_S}
        answer = self.admin.post("/v1/keys", json=body)
        if only and role.covers(Role.OPERATOR):
            assert answer.status_code == 422
            return
        if user in self.disabled:
            assert answer.status_code == 409
            return
        made = answer.json()
        self.members.setdefault(user, set()).update(only or ())
        self.keys[made["id"]] = {
            "text": made["key"],
            "user": user,
            "role": role,
            "only": only,
            "revoked": False,
            "expires_at_s": self.world.now_s + LIFE_S,
        }

    @rule(data=st.data())
    def revoke_key(self, data: st.DataObject) -> None:
        if self.keys:
            key = data.draw(st.sampled_from(sorted(self.keys)))
            assert self.admin.post(f"/v1/keys/{key}/revoke").status_code == 200
            self.keys[key]["revoked"] = True

    @rule(user=users, project=projects, member=st.booleans())
    def set_member(self, user: str, project: str, member: bool) -> None:
        answer = self.admin.request("PUT" if member else "DELETE", f"/v1/projects/{project}/members/{user}")
        known = self.members.get(user)
        if known is None or (not member and project not in known):
            assert answer.status_code == 404
        else:
            assert answer.status_code == 200
            (known.add if member else known.discard)(project)

    @rule(user=users, disabled=st.none() | st.booleans())
    def put_user(self, user: str, disabled: bool | None) -> None:
        assert self.admin.put(f"/v1/users/{user}", json={"disabled": disabled}).status_code == 200
        self.members.setdefault(user, set())
        if disabled is not None:
            (self.disabled.add if disabled else self.disabled.discard)(user)

    @rule(pause_s=st.sampled_from([1.0, LIFE_S / 2]))
    def wait(self, pause_s: float) -> None:
        self.world.now_s += pause_s

    @invariant()
    def every_key_opens_what_it_should(self) -> None:
        assert self.world.now_s >= NOW_S
        for key, known in self.keys.items():
            good = not known["revoked"] and known["user"] not in self.disabled
            with client_of(self.app, known["text"]) as client:
                answer = client.get("/v1/jobs?limit=500")
            if not good or self.world.now_s >= known["expires_at_s"]:
                assert answer.status_code == 401, key
                continue
            assert {job["id"] for job in answer.json()["items"]} == self.seen(known)

    def seen(self, key: dict[str, Any]) -> set[int]:
        """The jobs that the model lets a key see."""
        if key["role"].covers(Role.OPERATOR):
            return set(self.jobs)
        opened = set(self.members[key["user"]])
        opened = opened & key["only"] if key["only"] else opened | {NO_PROJECT}
        return {
            job
            for job, (project, user) in self.jobs.items()
            if project in opened and (project != NO_PROJECT or user == key["user"])
        }


TestAccess = pytest.mark.slow(Access.TestCase)
TestAccess.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
