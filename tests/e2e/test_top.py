"""``sooner top`` on a real service with real jobs: under Textual's pilot, and as a process in a pseudo-terminal."""

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from service.cli.top import app as view
from service.cli.top.app import Top
from service.client import AsyncClient, Client
from tests.e2e.conftest import MakeService
from tests.e2e.harness import LiveService, free_port
from tests.unit.service.cli.top.driven import answer, driven, screen, until, until_job, until_overview, until_shown

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
HOSTILE = "\u200b[red]x[/red]"
SLEEP = [sys.executable, "-c", "print('\\x1b[31mhello [b]', flush=True); import time; time.sleep(600)"]


def _token(service: LiveService) -> str:
    return (service.data_dir / "token").read_text().strip()


def top_on(service: LiveService, script: Callable[[Top, Pilot[None]], Awaitable[None]]) -> None:
    """Open the view on the service and follow the script."""
    with Client(service.url, _token(service)) as client:
        identity = client.me()

    async def run() -> None:
        await driven(AsyncClient(service.url, _token(service), patience_s=0.0), identity, script, (120, 40))

    asyncio.run(run())


def test_real_jobs_are_shown_live_cancelled_and_shown_again_after_a_restart(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(gpus=4, PREEMPTION="never", PORT=str(free_port()))
    service.start()
    first = service.submit(name="filler", gpus=4, command=SLEEP)
    service.until_state(first, "running")
    monkeypatch.setattr(view, "CYCLE_S", 10_000.0)
    late = service.submit(name=HOSTILE, gpus=2, command=["true"], priority=-1)

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until_shown(pilot, "AAAA", "4/4 busy 100%", "?[red]x[/red]")
        await until(pilot, lambda: (app.running.jobs, app.queue.jobs) == ([first], [late]), "both jobs")
        await answer(pilot, "f7", "7")
        await until(pilot, lambda: app.target()["priority"] == 7, "the new priority")  # type: ignore[index]
        # From the next look on, only an event of the stream leads to another.
        monkeypatch.setattr(view, "PERIOD_S", 10_000.0)
        read_s = app.link.read_s
        app.look()
        await until(pilot, lambda: app.link.read_s > read_s, "the look")
        third = await asyncio.to_thread(service.submit, name="third", gpus=1, command=["true"])
        await until(pilot, lambda: third in app.queue.jobs, "the third job")
        await answer(pilot, "slash", "filler")
        await until_job(pilot, first)
        await until_overview(pilot)
        await pilot.press("enter")
        await until_shown(pilot, f"Job {first}  filler  running", "?[31mhello [b]", "queued -> starting")
        await pilot.press("escape")
        await until_overview(pilot)

        monkeypatch.undo()
        app.look()
        await asyncio.to_thread(service.kill)
        await until_shown(pilot, "DISCONNECTED: connection refused", "filler")
        await asyncio.to_thread(service.start)
        await until(pilot, lambda: "DISCONNECTED" not in screen(app), "the service again")
        await until(pilot, lambda: app.running.jobs == [first], "the job that ran on")

        app.running.focus()
        await pilot.press("k")
        await until_shown(pilot, f"Cancel job {first}, filler, of ada? It holds 4 GPUs.")
        await pilot.press("y")
        await until(pilot, lambda: first not in app.running.jobs, "the end of the job")
        await until_shown(pilot, "no job waits")

    top_on(service, look)
    service.until_state(first, "cancelled")
    service.until_state(late, "succeeded")


def test_a_viewer_sees_its_projects_and_no_keys_that_change_a_job(make_service: MakeService) -> None:
    service = make_service(gpus=4)
    service.start()
    service.submit(name="secret", project="red", gpus=2, command=SLEEP)
    shown = service.submit(name="shown", project="blue", gpus=1, command=SLEEP)
    service.until_state(shown, "running")
    assert service.request("PUT", "/v1/users/vera", {}).status_code in (200, 201)
    assert service.request("PUT", "/v1/projects/blue/members/vera").status_code == 200
    made = service.request("POST", "/v1/keys", {"user": "vera", "role": "viewer", "projects": ["blue"]})
    assert made.status_code == 201, made.text
    key = made.json()["key"]

    async def look(app: Top, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.running.jobs == [shown], "the one visible job")
        text = await until_shown(pilot, "##", "F1 Help")
        assert "secret" not in text
        assert "F9 Cancel" not in text
        app.running.focus()
        await pilot.press("k", "o", "p")
        assert len(app.screen_stack) == 1

    with Client(service.url, key) as client:
        identity = client.me()

    async def run() -> None:
        await driven(AsyncClient(service.url, key, patience_s=0.0), identity, look, (120, 40))

    asyncio.run(run())
    assert service.job(shown)["state"] == "running"


@contextmanager
def in_terminal(service: LiveService, **environ: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """``sooner top`` in a pseudo-terminal of 80 x 24: its descriptor and the process."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    environment = {**service.environ, "SOONER_URL": service.url, "TERM": "xterm-256color", **environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "top"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield master, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(master)


_STYLE = re.compile(rb"\x1b\[[0-9;]*m")


def read_until(master: int, *texts: bytes) -> bytes:
    """What the terminal was sent until it had all the texts."""
    found, end_s = b"", time.monotonic() + DEADLINE_S
    while not all(text in _STYLE.sub(b"", found) for text in texts):
        assert time.monotonic() < end_s, found.decode(errors="replace")
        if select.select([master], [], [], 0.1)[0]:
            found += os.read(master, 65_536)
    return found


_COLOUR = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)[;m]")


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_the_command_runs_in_a_terminal_with_and_without_colours_and_q_ends_it(
    make_service: MakeService, environ: dict[str, str], coloured: bool
) -> None:
    service = make_service(gpus=4)
    service.start()
    job = service.submit(name=HOSTILE, gpus=3, command=SLEEP)
    service.until_state(job, "running")
    with in_terminal(service, **environ) as (master, process):
        sent = read_until(master, b"no job waits", b"[red]x[/red]", b"AAA")
        assert "\u200b".encode() not in sent
        assert (_COLOUR.search(sent) is not None) is coloured
        os.write(master, b"q")
        read_until(master, b"\x1b[?1049l")  # It leaves the screen as it was.
        assert process.wait(DEADLINE_S) == 0
