"""Which containment a service chooses, and what it says about it."""

from pathlib import Path

import pytest

from service.config.settings import load_settings
from service.runtime.cgroups import CgroupsUnavailable
from service.server import containment
from service.server.containment import containment_of
from service.server.startup import StartError

PARENT = Path("/sys/fs/cgroup/some.service")


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "usable_parent", lambda: PARENT)


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> Path:
        raise CgroupsUnavailable("no cgroup2 file system is mounted")

    monkeypatch.setattr(containment, "usable_parent", unavailable)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("choice", "parent"), [("auto", PARENT), ("cgroup", PARENT), ("subreaper", None)])
def test_where_groups_can_be_made(choice: str, parent: Path | None) -> None:
    chosen = containment_of(load_settings({"containment": choice}))
    assert chosen.cgroups == parent
    assert chosen.kind == ("subreaper" if parent is None else "cgroup")
    assert (str(PARENT) in chosen.sentence) == (parent is not None)


@pytest.mark.usefixtures("no_groups")
def test_where_no_groups_can_be_made() -> None:
    chosen = containment_of(load_settings({"containment": "auto"}))
    assert chosen.cgroups is None
    assert "without a control group" in chosen.sentence
    assert "no cgroup2 file system is mounted" in chosen.sentence
    with pytest.raises(StartError, match=r"containment cgroup: .*no cgroup2 file system is mounted"):
        containment_of(load_settings({"containment": "cgroup"}))
