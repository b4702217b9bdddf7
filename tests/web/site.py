"""A small site for tests of the scripts: a test decides its pages, API answers and event streams."""

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STATIC = Path(__file__).parents[2] / "service" / "web" / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
PREFIX = "/proxy"
"""The site lives below this path, as behind a proxy."""


@dataclass
class Request:
    """What arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as a document."""
        return json.loads(self.body)


@dataclass
class Answer:
    """What goes back."""

    body: str | bytes = ""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


def json_answer(document: Any, status: int = 200, **headers: str) -> Answer:
    """A JSON answer; a problem document for a failure."""
    kind = "application/json" if status < 400 else "application/problem+json"
    return Answer(json.dumps(document), status, kind, headers)


def page(main: str, *, live: str = "", theme: str = "auto", title: str = "Test", root: str = "./") -> str:
    """A page in the dashboard's frame."""
    links = "".join(
        f'<a href="{root}{path}" data-key="{key}"{" aria-current=page" if name == title else ""}>{name}</a>'
        for path, key, name in (("", "o", "Overview"), ("queue", "q", "Queue"), ("jobs", "j", "Jobs"))
    )
    return f"""<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8"><title>{title} · Sooner</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="csrf-token" content="token-1">
<meta name="root" content="{root}"><link rel="icon" href="data:,"><link rel="stylesheet" href="{root}static/app.css">
<script type="module" src="{root}static/core.js"></script></head>
<body data-live="{live}"><a class="skip" href="#main">To the content</a>
<header class="top"><a class="brand" href="{root}">Sooner</a><nav class="nav" aria-label="Pages">{links}</nav>
<form class="search" role="search" action="{root}jobs">
<input type="search" name="q" data-search aria-label="Search" placeholder="Search"></form>
<span class="live" data-live-state role="status"></span>
<button type="button" data-theme-toggle>Theme</button><button type="button" data-help aria-label="Keys">?</button></header>
<main id="main" tabindex="-1">{main}</main><footer class="foot">Sooner 0.1</footer></body></html>"""


class Site:
    """``routes`` maps "METHOD /path" to what answers; anything else is 404. ``emit`` sends an event to every open stream."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[Request], Answer]] = {}
        self.requests: list[Request] = []
        self.refuse_streams: int | None = None
        self._streams: list[queue.Queue[str | None]] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Address of the root, ending with a slash."""
        return f"http://127.0.0.1:{self._port}{PREFIX}/"

    @property
    def open_streams(self) -> int:
        """Streams that a page follows now."""
        with self._lock:
            return len(self._streams)

    def show(self, path: str, main: str | Callable[[], str], **options: str) -> None:
        """Answer a page whose <main> holds this."""
        self.routes[f"GET /{path}"] = lambda _: Answer(page(main if isinstance(main, str) else main(), **options))

    def emit(self, name: str = "job", document: Any = None) -> None:
        """Send an event."""
        with self._lock:
            for stream in self._streams:
                stream.put(f"id: 1\nevent: {name}\ndata: {json.dumps(document or {})}\n\n")

    def start(self) -> None:
        """Serve; on the same port as before after a stop."""
        handler = type("Handler", (_Handler,), {"site": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stop serving, and end the streams."""
        if self._server is None:
            return
        with self._lock:
            for stream in self._streams:
                stream.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def stream(self, write: Callable[[bytes], None]) -> None:
        """Follow the events until the page goes away or the site stops."""
        events: queue.Queue[str | None] = queue.Queue()
        with self._lock:
            self._streams.append(events)
        try:
            write(b"retry: 100\n\n")
            while True:
                try:
                    event = events.get(timeout=0.1)
                except queue.Empty:
                    event = ": alive\n\n"
                if event is None:
                    return
                write(event.encode())
        except OSError:
            return
        finally:
            with self._lock:
                self._streams.remove(events)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection early is no error."""


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        path = parts.path.removeprefix(PREFIX)
        request = Request(self.command, path, parts.query, dict(self.headers), self.rfile.read(length))
        self.site.requests.append(request)
        if path == "/v1/events" and "GET /v1/events" not in self.site.routes:
            self._stream()
            return
        route = self.site.routes.get(f"{self.command} {path}")
        file = STATIC / path.removeprefix("/static/")
        if route is not None:
            self._answer(route(request))
        elif path.startswith("/static/") and file.is_file():
            self._answer(Answer(file.read_bytes(), kind=_TYPES[file.suffix]))
        else:
            self._answer(json_answer({"title": "There is no such resource"}, 404))

    def _stream(self) -> None:
        if self.site.refuse_streams is not None:
            self._answer(json_answer({"title": "Refused"}, self.site.refuse_streams))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.site.stream(self.wfile.write)

    def _answer(self, answer: Answer) -> None:
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        self.send_response(answer.status)
        sent = {"Content-Type": answer.kind, "Content-Security-Policy": POLICY, "Content-Length": str(len(body))}
        for name, value in {**sent, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle
