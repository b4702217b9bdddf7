"""The board and the alerts that come along ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from docs.generate.metrics import families

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"

_NAME = re.compile(r"\bsooner_[a-z_]+")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and itself: of the board's panels and of the alerts."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield f"board: {panel['title']}", target["expr"]
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"]:
        yield f"alert: {rule['alert']}", rule["expr"]


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
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


def test_each_alert_is_tested_to_fire_and_to_be_silent() -> None:
    """The tests themselves run in promtool: tests/engines/test_prometheus.py."""
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
    asked = [case for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in asked if case.get("exp_alerts")}
    silent = {case["alertname"] for case in asked if not case.get("exp_alerts")}
    assert fires == silent == {rule["alert"] for rule in rules}


def test_the_board_has_no_key_that_grafana_does_not_know() -> None:
    """What Grafana's own model of a board does not keep, Grafana ignores: an unknown key is a mistake."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    assert list(_lost(board, _kept(board), "")) == []
    board["panels"][0]["options"] = {"reduce": {}}
    board["panels"][5]["targets"][0]["expression"] = "up"
    assert list(_lost(board, _kept(board), "")) == [".panels[0].options.reduce", ".panels[5].targets[0].expression"]


def _kept(board: dict[str, Any]) -> Any:
    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    """Keys and values of ``given`` that are not in ``kept``."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from _lost(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif given != kept:
        yield path
