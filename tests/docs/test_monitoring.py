"""The board and the alerts that come along ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs.generate.metrics import families

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"

_NAME = re.compile(r"\bsooner_[a-z_]+")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def _expressions() -> Iterator[tuple[str, str]]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("title", "expression"), list(_expressions()))
def test_every_expression_names_metrics_that_exist(title: str, expression: str) -> None:
    known = families()
    named = _NAME.findall(expression)
    assert named
    for name in named:
        base = _SUFFIX.sub("", name)
        histogram = base in known and known[base].type == "histogram"
        assert name in known or histogram, f"{title}: {name}"


def test_the_users_metrics_are_all_there() -> None:
    promised = {
        "sooner_jobs",
        "sooner_job_queueing_delay_seconds",
        "sooner_job_completion_time_seconds",
        "sooner_job_slowdown_ratio",
        "sooner_preemptions_total",
        "sooner_preemption_wasted_gpu_seconds_total",
        "sooner_gpus",
        "sooner_gpu_fragmentation_ratio",
        "sooner_cycle_duration_seconds",
        "sooner_cycles_total",
        "sooner_cycle_last_success_timestamp_seconds",
        "sooner_decisions_rejected_total",
        "sooner_prediction_error_ratio",
        "sooner_prediction_interval_coverage_ratio",
        "sooner_model_info",
        "sooner_retrainings_total",
        "sooner_executor_commands_total",
    }
    assert promised <= set(families())


def test_alerts_say_what_to_do() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)
