"""A real service that dies again and again, a client that does not give up, and what must be true in the end."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from service.engine.crash_points import CrashPoint
from tests.e2e.harness import PROGRAM, LiveService, write_history

GPUS = 4
FAMILIES = {("long", 4): (120, 0.02), ("middle", 2): (60, 0.02), ("short", 1): (20, 0.02)}
"""(name, GPUS) -> (iterations, seconds of one): known from a past, so that short ones displace long ones."""
_PAST_RUNS = 6


@dataclass
class Accepted:
    """What the client asked for, and which job it was told."""

    body: Mapping[str, Any]
    job: int


@dataclass
class MortalService:
    """A live service of one server, and its client. Every request has a key and is repeated until it is answered."""

    live: LiveService
    accepted: dict[str, Accepted] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    deaths: int = 0

    @classmethod
    def on(cls, folder: Path) -> "MortalService":
        """A service with a past on a new folder; it does not run yet."""
        folder.mkdir()
        servers = [{"count": 1, "gpus": GPUS, "gpu_type": "V100", "rack": "r1"}]
        live = LiveService(folder, servers, PREEMPTION="always")
        write_history(f"sqlite:///{live.data_dir / 'sooner.db'}", FAMILIES, runs=_PAST_RUNS)
        (live.data_dir / "gpus").mkdir()
        return cls(live)

    def launch_dying(self, point: CrashPoint, passage: int) -> None:
        """Start it so that it dies there."""
        self.live.launch("-m", "tests.crash.serve", point.value, str(passage))

    @property
    def dead(self) -> bool:
        """Whether its process has ended."""
        return self.live.process is None or self.live.process.poll() is not None

    def revive(self) -> None:
        """Start it if it is dead; wait until it answers, or is dead."""
        if self.dead:
            self.deaths += self.live.process is not None
            self.live.start()
        else:
            self.live.until(lambda: self.dead or self._answers(), 30.0, "the service answers or dies")

    def _answers(self) -> bool:
        try:
            url = self.live.address()
            return url is not None and httpx.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> httpx.Response:
        """One request, repeated through deaths until there is an answer that is not "later"."""

        def answered() -> httpx.Response | None:
            try:
                if self.live.url and not self.dead:
                    answer = self.live.request(method, path, body, key)
                    if answer.status_code not in (409, 503) or "retry-after" not in answer.headers:
                        return answer
            except httpx.TransportError:
                pass
            self.revive()
            return None

        return self.live.until(answered, 60.0, f"an answer to {method} {path}")

    def submit(self, key: str, family: tuple[str, int], **more: object) -> int:
        """Submit a job of the family under this key, until it is accepted."""
        (name, gpus), (iterations, step_s) = family, FAMILIES[family]
        body = {
            "user": "ada",
            "name": name,
            "gpus": gpus,
            "command": [str(part) for part in (sys.executable, PROGRAM, iterations, step_s, 5)],
            "env": {"LOCK_GPUS": str(self.live.data_dir / "gpus")},
            "preemption": {"signal": "SIGUSR1", "grace_s": 20},
            **more,
        }
        answer = self.ask("POST", "/v1/jobs", body, key)
        assert answer.status_code == 201, answer.text
        self.accepted[key] = Accepted(body, int(answer.json()["id"]))
        return self.accepted[key].job

    def cancel(self, job: int) -> None:
        """Ask for its end, until that is accepted or it has ended."""
        answer = self.ask("POST", f"/v1/jobs/{job}/cancel", key=f"cancel {job}".replace(" ", "-"))
        assert answer.status_code in (202, 409), answer.text
        if answer.status_code == 202:
            self.cancelled.add(job)

    # In the end.

    def assert_sound(self) -> None:
        """Wait for the end of everything, then hold the service to each of its promises."""
        self.revive()
        live = self.live
        for accepted in self.accepted.values():
            live.until(lambda job=accepted.job: self._has_ended(job), 120.0, f"the end of job {accepted.job}")
        self._assert_keys()
        for accepted in self.accepted.values():
            self._assert_job(accepted.job)
        live.until(lambda: not live.processes(), 20.0, "no process is left")
        (server,) = live.get("/v1/cluster")["servers"]
        assert server["free_gpus"] == server["gpus"] == GPUS, f"a GPU leaked: {server}"

    def _has_ended(self, job: int) -> bool:
        """Whether all is done for a job; the service may die of its end, and is started anew then."""
        return self.ask("GET", f"/v1/jobs/{job}").json()["state"] in ("succeeded", "cancelled")

    def _assert_keys(self) -> None:
        """Nothing accepted was lost, nothing was done twice, and each key still gives its first answer."""
        for key, accepted in self.accepted.items():
            again = self.live.request("POST", "/v1/jobs", accepted.body, key)
            assert (again.status_code, again.json()["id"]) == (201, accepted.job), again.text
            assert again.headers["idempotent-replayed"] == "true"
        ids = [job["id"] for job in self.live.get("/v1/jobs?limit=500")["items"]]
        assert sorted(ids) == sorted(accepted.job for accepted in self.accepted.values())

    def _assert_job(self, job: int) -> None:
        document, story = self.live.job(job), self.live.story(job)
        told = f"job {job}: {document['state']}, {story}"
        expected = {"cancelled", "succeeded"} if job in self.cancelled else {"succeeded"}
        assert document["state"] in expected, told
        attempts = self.live.attempts(job)
        assert all(attempt["ended_at"] for attempt in attempts), f"an attempt is still open: {attempts}"
        assert not {"overlap", "shared"} & {line["event"] for line in story}, told
        starts = Counter(line["attempt"] for line in story if line["event"] == "start")
        assert set(starts.values()) <= {1}, f"an attempt ran twice: {told}"
        kept = 0
        for line in story:
            if line["event"] == "start":
                # Neither behind the last checkpoint nor ahead of what is on the disk.
                assert line["iteration"] == line["resume"] == kept, told
            kept = line["iteration"]
        if document["state"] == "succeeded":
            assert story[-1]["event"] == "end", told
            assert document["iterations_done"] == story[-1]["iteration"], told
        events = self.live.get(f"/v1/jobs/{job}/events?limit=500")["items"]
        chain = [event["target"] for event in events]
        assert [event["source"] for event in events] == [None, *chain[:-1]], f"a gap in the story: {events}"
