"""Who may call what: every route of the application, under every role, against the table; and what lists leave out."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from httpx import Client, Response
from sqlalchemy import event

from service.api.app import ROUTERS, create_app, route_rules
from service.api.permissions import About, Owners, Rule, rule_of, stated_rule
from service.domain.access import Role
from tests.api.client import client_of
from tests.api.conftest import World, make_world
from tests.api.helpers import assert_problem, plain_job
from tests.api.people import Person, person, submitted
from tests.api.people import client as client_for

PERMISSIONS = route_rules()
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
OF_A_JOB = (About.JOB, About.CHANGE, About.OUTPUT)


class Jobs(NamedTuple):
    """Three job arrays: the number of each is also that of its first job."""

    own: int
    colleague: int
    foreign: int


def operations(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in app.openapi()["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def body_of(app: FastAPI, operation: dict[str, Any]) -> Any:
    """An example of the body; an empty one where there is none."""
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    examples = app.openapi()["components"]["schemas"].get(name, {}).get("examples", [{}])
    return examples[0]


def path_of(path: str, job: int) -> str:
    values = {
        "job_id": job,
        "array_id": job,
        "attempt_id": "1.1",
        "slug": "internal",
        "name": "a",
        "number": 1,
        "run": 1,
    }
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], "nothing")), path)


def asked(client: Client, app: FastAPI, method: str, path: str, operation: dict[str, Any], job: int) -> Response:
    body = body_of(app, operation) if method in CHANGING and "requestBody" in operation else None
    return client.request(method, path_of(path, job), json=body)


def expected(rule: Rule, role: Role, whose: str) -> str:
    """What the table says of a member of nlp: ``allowed``, ``forbidden`` or ``missing``."""
    if rule.least is None:
        return "allowed"
    if not role.covers(rule.least):
        return "forbidden"
    if rule.about not in OF_A_JOB or role.covers(Role.OPERATOR) or whose == "own":
        return "allowed"
    if whose == "foreign":
        return "missing"
    return "allowed" if rule.about is About.JOB else "forbidden"


@pytest.fixture
def jobs(app: FastAPI, world: World) -> Jobs:
    array = {"count": 2}
    ids = submitted(
        app,
        world,
        plain_job(user="ada", project="nlp", array=array),
        plain_job(user="bob", project="nlp", array=array),
        plain_job(user="eve", project="vision", array=array),
    )
    return Jobs(ids[0], ids[2], ids[4])


def test_every_route_states_its_permission(app: FastAPI) -> None:
    assert {(method, path) for method, path, _ in operations(app)} == set(PERMISSIONS)
    endpoints = {route.endpoint for module in ROUTERS for route in module.routes.routes if isinstance(route, APIRoute)}
    assert [endpoint.__name__ for endpoint in endpoints if stated_rule(endpoint) is None] == []


def test_a_route_that_states_no_permission_is_for_admins(world: World) -> None:
    assert rule_of(lambda: None) == Rule(Role.ADMIN, About.SERVICE)


@pytest.mark.parametrize("role", list(Role))
def test_every_route_does_as_the_table_says(app: FastAPI, client: Client, world: World, jobs: Jobs, role: Role) -> None:
    """Allowed is what the service's own token gets; a job that is not seen is answered as one that is not there."""
    with client_for(app, person(world, "ada", role, "nlp")) as ada:
        for method, path, operation in operations(app):
            rule = PERMISSIONS[method, path]
            if rule.about is About.ATTEMPT:
                assert_problem(asked(ada, app, method, path, operation, 1), "unauthorized")
                continue
            for whose, job in zip(jobs._fields if rule.about in OF_A_JOB else ("own",), jobs, strict=False):
                answer = asked(ada, app, method, path, operation, job)
                says = expected(rule, role, whose)
                if says == "allowed":
                    like = asked(client, app, method, path, operation, job)
                    # What is done once (adding a server) is a conflict the second time.
                    assert answer.is_success or answer.status_code == like.status_code, (method, path, answer.text)
                    assert answer.status_code not in (401, 403), (method, path, answer.text)
                elif says == "forbidden":
                    assert_problem(answer, "forbidden")
                else:
                    nowhere = asked(ada, app, method, path, operation, 999)
                    document = assert_problem(answer, "not-found")
                    assert document["detail"] == f"There is no job {job}."
                    assert assert_problem(nowhere, "not-found")["detail"] == "There is no job 999."


