"""The application under Textual's pilot, and what its screen shows.

The pilot returns from a key when this process rests, which on a busy machine says nothing about what the key does. So whatever
follows a key is waited for, also before the next key where that key is for something new on the screen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from service.cli.top.app import Top
from service.client import AsyncClient
from service.wire.access import IdentityDocument
from tests.unit.service.cli.top.fake_service import FakeService
from tests.unit.service.client.both import as_sooner

DEADLINE_S = 60.0
Script = Callable[[Top, Pilot[None]], Awaitable[None]]
Found = TypeVar("Found")


def drive(service: FakeService, script: Script, size: tuple[int, int] = (120, 40)) -> None:
    """Open the view on a service, wait for the first picture, and follow the script."""

    async def run() -> None:
        client = AsyncClient("http://head:8765", transport=as_sooner(service), patience_s=0.0)
        await driven(client, service.identity(), script, size)

    asyncio.run(run())


async def driven(client: AsyncClient, identity: IdentityDocument, script: Script, size: tuple[int, int]) -> None:
    """The same with a client of any service."""
    app = Top(client, identity)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.picture is not None, "the first picture")
        await script(app, pilot)


async def until(pilot: Pilot[None], look: Callable[[], Found], what: str) -> Found:
    """Wait until ``look`` finds something true."""
    end_s = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < end_s, f"waited {DEADLINE_S} s in vain for {what}:\n{screen(pilot.app)}"
        await pilot.pause(0.01)
    return found


async def until_shown(pilot: Pilot[None], *texts: str) -> str:
    """Wait until the screen shows all the texts; all that it shows then."""

    def look() -> str:
        shown = screen(pilot.app)
        return shown if all(text in shown for text in texts) else ""

    return await until(pilot, look, repr(texts))


async def until_focused(pilot: Pilot[None], kind: type[Widget]) -> None:
    """Wait until a widget of the kind gets the keys."""
    await until(pilot, lambda: isinstance(pilot.app.focused, kind), f"the focus on {kind.__name__}")


async def until_job(pilot: Pilot[None], number: int) -> None:
    """Wait until the keys are about the job."""

    def chosen() -> bool:
        assert isinstance(pilot.app, Top)
        job = pilot.app.target()
        return job is not None and number in (job.get("id"), job.get("job_id"))

    await until(pilot, chosen, f"job {number} under the cursor")


async def until_overview(pilot: Pilot[None]) -> None:
    """Wait until no dialog and no page of a job is open."""
    await until(pilot, lambda: len(pilot.app.screen_stack) == 1, "the overview")


async def answer(pilot: Pilot[None], key: str, text: str) -> None:
    """Press a key that asks for a text, and replace what stands there by this one."""
    await pilot.press(key)
    await until_focused(pilot, Input)
    await pilot.press("ctrl+u", *text, "enter")


def screen(app: object) -> str:
    """The text of the screen, line by line."""
    assert isinstance(app, Top)
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
