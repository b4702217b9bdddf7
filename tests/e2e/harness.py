"""A real service in a process of its own, and what a test wants to do with it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import yaml

from policies.model.estimate import EndedJob
from policies.model.ids import JobId
from policies.model.job import JobSpec
from service.db import migrate
from service.db.history import ImportedJob, import_history
from service.db.session import open_database

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[2]
START_S = 60.0
"""A start takes two seconds of a processor: on a crowded machine that is a minute."""
PATIENCE = 3.0
"""What must come is waited for so many times as long as on a machine of our own: how fast it comes is not asked here."""
_SERVE = """
import sys
from service.runtime.garbage import uncollected
with uncollected():
    from service.config.settings import load_settings
    from service.server.app import serve
sys.exit(serve(load_settings()))
"""
_QUICK = {
    "RESCHEDULE_PERIOD_S": "0.5",
    "POLL_PERIOD_S": "0.05",
    "RESTART_S": "0.2",
    "ATTEMPT_DURATION_S_MIN": "0",
    "RETRY_BACKOFF_S": "0",
    "STOP_GRACE_S": "10",
}
TERMINAL = {"succeeded", "failed", "cancelled"}
Found = TypeVar("Found")


def free_port() -> int:
    """A port for a service that is started again under its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class LiveService:
    """Starts, kills and restarts one service on one data folder; talks to it over HTTP."""

    def __init__(self, folder: Path, servers: Iterable[Mapping[str, object]], **settings: str) -> None:
        self.data_dir = folder / "data"
        self.data_dir.mkdir(mode=0o700)
        self.log = folder / "service.log"
        cluster = folder / "cluster.yaml"
        cluster.write_text(
            yaml.safe_dump({"schema": "sooner.cluster/1", "name": "test", "virtual": True, "servers": list(servers)})
        )
        given = {"DATA_DIR": str(self.data_dir), "CLUSTER": str(cluster), "PORT": "0", **_QUICK, **settings}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
        self.environ = kept | {f"SOONER_{name}": value for name, value in given.items()}
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self._seen = 0

    def launch(self, *program: str) -> None:
        """Start the service, or a ``program`` of Python that becomes one, and do not wait for it."""
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            command = [sys.executable, *(program or ("-c", _SERVE))]
            self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, cwd=ROOT)

    def start(self, *program: str) -> None:
        """Start the service and wait until it is ready."""
        self.launch(*program)

        def listens() -> str | None:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"the service ended with {self.process.returncode}:\n{self.tail()}")
            return self.address()

        self.until(listens, START_S, "the service listens")
        self.until(self._is_ready, START_S, "the service is ready")

    def start_forecasts(self) -> None:
        """Let the process that makes forecasts start: on a busy machine that takes longer than a short job runs."""
        self.get("/v1/forecasts")

    def address(self) -> str | None:
        """Where the service that was launched last listens, as soon as it says so; kept in ``url``."""
        with self.log.open("rb") as log:
            log.seek(self._seen)
            for line in log.read().decode().splitlines():
                if line.startswith("Sooner is listening on "):
                    self.url = line.split()[4]
                    return self.url
        return None

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30 * PATIENCE)

    def close(self) -> None:
        """End the service and everything that runs for it."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass

    def processes(self) -> list[psutil.Process]:
        """Every process but the service that belongs to this data folder: supervisors and what they run."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and (self.process is None or process.pid != self.process.pid):
                    words = " ".join([*process.cmdline(), *process.environ().values()])
                    if str(self.data_dir) in words and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def tail(self) -> str:
        """The end of the service's log."""
        return "\n".join(self.log.read_text().splitlines()[-40:])

    def request(self, method: str, path: str, body: object = None, key: str | None = None) -> httpx.Response:
        """One authenticated request, with its idempotency key if it has one."""
        token = (self.data_dir / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return httpx.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=20.0 * PATIENCE)

    def get(self, path: str) -> Any:
        """The JSON answer of a GET that must succeed."""
        response = self.request("GET", path)
        assert response.status_code == 200, response.text
        return response.json()

    def submit(self, **body: object) -> int:
        """Submit one job; returns its id."""
        response = self.request("POST", "/v1/jobs", {"user": "ada", **body})
        assert response.status_code == 201, response.text
        return int(response.json()["id"])

    def train(
        self, iterations: int, step_s: float, *, name: str, gpus: int, checkpoint_every: int = 5, **body: object
    ) -> int:
        """Submit the tests' training program."""
        command = [sys.executable, str(PROGRAM), str(iterations), str(step_s), str(checkpoint_every)]
        return self.submit(name=name, gpus=gpus, command=command, **body)

    def job(self, job: int) -> Any:
        """The job's document."""
        return self.get(f"/v1/jobs/{job}")

    def attempts(self, job: int) -> Any:
        """All its attempts."""
        return self.get(f"/v1/jobs/{job}/attempts")["items"]

    def story(self, job: int) -> list[Any]:
        """What the program wrote down."""
        folder = Path(self.environ.get("SOONER_CHECKPOINTS_DIR", self.data_dir / "checkpoints"))
        path = folder / str(job) / "story.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_state(self, job: int, *states: str, timeout_s: float = 30.0) -> Any:
        """Wait until the job is in one of the states."""

        def look() -> Any:
            document = self.job(job)
            if document["state"] in TERMINAL and document["state"] not in states:
                raise AssertionError(
                    f"job {job} is {document['state']} ({document['reason']}), not {states}:\n{self.tail()}"
                )
            return document if document["state"] in states else None

        return self.until(look, timeout_s, f"job {job} is {' or '.join(states)}")

    def until(self, look: Callable[[], Found | None], timeout_s: float, what: str) -> Found:
        """Wait until ``look`` finds something true; a machine that others use gets ``PATIENCE`` times as long."""
        timeout_s *= PATIENCE
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if found := look():
                return found
            time.sleep(0.02)
        raise AssertionError(f"waited {timeout_s} s in vain: {what}\n{self.tail()}")


def write_history(url: str, families: Mapping[tuple[str, int], tuple[int, float]], runs: int) -> None:
    """Give an empty database a past: ``runs`` of each (name, gpus) -> (iterations, seconds per iteration), slightly varied."""
    migrate.upgrade(url)
    database = open_database(url)
    past = []
    start_s = time.time() - 30 * 86_400
    for run in range(runs):
        for index, ((name, gpus), (iterations, step_s)) in enumerate(families.items()):
            total = iterations * (1.0 + 0.05 * ((run * 7 + index * 3) % 11 - 5) / 5)
            submitted_s = start_s + (run * len(families) + index) * 900.0
            spec = JobSpec(name=name, user="ada", gpus=gpus)
            label = EndedJob(
                JobId(0),
                spec,
                submitted_s,
                submitted_s + total * step_s + 1,
                round(total),
                total * step_s,
                "succeeded",
                step_s,
            )
            past.append(ImportedJob(f"{name}-{run}-{index}", label))
    with database.writing() as session:
        import_history(session, "test", past)
    database.close()
