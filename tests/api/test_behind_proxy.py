"""The dashboard behind a reverse proxy that puts it under a path, beside another service of the same host."""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin, urlsplit

import pytest
from httpx import Client, Response

from service.api.browser import COOKIE, CSRF_HEADER
from service.domain.access import Role
from tests.api.conftest import World, pages_of
from tests.api.helpers import admit, plain_job
from tests.api.live import Address, listening
from tests.api.people import person, submitted
from tests.api.test_sign_in import HTML, csrf_of
from tests.api.test_web_pages import Elements

PREFIX = "/cluster-a"
OTHER = "another service"


class Proxy(BaseHTTPRequestHandler):
    """Passes on what is below the prefix, without it, as ``location /cluster-a/ { proxy_pass http://.../; }`` does."""

    address: Address
    behind: Address
    cookies: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.cookies.append((self.path, self.headers.get("Cookie", "")))
        if not self.path.startswith(f"{PREFIX}/"):
            self._answer(200, [("Content-Type", "text/plain")], OTHER.encode())
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with closing(http.client.HTTPConnection(*self.behind, timeout=60.0)) as behind:
            behind.request(self.command, self.path.removeprefix(PREFIX), body or None, dict(self.headers))
            answer = behind.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())

    do_POST = do_GET

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy(world: World) -> Iterator[type[Proxy]]:
    """The class of a proxy that listens, with the cookies of all its requests."""
    with listening(pages_of(world), world.settings) as behind:
        handler: type[Proxy] = type("Handler", (Proxy,), {"behind": behind, "cookies": []})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            handler.address = "127.0.0.1", server.server_port
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            yield handler
            server.shutdown()
            thread.join()


@pytest.fixture
def browser(proxy: type[Proxy]) -> Iterator[Client]:
    host, port = proxy.address
    with Client(base_url=f"http://{host}:{port}", headers=HTML, follow_redirects=True, timeout=60.0) as client:
        yield client


def path_of(answer: Response) -> str:
    return answer.url.raw_path.decode()


def submit(browser: Client, page: Response, marked: str, **fields: str) -> Response:
    """Send the form of the page with these words in its tag, as a browser does."""
    form = re.search(rf"<form[^>]*{re.escape(marked)}[^>]*>(.*?)</form>", page.text, re.DOTALL)
    assert form is not None, page.text
    action = re.search(r'action="([^"]*)"', form[0])
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[1]))
    assert action is not None
    origin = f"{page.url.scheme}://{page.url.netloc.decode()}"
    return browser.post(urljoin(str(page.url), action[1]), data={**hidden, **fields}, headers={"Origin": origin})


def test_everything_stays_below_the_path_of_the_proxy(browser: Client, proxy: type[Proxy], world: World) -> None:
    app = pages_of(world)
    [job] = submitted(app, world, plain_job(user="ada", project="vision"))
    admit(world)
    ada = person(world, "ada", Role.SUBMITTER, "vision")
    form = browser.get(f"{PREFIX}/jobs/{job}?tab=log")
    assert path_of(form) == f"{PREFIX}/sign-in?next=jobs%2F{job}%3Ftab%3Dlog"
    page = submit(browser, form, 'method="post"', key=ada.key)
    assert path_of(page) == f"{PREFIX}/jobs/{job}?tab=log"
    seen = set()
    for address in ("", "queue", "jobs", f"jobs/{job}", "cluster", "usage", "submit", "admin"):
        found = browser.get(f"{PREFIX}/{address}")
        assert found.status_code == 200, address
        for link in Elements(found.text).links:
            path = urlsplit(urljoin(str(found.url), link)).path
            assert path.startswith(f"{PREFIX}/"), (address, link)
            # The documentation is built beside the tests.
            if path not in seen and not path.startswith(f"{PREFIX}/docs"):
                seen.add(path)
                assert browser.get(path).status_code == 200, (address, link)
    assert {f"{PREFIX}/static/core.js", f"{PREFIX}/static/app.css", f"{PREFIX}/v1/jobs/{job}"} <= seen
    change = {"Origin": f"http://{page.url.netloc.decode()}", CSRF_HEADER: csrf_of(page), "Accept": "*/*"}
    assert browser.post(f"{PREFIX}/v1/jobs/{job}/cancel", json={}, headers=change).status_code == 202
    left = submit(browser, page, 'action="../sign-out"')
    assert path_of(left) == f"{PREFIX}/sign-in"
    assert list(browser.cookies.jar) == [], "the cookie is deleted"
    assert path_of(browser.get(f"{PREFIX}/jobs")) == f"{PREFIX}/sign-in?next=jobs"


def test_other_services_of_the_host_never_get_the_session(browser: Client, proxy: type[Proxy], world: World) -> None:
    ada = person(world, "ada", Role.VIEWER)
    submit(browser, browser.get(f"{PREFIX}/sign-in"), 'method="post"', key=ada.key)
    [cookie] = browser.cookies.jar
    assert (cookie.name, cookie.path) == (COOKIE, PREFIX)
    assert browser.get("/grafana/").text == OTHER
    assert browser.get("/").text == OTHER
    sent = dict(proxy.cookies)
    assert (sent["/grafana/"], sent["/"]) == ("", "")
    assert COOKIE in sent[f"{PREFIX}/"]