def test_every_change_is_in_the_log_of_changes(app: FastAPI, client: Client, world: World, jobs: Jobs) -> None:
    """Walks all routes that change something: a success has one line with its request's id, a failure none."""
    done = 0
    for number, (method, path, operation) in enumerate(operations(app)):
        about = PERMISSIONS[method, path].about
        if method not in CHANGING or about is About.ATTEMPT or path == "/v1/plans":
            continue
        client.headers["X-Request-Id"] = f"walk-{number}"
        answer = asked(client, app, method, path, operation, jobs.own)
        assert answer.headers["x-request-id"] == f"walk-{number}"
        lines = [line for line in client.get("/v1/audit").json()["items"] if line["request_id"] == f"walk-{number}"]
        settled = [line for line in lines if line["outcome"] == "done"]
        if answer.is_success:
            assert [(line["action"], line["status"]) for line in settled] == [(f"{method} {path}", answer.status_code)]
            assert lines[0]["target"]
            done += 1
        else:
            assert settled == [], (path, answer.text)
    assert done >= 15


@pytest.mark.parametrize("number", ["+{}", "{}.0", "%20{}", "00{}"])
def test_a_job_is_not_seen_however_its_number_is_written(app: FastAPI, world: World, jobs: Jobs, number: str) -> None:
    with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp")) as ada:
        for path in ("", "/explanation", "/logs", "/prediction"):
            answer = ada.get(f"/v1/jobs/{number.format(jobs.foreign)}{path}")
            assert answer.status_code in (404, 422), answer.text
            if answer.status_code == 404:
                assert_problem(answer, "not-found")
        for path in ("cancel", "hold", "release"):
            assert ada.post(f"/v1/jobs/{number.format(jobs.foreign)}/{path}").status_code in (404, 422)


class TestLists:
    """Ada, a member of nlp, sees nlp's jobs and her own without a project; an operator sees all."""

    @pytest.fixture
    def seen(self, app: FastAPI, world: World) -> set[int]:
        ids = submitted(
            app,
            world,
            plain_job(user="ada", project="nlp", name="a"),
            plain_job(user="bob", project="nlp", name="a"),
            plain_job(user="eve", project="vision", name="a"),
            plain_job(user="eve", project=None, name="b"),
            plain_job(user="ada", project=None, name="b"),
            plain_job(user="ada", project="vision", name="b"),
        )
        assert ids == [1, 2, 3, 4, 5, 6]
        return {1, 2, 5}

    def ids(self, client: Client, path: str = "/v1/jobs", key: str = "id", **parameters: Any) -> list[int]:
        answer = client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return [item[key] for item in answer.json()["items"]]

    def test_of_jobs(self, app: FastAPI, world: World, seen: set[int]) -> None:
        with client_for(app, person(world, "ada", Role.VIEWER, "nlp")) as ada:
            assert self.ids(ada) == [5, 2, 1]
            assert self.ids(ada, state="queued") == [5, 2, 1]
            assert self.ids(ada, state=["queued", "succeeded"]) == [5, 2, 1]
            assert self.ids(ada, state="succeeded") == []
            assert self.ids(ada, name="b") == [5]
            assert self.ids(ada, user="eve") == []
            assert self.ids(ada, project="vision") == []
            assert self.ids(ada, project="nlp") == [2, 1]
        with client_for(app, person(world, "olga", Role.OPERATOR)) as olga:
            assert self.ids(olga) == [6, 5, 4, 3, 2, 1]
        with client_for(app, person(world, "new", Role.VIEWER)) as newcomer:
            assert self.ids(newcomer) == []
        with client_for(app, person(world, "ada", Role.VIEWER, only=("nlp",))) as narrow:
            assert self.ids(narrow) == [2, 1]

    def test_pages_are_cut_after_what_is_left_out(self, app: FastAPI, world: World, seen: set[int]) -> None:
        with client_for(app, person(world, "ada", Role.VIEWER, "nlp")) as ada:
            page = ada.get("/v1/jobs?limit=2").json()
            assert [job["id"] for job in page["items"]] == [5, 2]
            rest = ada.get("/v1/jobs", params={"limit": 2, "after": page["next"]}).json()
            assert ([job["id"] for job in rest["items"]], rest["next"]) == ([1], None)

    def test_jobs_that_are_not_seen_cannot_be_waited_for(self, app: FastAPI, world: World, seen: set[int]) -> None:
        with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp")) as ada:
            for path in ("/v1/jobs", "/v1/plans"):
                hidden = ada.post(path, json=plain_job(after=[3]))
                nowhere = ada.post(path, json=plain_job(after=[999]))
                assert (
                    assert_problem(hidden, "invalid-body", ["/after/0"])["errors"][0]["detail"] == "There is no job 3"
                )
                assert_problem(nowhere, "invalid-body", ["/after/0"])
            assert ada.post("/v1/jobs", json=plain_job(after=[2])).status_code == 201


