"""Prints how quickly the dashboard of a large cluster appears, moves and updates in a real Chromium, and what it costs.

python -m benchmarks.web [--servers 250] [--queued 100000] [--attempts 20000] [--lasts 1920] [--dashboards 50]
                         [--seconds 20] [--json]

A real service with the imitated executor in a process of its own: a full cluster of servers with eight GPUs, so many queued jobs,
and so many attempts of the last day. Jobs run for ``--lasts`` seconds on average: with the default as many end in a day as the
timeline shows. Chromium opens the overview and the queue. Then so many dashboards are open for so many seconds: clients that do
what the script of an open overview does (its stream of events, its refreshes, its increments of the timeline, at the pace that
service/web/src/live.ts sets), each signed in as a user of its own who sees one of seven projects, so that they share no answers.
Browser, clients and service share the machine's cores.
"""

import argparse
import asyncio
import gzip
import http
import json
import multiprocessing
import random
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, sync_playwright

from benchmarks.api import Service, connected, fill_queue, serving
from benchmarks.calibration import calibrate, line
from benchmarks.views import add_attempts
from service.api.browser import COOKIE

WEB: Final = Path(__file__).parents[1] / "service" / "web"
SHARED_S: Final = 1.1
"""Pause after which the service reads a page's documents anew."""
PROJECTS: Final = 7
"""Those that the queue is filled for."""
PATIENCE_MS: Final = 120_000.0

_DRAG: Final = """async () => {
    const canvas = document.querySelector('#gantt canvas[tabindex]');
    const send = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, {pointerId: 1, clientX: x, clientY: 400}));
    canvas.setPointerCapture = () => {};
    const next = () => new Promise(requestAnimationFrame);
    send('pointerdown', 900);
    const started = await next();
    let frames = 0, now = started;
    while (now - started < 2000) {
        send('pointermove', 900 - (frames % 60) * 5);
        now = await next();
        frames += 1;
    }
    send('pointerup', 900);
    document.querySelector('#gantt button[title="Show everything"]').click();
    return frames / (now - started) * 1000;
}"""


class Figure(NamedTuple):
    """One result. ``most``: whether the target is the largest good value. ``seconds``: what is compared with the calibration."""

    name: str
    value: float
    unit: str
    target: float | None = None
    most: bool = True
    seconds: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value < self.target if self.most else self.value >= self.target


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=250, help="servers of eight GPUs")
    parser.add_argument("--queued", type=int, default=100_000, help="jobs that wait")
    parser.add_argument("--attempts", type=int, default=20_000, help="ended attempts of the last day")
    parser.add_argument("--lasts", type=float, default=1920.0, help="seconds for which jobs run on average")
    parser.add_argument("--dashboards", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="of live updates, of dashboards, and without any")
    parser.add_argument("--repeats", type=int, default=7, help="how often each page is opened")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    unit_s = calibrate()
    with serving("", servers=arguments.servers) as service:
        fill_queue(service, arguments.queued, arguments.lasts)
        add_attempts(service, arguments.attempts, 8 * arguments.servers)
        figures = in_browser(service, arguments.seconds, arguments.repeats)
        figures += cost(service, arguments.dashboards, arguments.seconds)
    figures += sizes()
    print(as_json(figures, unit_s) if arguments.json else table(figures, unit_s))


def table(figures: Sequence[Figure], unit_s: float) -> str:
    """The figures as lines of text."""
    lines = [line(unit_s), f"{'':46}{'measured':>16}{'target':>12}{'':6}{'units':>10}"]
    for each in figures:
        target = "" if each.target is None else f"{'<' if each.most else '≥'} {each.target:,g}"
        verdict = {True: "met", False: "missed", None: ""}[each.holds]
        units = "" if each.seconds is None else f"{each.seconds / unit_s:.3f}"
        lines.append(f"{each.name:46}{f'{each.value:,.1f} {each.unit}':>16}{target:>12} {verdict:6}{units:>9}")
    return "\n".join(lines)


