"""Policies and servers of a what-if run, as they are written."""

import pytest

from policies.model.cluster import Cluster, Server
from policies.options import OptionError
from service.config.cluster_file import ClusterFileError
from service.config.settings import load_settings
from service.simulations.request import machines_of, more_servers, plan_of
from service.simulations.runs import Plan

PRESENT = Cluster("own", (Server("a", 4), Server("extra1", 8, gpu_type="A100")), rack_bytes_s=1e9)


def test_policies_as_they_are_written() -> None:
    settings = load_settings({"policy": "easy", "shadow_policy": "srtf"})
    assert plan_of("asrpt:tau=3:preemption=never", settings, "oracle", None) == Plan(
        "asrpt:tau=3:preemption=never", "asrpt", {"tau": "3", "preemption": "never"}, "oracle"
    )
    assert plan_of("srtf", settings, "oracle", "never").options == {"preemption": "never"}
    current, shadow = (plan_of(name, settings, "none", "never") for name in ("current", "shadow"))
    assert (current.label, current.policy, shadow.label, shadow.policy) == ("current", "easy", "shadow", "srtf")
    assert shadow.options["preemption"] == "guided", "that of the settings"


@pytest.mark.parametrize("text", ["", "nope", "asrpt:", "asrpt:tau", "asrpt:=3", "asrpt:tau=1:tau=1", "fifo:eta=1"])
def test_what_is_no_policy(text: str) -> None:
    with pytest.raises(OptionError):
        plan_of(text, load_settings({}), "oracle", None)


def test_servers_as_they_are_written() -> None:
    assert machines_of(PRESENT, None) is PRESENT
    more = machines_of(PRESENT, "+2").servers
    assert [(server.name, server.gpus, server.gpu_type) for server in more[2:]] == [
        ("extra2", 8, "A100"),
        ("extra3", 8, "A100"),
    ]
    instead = machines_of(PRESENT, [{"gpus": 2, "count": 3}])
    assert ([server.gpus for server in instead.servers], instead.rack_bytes_s) == ([2, 2, 2], 1e9)
    assert (more_servers(" +12 "), more_servers("12"), more_servers("+1.yaml")) == (12, None, None)
    with pytest.raises(ClusterFileError, match=r"\+2 adds servers like the last one, but all servers are down"):
        machines_of(Cluster("own", ()), "+2")