class TestSubmissions:
    """A job belongs to whoever submits it."""

    def test_to_the_callers_own_name(self, app: FastAPI, client: Client, world: World) -> None:
        with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp")) as ada:
            for user in (None, "ada"):
                answer = ada.post("/v1/jobs", json=plain_job(user=user, project="nlp"))
                assert (answer.status_code, answer.json()["user"]) == (201, "ada")
            assert_problem(ada.post("/v1/jobs", json=plain_job(user="bob")), "forbidden", ["/user"])
            jobs = [plain_job(), plain_job(user="bob", project="vision")]
            assert_problem(ada.post("/v1/jobs", json={"jobs": jobs}), "forbidden", ["/jobs/1/user", "/jobs/1/project"])
            assert_problem(ada.post("/v1/plans", json=plain_job(user="bob")), "forbidden", ["/user"])
        assert len(client.get("/v1/jobs").json()["items"]) == 2

    def test_in_the_callers_projects_alone(self, app: FastAPI, world: World) -> None:
        narrow = person(world, "ada", Role.SUBMITTER, "nlp", only=("nlp",))
        with client_for(app, narrow) as ada:
            assert ada.post("/v1/jobs", json=plain_job(project="nlp")).status_code == 201
            for project in ("vision", "NLP"):
                assert_problem(ada.post("/v1/jobs", json=plain_job(project=project)), "forbidden", ["/project"])
            # A key for one project is for that one where none is named.
            assert ada.post("/v1/jobs", json=plain_job(project=None)).json()["project"] == "nlp"

    def test_a_key_for_several_projects_or_none_any_more_says_why_no_project_is_taken(
        self, app: FastAPI, client: Client, world: World
    ) -> None:
        def refused(ada: Client) -> Any:
            answer = assert_problem(ada.post("/v1/jobs", json=plain_job(project=None)), "forbidden", ["/project"])
            return answer["errors"][0]["detail"]

        with client_for(app, person(world, "ada", Role.SUBMITTER, "nlp", "vision", only=("vision", "nlp"))) as ada:
            assert refused(ada) == "is required: the API key is for nlp, vision"
            for project in ("nlp", "vision"):
                client.delete(f"/v1/projects/{project}/members/ada")
            assert refused(ada) == "the API key is for projects of which its user is no member"

    @pytest.mark.parametrize("role", [Role.OPERATOR, Role.ADMIN])
    def test_operators_act_for_others(self, app: FastAPI, world: World, role: Role) -> None:
        with client_for(app, person(world, "olga", role)) as olga:
            answer = olga.post("/v1/jobs", json=plain_job(user="bob", project="anything"))
            assert answer.json()["user"] == "bob"
            assert olga.post("/v1/jobs", json=plain_job(user=None)).json()["user"] == "olga"

    def test_the_local_token_is_believed(self, client: Client) -> None:
        assert client.post("/v1/jobs", json=plain_job(user="bob")).json()["user"] == "bob"
        assert client.post("/v1/jobs", json=plain_job(user=None)).json()["user"] is None

    def test_an_idempotency_key_is_its_users_own(self, app: FastAPI, world: World) -> None:
        """Another user's answer would tell of a job that is not theirs."""
        headers = {"Idempotency-Key": "tonight"}
        with (
            client_for(app, person(world, "ada", Role.SUBMITTER)) as ada,
            client_for(app, person(world, "bob", Role.SUBMITTER)) as bob,
        ):
            first = ada.post("/v1/jobs", json=plain_job(), headers=headers)
            other = bob.post("/v1/jobs", json=plain_job(), headers=headers)
            again = ada.post("/v1/jobs", json=plain_job(), headers=headers)
        assert (first.json()["user"], other.json()["user"]) == ("ada", "bob")
        assert again.json() == first.json()
        assert again.headers["idempotent-replayed"] == "true"