def as_json(figures: Sequence[Figure], unit_s: float) -> str:
    """The figures as a document."""
    rows = [
        {
            "name": each.name,
            "value": each.value,
            "unit": each.unit,
            "target": each.target,
            "met": each.holds,
            "units": None if each.seconds is None else each.seconds / unit_s,
        }
        for each in figures
    ]
    return json.dumps({"calibration_s": unit_s, "figures": rows})


def chromium() -> str | None:
    """The browser's program, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def in_browser(service: Service, seconds: float, repeats: int) -> list[Figure]:
    """The queue and the overview in Chromium: each opened so often, then live updates for so long."""
    program = chromium()
    if program is None:
        raise SystemExit("Chromium is missing: install Debian's package chromium")
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{_root(service)}/queue")
        page.get_by_label("API key").fill(service.token)
        page.get_by_role("button", name="Sign in").click()
        page.locator("#queue").wait_for()
        found = [*_queue(page, service, repeats), *_overview(page, context, service, seconds, repeats)]
        browser.close()
    return found


def _queue(page: Page, service: Service, repeats: int) -> list[Figure]:
    """The page of the queue: the service's answer, and the page in the browser."""
    cookie = next(each["value"] for each in page.context.cookies() if each["name"] == COOKIE)
    # An open page would read the same documents.
    page.goto("about:blank")
    answered = []
    with connected(service) as connection:
        for _ in range(repeats):
            time.sleep(SHARED_S)
            begun_s = time.monotonic()
            connection.request("GET", "/queue", headers={"Cookie": f"{COOKIE}={cookie}", "Accept": "text/html"})
            response = connection.getresponse()
            response.read()
            answered.append(time.monotonic() - begun_s)
            if response.status != http.HTTPStatus.OK:
                raise SystemExit(f"GET /queue: {response.status}")
    shown = []
    for _ in range(repeats):
        page.goto("about:blank")
        time.sleep(SHARED_S)
        page.goto(f"{_root(service)}/queue")
        page.locator("th button").first.wait_for()
        shown.append(float(page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")))
    answer_s, shown_s = statistics.median(answered), statistics.median(shown) / 1e3
    return [
        Figure("queue page: answer (median)", 1e3 * answer_s, "ms", 300.0, seconds=answer_s),
        Figure("queue page: shown and sortable (median)", 1e3 * shown_s, "ms", seconds=shown_s),
    ]


def _overview(page: Page, context: BrowserContext, service: Service, seconds: float, repeats: int) -> list[Figure]:
    ready_ms, frames = [], []
    for _ in range(repeats):
        page.goto(f"{_root(service)}/")
        page.locator("#gantt[data-ready]").wait_for()
        ready_ms.append(float(page.evaluate("performance.getEntriesByName('gantt-ready')[0].startTime")))
        frames.append(float(page.evaluate(_DRAG)))
    ready_s, rate = statistics.median(ready_ms) / 1e3, statistics.median(frames)
    # The page is left alone meanwhile: each question to it is script too.
    page.wait_for_timeout(1e3 * seconds / 4.0)
    session = context.new_cdp_session(page)
    session.send("Performance.enable")
    # The first update may be due to the opening of the page.
    page.locator("#gantt[data-updates]").wait_for()
    updates, script_s = _updates(page, session)
    begun_s = time.monotonic()
    page.wait_for_timeout(1e3 * seconds)
    page.locator(f"#gantt:not([data-updates='{updates}'])").wait_for()
    updates_later, script_later_s = _updates(page, session)
    rate_of_updates = (updates_later - updates) / (time.monotonic() - begun_s)
    update_s = (script_later_s - script_s) / (updates_later - updates)
    return [
        Figure("overview: interactive (median)", 1e3 * ready_s, "ms", 1500.0, seconds=ready_s),
        Figure("overview: interactive (slowest)", max(ready_ms), "ms", seconds=max(ready_ms) / 1e3),
        Figure("overview: panning (median)", rate, "frames/s", 50.0, most=False, seconds=1.0 / rate),
        Figure("overview: script of a live update (mean)", 1e3 * update_s, "ms", 16.0, seconds=update_s),
        Figure("overview: live updates a minute", 60.0 * rate_of_updates, ""),
    ]


def _updates(page: Page, session: CDPSession) -> tuple[int, float]:
    """How often the timeline was updated so far, and seconds of script since the session began to count."""
    metrics = {each["name"]: float(each["value"]) for each in session.send("Performance.getMetrics")["metrics"]}
    return int(page.locator("#gantt").get_attribute("data-updates") or 0), metrics["ScriptDuration"]


def _root(service: Service) -> str:
    return f"http://{service.host}:{service.port}"


def sizes() -> list[Figure]:
    """Bytes of script and style as they are shipped, compressed."""
    shipped = [path for path in (WEB / "static").rglob("*") if path.suffix in (".js", ".css")]
    size = sum(len(gzip.compress(path.read_bytes(), 9)) for path in shipped)
    return [Figure("script and style, compressed", size / 1e3, "kB", 300.0)]


def cost(service: Service, dashboards: int, seconds: float) -> list[Figure]:
    """CPU of the service without any dashboard, and with them."""
    alone = _share(service, seconds)
    cookies = [_session(service, f"reader{number}", f"p{number % PROJECTS}") for number in range(dashboards)]
    # A process of its own, made anew: the browser's client has left threads in this one.
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    readers = processes.Process(target=_read, args=(theirs, _root(service), cookies, seconds / 4.0), daemon=True)
    readers.start()
    theirs.close()
    ours.recv()
    together = _share(service, seconds)
    ours.send(None)
    refreshes, span_s = ours.recv()
    readers.join()
    further = together - alone
    return [
        Figure("service without dashboards: share of a core", 100.0 * alone, "%", seconds=alone),
        Figure(f"{dashboards} dashboards: further share of a core", 100.0 * further, "%", 15.0, seconds=further),
        Figure(f"{dashboards} dashboards: refreshes a second", refreshes / span_s, ""),
    ]


def _share(service: Service, seconds: float) -> float:
    """The share of a core that the service uses for so long."""
    before, begun_s = service.process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after = service.process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - begun_s)


def _session(service: Service, user: str, project: str) -> str:
    """The cookie of a new member of a project who has signed in."""
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with connected(service) as connection:
        connection.request(
            "POST", "/v1/keys", json.dumps({"user": user, "role": "viewer", "projects": [project]}), headers
        )
        key = json.loads(connection.getresponse().read())["key"]
        connection.request("POST", "/sign-in", urlencode({"key": key, "next": ""}), form)
        response = connection.getresponse()
        response.read()
    found = re.search(rf"{COOKIE}=([^;]+)", response.headers.get("Set-Cookie", ""))
    if found is None:
        raise SystemExit(f"signing in as {user}: {response.status}")
    return found[1]


class Pace(NamedTuple):
    """When the script of a page refreshes it, in seconds, as the constants of live.ts say."""

    gap_s: float
    gap_s_max: float
    share_max: float
    idle_s: float


def pace() -> Pace:
    """Read it from the source."""
    text = (WEB / "src" / "live.ts").read_text(encoding="utf-8")

    def constant(name: str) -> float:
        found = re.search(rf"^const {name} = ([0-9_.]+);", text, re.MULTILINE)
        if found is None:
            raise SystemExit(f"service/web/src/live.ts has no constant {name}")
        return float(found[1].replace("_", ""))

    return Pace(
        constant("GAP_MS") / 1e3, constant("GAP_MS_MAX") / 1e3, constant("SHARE_MAX"), constant("IDLE_MS") / 1e3
    )


def _read(answer: Any, root: str, cookies: Sequence[str], ahead_s: float) -> None:
    """The process of the dashboards: says when all have been open for so long, and then how many refreshes there were until it
    is told to end.
    """
    asyncio.run(_dashboards(answer, root, cookies, ahead_s))


async def _dashboards(answer: Any, root: str, cookies: Sequence[str], ahead_s: float) -> None:
    found = [Dashboard(root, cookie, pace()) for cookie in cookies]
    for each in found:
        await each.open()
    tasks = [asyncio.create_task(each.run()) for each in found]
    await asyncio.sleep(ahead_s)
    begun_s, before = time.monotonic(), sum(each.refreshes for each in found)
    answer.send(None)
    await asyncio.to_thread(answer.recv)
    refreshes, span_s = sum(each.refreshes for each in found) - before, time.monotonic() - begun_s
    ended = [task for task in (*tasks, *(stream for each in found for stream in each.streams)) if task.done()]
    if ended:
        raise SystemExit(f"a dashboard failed: {ended[0].exception()!r}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in found:
        await each.close()
    answer.send((refreshes, span_s))


class Dashboard:
    """What the script of an open overview does: live.ts with the timeline's increments. Its names are those of the script."""

    def __init__(self, root: str, cookie: str, pace: Pace) -> None:
        headers = {"Cookie": f"{COOKIE}={cookie}", "Accept-Encoding": "gzip, deflate, br, zstd"}
        # A browser repeats a request on a connection that the service has just closed; this client opens a new one before.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._client = httpx.AsyncClient(base_url=root, headers=headers, timeout=60.0, limits=limits)
        self._pace = pace
        self._gap_s = pace.gap_s
        self._refreshed_at_s = 0.0
        self._due_at_s = float("inf")
        self._sooner = asyncio.Event()
        self.streams: list[asyncio.Task[None]] = []
        self._mark = ""
        self.refreshes = 0

    async def open(self) -> None:
        """The page, its streams and its timeline."""
        page = await self._get("/", "text/html")
        topics = re.search(r'<body data-live="([^"]+)"', page)
        if topics is None:
            raise SystemExit("the overview has no topics of events")
        self.streams = [asyncio.create_task(self._follow(topic)) for topic in topics[1].split()]
        after: str | None = ""
        while after is not None:
            found = json.loads(await self._get("/v1/timeline" + (f"?{urlencode({'after': after})}" if after else "")))
            self._mark, after = self._mark or found["mark"], found["next"]

    async def run(self) -> None:
        """Refresh whenever that is due, for ever."""
        self._later(self._pace.idle_s)
        while True:
            self._sooner.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), max(0.0, self._due_at_s - time.monotonic()))
                continue
            self._due_at_s = float("inf")
            await self._refresh()

    async def close(self) -> None:
        """Close the streams."""
        for each in self.streams:
            each.cancel()
        await asyncio.gather(*self.streams, return_exceptions=True)
        await self._client.aclose()

    async def _get(self, path: str, accept: str = "application/json") -> str:
        answer = await self._client.get(path, headers={"Accept": accept})
        answer.raise_for_status()
        return answer.text

    async def _follow(self, topic: str) -> None:
        headers = {"Accept": "text/event-stream"}
        async with self._client.stream("GET", f"/v1/events?topic={topic}", headers=headers, timeout=None) as stream:
            stream.raise_for_status()
            self._changed()
            async for text in stream.aiter_lines():
                if text.startswith("event:"):
                    self._changed()

    def _changed(self) -> None:
        self._later(max(self._pace.gap_s, self._refreshed_at_s + self._gap_s - time.monotonic()))

    def _later(self, delay_s: float) -> None:
        at_s = time.monotonic() + delay_s * (1.0 + random.random() / 5.0)
        if at_s < self._due_at_s:
            self._due_at_s = at_s
            self._sooner.set()

    async def _refresh(self) -> None:
        started_s = time.monotonic()
        await self._get("/", "text/html")
        now_s = time.monotonic()
        busy = now_s - self._refreshed_at_s < 2.0 * self._gap_s + 0.5
        longer_s = min(1.5 * self._gap_s if busy else self._pace.gap_s, self._pace.gap_s_max)
        self._gap_s = max(longer_s, (now_s - started_s) / self._pace.share_max)
        self._refreshed_at_s = now_s
        self._later(self._pace.idle_s)
        self._mark = json.loads(await self._get(f"/v1/timeline?changed_since={self._mark}"))["mark"]
        self.refreshes += 1


if __name__ == "__main__":
    main()
