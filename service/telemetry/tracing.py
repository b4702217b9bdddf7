"""OpenTelemetry spans, if the extra ``otel`` is installed and a collector is configured; otherwise nothing, at no cost.

Spans hold names, methods, routes and counts, but no command, environment or user of a job.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

SERVICE_NAME = "sooner"

Attributes = dict[str, str | int | float]

_start: Callable[[str, Attributes], AbstractContextManager[Any]] | None = None


class TracingUnavailable(RuntimeError):
    """A collector is configured, but the extra ``otel`` is not installed. The message is one line."""


def span(name: str, **attributes: str | int | float) -> AbstractContextManager[Any]:
    """A span around a block; nothing outside :func:`recording`."""
    return nullcontext() if _start is None else _start(name, attributes)


@contextmanager
def exporting(endpoint: str) -> Iterator[None]:
    """Send spans to the collector at ``endpoint`` (OTLP over HTTP) in the background, and the rest at the end of the block.

    Nothing happens without an endpoint. Raises :class:`TracingUnavailable`.
    """
    if not endpoint:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable("otlp_endpoint: needs the extra 'otel'; install sooner[otel]") from error
    with recording(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces"))):
        yield


@contextmanager
def recording(processor: Any) -> Iterator[None]:
    """Pass all spans to an OpenTelemetry span processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    global _start
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE_NAME}))
    provider.add_span_processor(processor)
    tracer = provider.get_tracer(SERVICE_NAME)

    def start(name: str, attributes: Attributes) -> AbstractContextManager[Any]:
        return tracer.start_as_current_span(name, attributes=attributes)

    _start = start
    try:
        yield
    finally:
        _start = None
        provider.shutdown()
