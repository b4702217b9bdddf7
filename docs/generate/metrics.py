"""The page of metrics, read off the registry of a service that has nothing to do."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

from docs.generate.markdown import code, join, opening, table
from policies.lifecycle import JobState
from predictor.serving import LivePredictor
from service.telemetry.metrics import Metrics
from service.telemetry.scrape import LoopNow, QueueNow, Readings, ScrapeCollector

INTRODUCTION = """
`GET /metrics` answers in Prometheus' text format. It needs the token or an API key of any role. Times are in seconds. Counters
end in `_total` and start at zero with the process; histograms have `_bucket`, `_sum` and `_count`. No label holds a job, a user
or a server. Only the leader (`sooner_leader`) reports queue, GPUs and predictions. Scraping, dashboard and alerts:
[monitor](../how-to/monitor.md).
"""


def families() -> dict[str, Metric]:
    """Every metric family by its full name."""
    metrics = Metrics()
    metrics.registry.register(ScrapeCollector(_quiet()))
    found: dict[str, Metric] = {}
    for family in metrics.registry.collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        found[family.name + suffix] = family
    return found


def _quiet() -> Readings:
    jobs: Mapping[JobState, int] = {JobState.QUEUED: 0}
    queue = QueueNow(jobs, {"total": 0, "held": 0, "free": 0, "unusable": 0}, 0.0, None, {"gpus_free": 0})
    status = LivePredictor().status()
    return Readings(
        now_s=lambda: 0.0,
        loop=lambda: LoopNow(True, 0.0, 0),
        queue=lambda: queue,
        predictor=lambda: status,
        retrainings=lambda: {"promoted": 0},
        migrated=lambda: True,
        version="",
    )


def _labels(family: Metric) -> Iterator[str]:
    known = dict.fromkeys(name for sample in family.samples for name in sample.labels)
    # Families without samples yet know their labels all the same.
    yield from (name for name in known or LABELS.get(family.name, ()) if name != "le")


LABELS: Mapping[str, tuple[str, ...]] = {
    child.describe()[0].name: tuple(child._labelnames)
    for child in vars(Metrics()).values()
    if hasattr(child, "_labelnames")
} | {"sooner_prediction_interval_coverage_ratio": ("level", "unit", "bucket")}
"""Labels of what counts events, as declared."""


def page() -> str:
    """``reference/metrics.md``."""
    lines = opening("Metrics", "`service.telemetry`", INTRODUCTION)
    rows = [
        (code(name), family.type, " ".join(code(label) for label in _labels(family)), family.documentation)
        for name, family in sorted(families().items())
    ]
    return join([*lines, *table(("metric", "type", "labels", "meaning"), rows)])
