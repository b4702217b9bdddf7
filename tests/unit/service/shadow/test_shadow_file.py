"""The saved counts of a shadow policy in the data folder, and their use by a later service."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from policies.model.view import ClusterView
from service.config.settings import Settings, load_settings
from service.engine.watch import WatchingPolicy
from service.shadow import file as shadow_file
from service.shadow.file import FILE, Pair, load
from service.shadow.live import Shadowing, make_shadow
from service.shadow.shadow import SavedShadow, Shadow, Status
from tests.local_shadow import LocalWorker, local_shadow
from tests.scenarios.dsl import Story, cluster, policy
from tests.unit.service.shadow.test_shadowing import Loop

PAIR = Pair("fifo", {}, "fifo_backfill", {"tau": "2"})


def settings(tmp_path: Path, **flags: Any) -> Settings:
    chosen = {"policy": "fifo", "shadow_policy": "fifo_backfill", "shadow_options": "tau=2", **flags}
    return load_settings({"data_dir": tmp_path, **chosen})


def made(tmp_path: Path, **flags: Any) -> Shadow:
    shadow = make_shadow(settings(tmp_path, **flags), policy("fifo"), LocalWorker)
    assert shadow is not None
    return shadow


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """The shadow would start "small" from 20 s on; both policies start the others."""
    told = cluster("1x4", made(tmp_path))
    told.job("runs", gpus=2, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    return told.job("small", gpus=2, runs_s=20.0, at_s=20.0).until(40)


def save(story: Story, tmp_path: Path) -> None:
    assert isinstance(story.policy, Shadow)
    Shadowing(story.policy, Loop(story), settings(tmp_path)).save()


def test_a_restart_continues_the_counts(story: Story, tmp_path: Path) -> None:
    save(story, tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    story.policy = made(tmp_path)
    story.clock.advance(60.0)  # the service was down for 20 s
    account = story.restart().policy.agreement(story.engine.world)  # type: ignore[attr-defined]
    assert account.since_s == 0.0
    assert account.totals.starts.shadow_only_gpu_s == 2 * 40.0
    story.until(80)
    account = story.policy.agreement(story.engine.world)
    starts = account.totals.starts
    # The same wish, not a second one.
    assert (starts.both, starts.first_only, starts.shadow_only) == (1, 0, 1)
    assert (starts.both_gpu_s, starts.shadow_only_gpu_s) == (2 * 80.0, 2 * 60.0)
    assert [wish.since_s for wish in account.wished_starts.values()] == [20.0]
    assert [difference.starts_shadow for difference in account.differences] == [(3,)]
    story.to_the_end()
    assert story.policy.agreement(story.engine.world).totals.starts.both == 3


def test_attempts_that_only_the_first_policy_started_survive_a_restart(tmp_path: Path) -> None:
    story = cluster("1x4", made(tmp_path, shadow_policy="sjf", shadow_options=""))
    story.job("long", gpus=4, runs_s=100.0).job("short", gpus=4, runs_s=10.0).until(50)
    flags = {"shadow_policy": "sjf", "shadow_options": ""}
    assert isinstance(story.policy, Shadow)
    Shadowing(story.policy, Loop(story), settings(tmp_path, **flags)).save()
    story.policy = made(tmp_path, **flags)
    story.restart().to_the_end()
    assert story.policy.agreement(story.engine.world).totals.starts.first_only_gpu_s == 400.0


class RecordsDumps(WatchingPolicy):
    """Records the states that it is rebuilt from. It raises for one of another version."""

    def __init__(self) -> None:
        super().__init__(policy("asrpt"))
        self.given: list[dict[str, Any] | None] = []

    def rebuild(self, view: ClusterView, dump: dict[str, Any] | None = None) -> Any:
        self.given.append(dump)
        if dump == {"version": 9}:
            raise KeyError("machine")
        return super().rebuild(view, dump)


def test_a_saved_policy_state_is_used_once_and_dropped_if_it_is_invalid(story: Story) -> None:
    assert isinstance(story.policy, Shadow)
    saved = story.policy.saved(story.engine.world, story.policy.request_dump())
    assert saved.dump is not None
    assert saved.dump.keys() >= {"delayed_since_s", "guarded", "guarded_extra"}
    for dump, expected in (
        ({"guarded": []}, [{"guarded": []}]),
        ({"version": 9}, [{"version": 9}, None]),
        (None, [None]),
    ):
        recording = RecordsDumps()
        shadow = local_shadow(policy("fifo"), recording)
        shadow.resume(SavedShadow(saved.agreement, dump))
        again = cluster("1x4", shadow)
        assert recording.given == expected
        assert shadow.status is Status.WATCHING
        again.restart()
        assert isinstance(recording.given[-1], dict)
        assert recording.given[-1].keys() >= {"machine"}


@pytest.mark.parametrize(
    "flags",
    [
        {"policy": "sjf"},
        {"policy_options": "tau=3"},
        {"shadow_policy": "sjf"},
        {"shadow_options": "tau=3"},
    ],
)
def test_counts_of_other_policies_are_not_used(story: Story, tmp_path: Path, flags: dict[str, Any]) -> None:
    save(story, tmp_path)
    assert load(tmp_path, PAIR) is not None
    assert made(tmp_path, **flags)._agreement is None
    assert made(tmp_path)._agreement is not None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-9], "begin anew"),
        (lambda text: "[]", "sooner.shadow.state/1"),
        (lambda text: text.replace("state/1", "state/2"), "sooner.shadow.state/1"),
        (lambda text: text.replace('"since_s": 0.0', '"since_s": "monday"'), "since_s"),
        (lambda text: text.replace('"account"', '"count"'), "account"),
        (lambda text: json.dumps(json.loads(text) | {"dump": [1]}), "state is not an object"),
    ],
)
def test_a_damaged_file_is_logged_and_ignored(
    story: Story, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, message: str
) -> None:
    save(story, tmp_path)
    file = tmp_path / FILE
    file.write_text(damage(file.read_text()))
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path, PAIR) is None
    assert message in caplog.text


def test_a_missing_file_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path, PAIR) is None
    assert caplog.text == ""


def test_a_failure_to_save_is_logged(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shadow_file, "save", full)
    with caplog.at_level(logging.WARNING):
        save(story, tmp_path)
    assert "were not saved: No space left" in caplog.text
