"""Keys, projects and secrets with a real service: the first key before it runs, the local token off, a real program."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import MakeService
from tests.e2e.harness import ROOT, LiveService

pytestmark = pytest.mark.slow

SECRET = "hf_c0ffee-7f3a-4711"
PROGRAM = "import hashlib, os; print(hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest())"


class Person:
    """Somebody at the command line and over HTTP, with a key."""

    def __init__(self, service: LiveService, key: str | None) -> None:
        self.service = service
        self.key = key

    def run(self, *arguments: str, folder: Path | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
        """One command of ``sooner``."""
        known = {"SOONER_URL": self.service.url} if self.service.url else {}
        own = {"SOONER_TOKEN": self.key} if self.key is not None else {}
        return subprocess.run(
            [sys.executable, "-m", "service.cli.main", *arguments],
            cwd=folder or ROOT,
            env=self.service.environ | {"PYTHONPATH": str(ROOT)} | known | own | environ,
            capture_output=True,
            text=True,
            timeout=180.0,
            check=False,
        )

    def get(self, path: str) -> httpx.Response:
        """One request."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.get(f"{self.service.url}{path}", headers=headers, timeout=60.0)

    def json(self, *arguments: str) -> Any:
        """The document of a command that must succeed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def key_for(self, user: str, role: str, *options: str) -> "Person":
        """A new key, made at the command line."""
        made = self.run("key", "create", "--user", user, "--role", role, "--quiet", *options)
        assert made.returncode == 0, made.stderr
        return Person(self.service, made.stdout.strip())


@pytest.fixture
def service(make_service: MakeService) -> LiveService:
    return make_service(LOCAL_TOKEN="0")


@pytest.fixture
def root(service: LiveService) -> Person:
    """The first admin, whose key is older than the service."""
    made = Person(service, None).run("key", "create", "--first", "--user", "root", "--quiet")
    assert made.returncode == 0, made.stderr
    service.start()
    return Person(service, made.stdout.strip())


def test_people_work_side_by_side_and_a_secret_stays_one(service: LiveService, root: Person, tmp_path: Path) -> None:
    assert Person(service, None).run("q").returncode == 1, "the local token opens nothing any more"
    ada, bob = (root.key_for(name, "submitter", "--project", "nlp") for name in ("ada", "bob"))
    eve = root.key_for("eve", "submitter", "--project", "vision")
    submitted = ada.run(
        *("job", "submit", "--name", "secret", "--project", "nlp", "--secret-env", "HF_TOKEN", "--wait", "--quiet"),
        *("--", sys.executable, "-c", PROGRAM),
        HF_TOKEN=SECRET,
    )
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()

    # The program got it; its output is its user's and the operators'.
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert ada.run("job", "logs", job).stdout.strip() == digest
    assert root.run("job", "logs", job).stdout.strip() == digest
    refused = bob.run("job", "logs", job)
    assert (refused.returncode, digest in refused.stdout) == (1, False)

    # A member of the project sees the job and may not touch it; for others there is none.
    assert bob.json("job", "show", job)["jobs"][0]["user"] == "ada"
    assert "another user's" in bob.run("job", "cancel", job).stderr
    assert "There is no job" in eve.run("job", "show", job).stderr
    assert eve.json("job", "list")["jobs"] == []

    # Nobody is shown the secret, and nothing that the service wrote holds it but its database.
    paths = [f"/v1/jobs/{job}{part}" for part in ("", "/spec", "/events", "/attempts", "/explanation", "/prediction")]
    cycles = [entry["number"] for entry in root.get("/v1/cycles").json()["items"]]
    paths += ["/v1/audit", "/v1/snapshots/now", "/metrics"]
    paths += [f"/v1/cycles/{number}{part}" for number in cycles for part in ("", "/snapshot")]
    for person in (ada, root):
        for path in paths:
            assert SECRET not in person.get(path).text, path
    report = root.run("bugreport", "--out", str(tmp_path / "report.zip"))
    assert report.returncode == 0, report.stderr
    with zipfile.ZipFile(io.BytesIO((tmp_path / "report.zip").read_bytes())) as archive:
        assert all(SECRET.encode() not in archive.read(name) for name in archive.namelist())
    assert SECRET not in service.log.read_text()
    holding = [
        path.name for path in service.data_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert holding
    assert all(name.startswith("sooner.db") for name in holding), holding
    assert (service.data_dir / "sooner.db").stat().st_mode & 0o077 == 0


def test_a_key_that_was_revoked_or_a_user_who_left_is_out_at_once(service: LiveService, root: Person) -> None:
    ada = root.key_for("ada", "viewer")
    assert ada.get("/v1/me").json()["user"] == "ada"
    key = ada.get("/v1/me").json()["key_id"]
    assert root.run("key", "revoke", key).returncode == 0
    assert ada.get("/v1/me").status_code == 401
    bob = root.key_for("bob", "viewer")
    assert bob.get("/v1/me").status_code == 200
    assert root.run("user", "disable", "bob").returncode == 0
    assert bob.get("/v1/me").status_code == 401
    told = [(line["action"], line["user"]) for line in root.json("audit", "--limit", "10")["changes"]]
    assert told[0] == ("PUT /v1/users/{user}", "root")
    assert told[-1] == ("sooner key create --first", None)
    service.kill()
    service.start()
    assert (ada.get("/v1/me").status_code, root.get("/v1/me").status_code) == (401, 200)


@pytest.mark.parametrize(("trusted", "address"), [("", "127.0.0.1"), ("127.0.0.1", "192.0.2.9")])
def test_an_address_is_believed_of_a_trusted_proxy_alone(make_service: MakeService, trusted: str, address: str) -> None:
    service = make_service(TRUSTED_PROXIES=trusted)
    service.start()
    headers = {
        "Authorization": f"Bearer {(service.data_dir / 'token').read_text().strip()}",
        "X-Forwarded-For": "192.0.2.9",
    }
    made = httpx.put(f"{service.url}/v1/users/ada", json={}, headers=headers, timeout=60.0)
    assert made.status_code == 200, made.text
    assert service.get("/v1/audit")["items"][0]["address"] == address