class TestRates:
    """So many requests a second, and so many wrong tokens."""

    def app_of(self, folder: Path, **settings: Any) -> tuple[FastAPI, World]:
        world = make_world(folder, **settings)
        return create_app(world.dependencies()), world

    def assert_told_to_wait(self, answer: Response, setting: str) -> None:
        document = assert_problem(answer, "too-many-requests")
        assert setting in document["detail"]
        assert int(answer.headers["retry-after"]) >= 1

    def test_a_key_has_its_share_and_no_other_key_pays(self, tmp_path: Path) -> None:
        app, world = self.app_of(tmp_path, requests_per_s_max=0.1, requests_burst_max=3)
        ada, bob = (person(world, name, Role.VIEWER) for name in ("ada", "bob"))
        with client_for(app, ada) as hers, client_for(app, bob) as his, client_of(app, world.token) as local:
            assert [hers.get("/v1/me").status_code for _ in range(3)] == [200] * 3
            self.assert_told_to_wait(hers.get("/v1/me"), "requests_per_s_max")
            assert his.get("/v1/me").status_code == 200
            assert [local.get("/v1/me").status_code for _ in range(10)] == [200] * 10
        world.database.close()

    def test_whoever_guesses_waits_and_whoever_has_been_in_does_not(self, tmp_path: Path) -> None:
        app, world = self.app_of(tmp_path, failed_logins_per_s_max=0.001, failed_logins_burst_max=3, key_cached_s=0.0)
        ada: Person = person(world, "ada", Role.VIEWER)
        late = person(world, "late", Role.VIEWER)
        with client_for(app, ada) as hers, client_of(app, "wrong") as wrong, client_for(app, late) as his:
            assert hers.get("/v1/me").status_code == 200
            for _ in range(3):
                assert_problem(wrong.get("/v1/me"), "unauthorized")
            self.assert_told_to_wait(wrong.get("/v1/me"), "failed_logins_per_s_max")
            assert hers.get("/v1/me").status_code == 200, "a key that was good before is looked up all the same"
            self.assert_told_to_wait(his.get("/v1/me"), "failed_logins_per_s_max")
            with client_of(app, world.token) as local:
                assert local.get("/v1/me").status_code == 200
        world.database.close()


def test_whose_a_job_is_is_looked_up_once_and_the_oldest_forgotten(world: World, app: FastAPI, jobs: Jobs) -> None:
    statements: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    owners = Owners(world.database, jobs_max=2)

    def ask(*numbers: int) -> list[Any]:
        statements.clear()
        return [asyncio.run(owners.of(number)) for number in numbers]

    assert ask(jobs.own, jobs.foreign, jobs.own) == [("nlp", "ada"), ("vision", "eve"), ("nlp", "ada")]
    assert len([each for each in statements if "FROM jobs" in each]) == 2
    assert ask(jobs.colleague, jobs.own) == [("nlp", "bob"), ("nlp", "ada")]
    assert len([each for each in statements if "FROM jobs" in each]) == 1
    assert ask(jobs.foreign, 999, 999) == [("vision", "eve"), None, None]
    assert len([each for each in statements if "FROM jobs" in each]) == 3, "what is not there may still come"
