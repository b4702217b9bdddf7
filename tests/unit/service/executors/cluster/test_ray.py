"""The Ray driver where there is no Ray. With it: tests/engines/test_ray_driver.py."""

import importlib.util
import socket
import sys
import time
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from service.executors.cluster import ray
from service.executors.cluster.driver import EngineRefused, EngineUnavailable, NodeLaunch, NodeShare
from service.executors.cluster.ray import RayDriver, RayMissing
from service.runtime.child import START_S, Child

LAUNCH = NodeLaunch(AttemptId("a"), (NodeShare("node1", 1),), ("python3",), b"{}", user="ada")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is found, whether it is installed or not; nothing here imports it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RayMissing, match=r"executor=ray needs the package ray: pip install 'sooner\[ray\]'"):
        RayDriver("head:6379", "c1")


@pytest.mark.usefixtures("installed")
def test_another_user_is_refused() -> None:
    driver = RayDriver("head:6379", "c1")
    with pytest.raises(EngineRefused, match="user ada: Ray runs programs only as the user of its nodes"):
        driver.submit(LAUNCH)
    driver.close()


@pytest.mark.usefixtures("installed")
def test_a_client_that_crashes_or_is_closed_is_an_unavailable_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "_new_child", lambda: Child([sys.executable, "-c", "raise SystemExit(7)"]))
    driver = RayDriver("head:6379", "c1", Path("/no/token"))
    with pytest.raises(EngineUnavailable, match=r"Ray at head:6379: its client process ended \(exit code 7\)"):
        driver.jobs()
    driver.close()
    with pytest.raises(EngineUnavailable, match="the service is shutting down"):
        driver.nodes()


@pytest.mark.usefixtures("installed")
def test_a_head_that_is_not_there_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    driver = RayDriver(address, "c1")
    begun = time.monotonic()
    for _ in range(2):  # each time in a process of its own
        with pytest.raises(EngineUnavailable, match=f"Ray at {address}: Connection refused"):
            driver.jobs()
    assert time.monotonic() - begun < START_S
    driver.close()
