"""What it tells of itself, and to whom."""

from pydantic import BaseModel, Field


class Observing(BaseModel):
    """Traces. Metrics and logs need no setting."""

    otlp_endpoint: str = Field(
        "",
        max_length=2048,
        pattern=r"^(https?://[^\s]+)?$",
        description="OTLP endpoint (HTTP) for OpenTelemetry spans; needs the extra otel. Empty: no spans, at no cost.",
    )
