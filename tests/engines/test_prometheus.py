"""The alerts, the scrape configuration and the expressions of the board, with a real promtool and a real Prometheus."""

import json
import os
from pathlib import Path

import httpx
import pytest
import yaml

from tests.docs.test_monitoring import MONITORING, expressions
from tests.e2e.harness import LiveService, free_port
from tests.engines.prometheus import missing, prometheus, promtool, query
from tests.engines.run import REQUIRED


@pytest.fixture(autouse=True)
def installed() -> None:
    lacking = missing()
    if lacking and not os.environ.get(REQUIRED):
        pytest.skip(lacking)
    assert not lacking, lacking


def test_each_alert_fires_and_is_silent_as_its_tests_say() -> None:
    promtool(MONITORING, "test", "rules", "alerts.test.yml")


def test_the_files_are_valid() -> None:
    promtool(MONITORING, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml")
    promtool(MONITORING, "check", "config", "--syntax-only", "prometheus.yml")


def test_every_expression_of_the_board_parses(tmp_path: Path) -> None:
    rules = [{"record": f"board:{number}", "expr": text} for number, (_, text) in enumerate(expressions())]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool(tmp_path, "check", "rules", "board.yml")
    rules[0]["expr"] = "sum("
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    with pytest.raises(AssertionError, match="parse"):
        promtool(tmp_path, "check", "rules", "board.yml")


def test_a_service_is_scraped_and_the_board_has_something_to_show(tmp_path: Path) -> None:
    service = LiveService(tmp_path, [{"count": 1, "gpus": 4, "gpu_type": "V100"}])
    try:
        service.start()
        job = service.train(3, 0.01, name="short", gpus=1)
        service.until_state(job, "succeeded")
        _configure(service, tmp_path)
        with prometheus(tmp_path, free_port()) as client:
            service.until(lambda: _answer(client, "up == 1"), 60.0, "Prometheus has scraped the service")
            rules = client.get("rules").json()["data"]["groups"][0]["rules"]
            assert len(rules) == 10
            shown = {title: query(client, text) for title, text in expressions() if title.startswith("board: ")}
    finally:
        service.close()
    # Those of a rate need two scrapes, those of a model need one.
    for title in (
        "Leader",
        "Since the last cycle",
        "Oldest queued job",
        "GPUs held",
        "GPUs",
        "Unfinished jobs",
        "Fragmentation",
    ):
        assert shown[f"board: {title}"], title
    assert shown["board: Leader"][0]["value"][1] == "1"


def _configure(service: LiveService, folder: Path) -> None:
    """The example, with the address and the token of this service, and scrapes that come at once."""
    text = (MONITORING / "prometheus.yml").read_text()
    for old, new in (
        ("/etc/prometheus/sooner-key", str(service.data_dir / "token")),
        ("127.0.0.1:8765", service.url.removeprefix("http://")),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((MONITORING / "alerts.yml").read_text())


def _answer(client: httpx.Client, expression: str) -> bool:
    try:
        return bool(query(client, expression))
    except (httpx.TransportError, json.JSONDecodeError):
        return False
