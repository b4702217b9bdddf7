"""The newest advice over HTTP, for reading only: a page, and the document as JSON. On the loopback address alone.

The names of all users' jobs are on it, and there is no login; a proxy that has one may stand in front.
"""

import html
import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

HOST: Final = "127.0.0.1"

READ_S: Final = 10.0
"""A client that is silent for so long is disconnected."""

_NAMES: Final = frozenset({"127.0.0.1", "localhost"})
"""Names by which a browser may ask. A page of another site that makes its own name point here gets nothing."""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="30"><title>Advice</title><style>
body { font: 14px system-ui, sans-serif; margin: 2em } th, td { text-align: left; padding: 2px 1em 2px 0 }
</style></head><body>
"""


class AdvicePage:
    """Serves the newest advice in threads of its own until :meth:`close`."""

    def __init__(self, port: int) -> None:
        """Listen at once; port 0 takes a free one. Raises OSError."""
        self._bodies: Mapping[str, tuple[str, bytes]] = {}
        bodies = self

        class Handler(BaseHTTPRequestHandler):
            timeout = READ_S
            server_version = "sooner"
            sys_version = ""

            def do_GET(self) -> None:
                bodies._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Requests are not logged."""

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def publish(
        self,
        document: Mapping[str, Any],
        *,
        lead: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        tail: str,
    ) -> None:
        """Show this advice from now on: lines above and below a table, and the document."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
        body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        text = (
            f"{_PAGE}<pre>{html.escape(lead)}</pre><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f'<pre>{html.escape(tail)}</pre><p><a href="advice.json">advice.json</a></p></body></html>\n'
        )
        self._bodies = {
            "/": ("text/html; charset=utf-8", text.encode()),
            "/advice.json": ("application/json", json.dumps(document, allow_nan=False).encode()),
        }

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.headers.get("Host", "").partition(":")[0] not in _NAMES:
            request.send_error(421, "This server is reached as 127.0.0.1 or localhost")
            return
        if not self._bodies:
            request.send_error(503, "There is no advice yet")
            return
        found = self._bodies.get(request.path)
        if found is None:
            request.send_error(404)
            return
        kind, body = found
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Cache-Control", "no-store")
        request.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        request.end_headers()
        request.wfile.write(body)
