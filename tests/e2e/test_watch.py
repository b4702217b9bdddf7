"""Both clients watch a job while the service is killed and started again: each change comes once, up to the end of the job."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from service.client import AsyncClient, Client
from tests.e2e.conftest import MakeService
from tests.e2e.harness import free_port

pytestmark = pytest.mark.slow


class Watcher:
    """Watches a job in a thread; ``changes`` are those that came so far."""

    def __init__(self, watch: Callable[[list[Any]], None]) -> None:
        self.changes: list[Any] = []
        self._thread = threading.Thread(target=watch, args=(self.changes,), daemon=True)
        self._thread.start()

    def saw(self, state: str) -> bool:
        return any(change["target"] == state for change in self.changes)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()


def test_a_job_is_watched_across_a_restart_of_the_service(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.client.events.PAUSE_S", 0.2)
    service = make_service(PORT=str(free_port()))
    service.start()
    token = (service.data_dir / "token").read_text().strip()
    go = service.data_dir / "go"
    job = service.train(30, 0.02, name="watched", gpus=1, env={"GO": str(go)})

    def blocking(changes: list[Any]) -> None:
        with Client(service.url, token) as client:
            for change in client.watch(job):
                changes.append(change)

    async def awaiting(changes: list[Any]) -> None:
        async with AsyncClient(service.url, token) as client:
            async for change in client.watch(job):
                changes.append(change)

    watchers = [Watcher(blocking), Watcher(lambda changes: asyncio.run(awaiting(changes)))]
    service.until(lambda: all(each.saw("running") for each in watchers), 60, "both clients see the job run")
    service.kill()
    go.touch()
    service.until(lambda: not service.processes(), 60, "the job ends while no service runs")
    assert not any(each.ended for each in watchers)
    service.start()
    service.until(lambda: all(each.ended for each in watchers), 60, "both clients see the job end")
    events = service.get(f"/v1/jobs/{job}/events")["items"]
    for each in watchers:
        seen = [change["id"] for change in each.changes]
        assert seen == [event["id"] for event in events][-len(seen) :]
        assert each.changes[-1]["target"] == "succeeded"
    assert [len(client.changes) > 1 for client in watchers] == [True, True]
