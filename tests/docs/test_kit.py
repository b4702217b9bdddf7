"""The files for operators: the unit of systemd, the container file, and the compose file with what it mounts."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.config.settings import Settings
from tests.docs.markdown import ROOT

UNIT = ROOT / "examples" / "systemd" / "sooner.service"
CONTAINER = ROOT / "examples" / "container"
NEWER = ("DelegateSubgroup",)
"""Keys that the unit says are of systemd 254; older ones ignore them, and say so."""


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    program = str(Path(sys.executable).with_name("sooner"))
    text = UNIT.read_text()
    assert "/opt/sooner/bin/sooner" in text
    unit = tmp_path / UNIT.name

    def verify(content: str) -> tuple[int, list[str]]:
        unit.write_text(content.replace("/opt/sooner/bin/sooner", program))
        done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60.0)
        said = [line for line in done.stderr.splitlines() if UNIT.name in line]
        return done.returncode, [line for line in said if not any(f"'{key}'" in line for key in NEWER)]

    assert verify(text) == (0, [])
    assert verify(text.replace("KillMode=process", "KillMode=gently"))[1]


def test_the_sandbox_of_the_unit_leaves_jobs_what_they_need() -> None:
    keys = {line.partition("=")[0] for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line)}
    for forbidden in ("ProtectControlGroups", "PrivateDevices", "ProtectClock", "PrivateTmp", "MemoryDenyWriteExecute"):
        assert forbidden not in keys
        assert forbidden in UNIT.read_text(), "the unit says why it is left out"
    assert {"NoNewPrivileges", "ProtectSystem", "CapabilityBoundingSet", "Delegate", "KillMode"} <= keys


def test_the_image_is_built_from_what_is_there_and_does_not_run_as_root() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    assert len(stages) == 3
    assert re.search(r"^USER sooner$", stages[2], re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", stages[2], re.MULTILINE)
    for source in re.findall(r"^COPY (\S+) \S+$", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv*"} <= set(ignored)


def test_the_compose_file_mounts_what_is_there_and_sets_what_exists() -> None:
    compose: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    assert set(compose["services"]) == {"scheduler", "postgres", "prometheus", "grafana"}
    for name, service in compose["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            found = (CONTAINER / source).exists() if source.startswith(".") else source in compose["volumes"]
            assert found, f"{name}: {mount}"
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), (
            f"{name} is reached from outside"
        )
    ours = compose["services"]["scheduler"]
    build = ours["build"]
    assert (CONTAINER / build["context"] / build["dockerfile"]).resolve() == CONTAINER / "Containerfile"
    settings = {f"SOONER_{name.upper()}" for name in Settings.model_fields}
    assert set(ours["environment"]) <= settings
    assert "scheduler" in ours["environment"]["SOONER_ALLOWED_HOSTS"].split(","), "Prometheus asks for this host"


def test_prometheus_and_grafana_of_the_compose_file_have_our_files() -> None:
    scrape = yaml.safe_load((CONTAINER / "prometheus.yml").read_text())
    example = yaml.safe_load((ROOT / "examples" / "monitoring" / "prometheus.yml").read_text())
    for document in (scrape, example):
        (job,) = document["scrape_configs"]
        job["static_configs"], job["authorization"] = [], {}
    assert scrape == example
    provisioning = CONTAINER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["url"], source["isDefault"]) == ("http://prometheus:9090", True)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sooner.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
