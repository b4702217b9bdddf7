"""Spans: none without a collector; with one, requests and the phases of a pass, and nothing of anybody's job."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from httpx import Client
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.telemetry import tracing
from service.telemetry.http import MeasuredApp
from service.telemetry.metrics import Metrics
from service.telemetry.phases import Phases
from tests.api.client import AppTransport


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    with tracing.recording(SimpleSpanProcessor(exporter)):
        yield exporter


def test_without_a_collector_spans_do_nothing() -> None:
    with tracing.exporting(""), tracing.span("anything", size=1) as span:
        assert span is None


def test_phases_are_nested_spans(spans: InMemorySpanExporter) -> None:
    phases = Phases(Metrics())
    with phases.cycle(), phases.measured("decide"):
        pass
    inner, outer = spans.get_finished_spans()
    assert (inner.name, outer.name) == ("cycle.decide", "cycle.total")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id


def test_a_request_is_a_span_and_counts_by_its_route(spans: InMemorySpanExporter) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        class Route:
            path_format = "/v1/jobs/{job_id}"

        if scope["path"].startswith("/v1/jobs/"):
            scope["route"] = Route()
        status = 200 if "route" in scope else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    metrics = Metrics()
    with Client(transport=AppTransport(MeasuredApp(app, metrics)), base_url="http://localhost") as client:  # type: ignore[arg-type]
        client.get("/v1/jobs/7")
        client.get("/v1/jobs/8")
        client.request("BREW", "/secret-path")
    value = metrics.registry.get_sample_value
    labels = {"method": "GET", "route": "/v1/jobs/{job_id}", "status": "200"}
    assert value("sooner_http_requests_total", labels) == 2
    assert value("sooner_http_requests_total", {"method": "other", "route": "none", "status": "404"}) == 1
    assert value("sooner_http_request_duration_seconds_count", {"route": "none"}) == 1
    told = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    assert told[0] == {"http.route": "/v1/jobs/{job_id}", "http.response.status_code": 200}
    assert "secret-path" not in str(told)


def test_spans_reach_a_collector() -> None:
    bodies: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with tracing.exporting(f"http://127.0.0.1:{server.server_port}/"), tracing.span("cycle.total", jobs=3):
                pass
        finally:
            server.shutdown()
            thread.join()
    ((path, body),) = bodies
    assert path == "/v1/traces"
    assert b"cycle.total" in body
    assert b"sooner" in body
