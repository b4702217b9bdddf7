"""The application under Textual's pilot, and what its screen shows."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
from textual.pilot import Pilot

from service.cli.top.app import Top
from service.client import AsyncClient
from service.wire.access import IdentityDocument
from tests.unit.service.cli.top.fake_service import FakeService

DEADLINE_S = 30.0
Script = Callable[[Top, Pilot[None]], Awaitable[None]]


def drive(service: FakeService, script: Script, size: tuple[int, int] = (120, 40)) -> None:
    """Open the view on a service, wait for the first picture, and follow the script."""

    async def run() -> None:
        client = AsyncClient("http://head:8765", transport=httpx.MockTransport(service), patience_s=0.0)
        await driven(client, service.identity(), script, size)

    asyncio.run(run())


async def driven(client: AsyncClient, identity: IdentityDocument, script: Script, size: tuple[int, int]) -> None:
    """The same with a client of any service."""
    app = Top(client, identity)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.picture is not None, "the first picture")
        await pilot.pause()
        await script(app, pilot)


async def until(pilot: Pilot[None], look: Callable[[], object], what: str) -> None:
    """Wait until ``look`` finds something true."""
    end_s = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < end_s, f"waited {DEADLINE_S} s in vain for {what}:\n{screen(pilot.app)}"
        await pilot.pause(0.01)


async def until_shown(pilot: Pilot[None], text: str) -> None:
    """Wait until the screen shows the text."""
    await until(pilot, lambda: text in screen(pilot.app), repr(text))


def screen(app: object) -> str:
    """The text of the screen, line by line."""
    assert isinstance(app, Top)
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
