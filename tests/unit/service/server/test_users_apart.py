"""What must hold before jobs run as their users, and the modes of the data folder."""

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.config.settings import Settings
from service.server.startup import StartError
from service.server.users_apart import data_dir_mode, keep_users_apart, runs_as_submitters, sentence

ENTRY = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")


@pytest.fixture
def passed() -> Iterator[Path]:
    """A folder that every user can reach: those of pytest are private."""
    folder = Path(tempfile.mkdtemp(prefix="sooner-test-"))
    folder.chmod(0o711)
    before = os.umask(0o022)
    yield folder
    os.umask(before)
    shutil.rmtree(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def settings_in(folder: Path, **changes: Any) -> Settings:
    folder.mkdir(exist_ok=True)
    return Settings(data_dir=folder, **({"run_as": "submitter"} | changes))


def test_as_the_service_nothing_changes(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, run_as="service")
    keep_users_apart(settings)
    assert data_dir_mode(settings) == 0o700
    assert "can read what the service can" in sentence(settings)
    assert not runs_as_submitters(settings_in(tmp_path, executor="fake"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"executor": "fake"}, ""),
        ({"executor": "slurm", "run_as": "submitter"}, "Jobs run as their users (run_as=submitter)"),
        ({"executor": "ray"}, "Jobs run as one user of the engine, and are not kept from each other (run_as=service)"),
    ],
)
def test_the_start_says_as_whom_jobs_run(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    assert sentence(settings_in(tmp_path, **({"run_as": "service"} | changes))) == said


def test_an_engine_needs_users_that_exist_and_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    keep_users_apart(settings_in(tmp_path, executor="slurm", run_as_users={"bob": ENTRY.pw_name}))
    with pytest.raises(StartError, match="run_as_users: alice=no-such-user-here: jobs run as their users"):
        keep_users_apart(settings_in(tmp_path, executor="slurm", run_as_users={"alice": "no-such-user-here"}))


@pytest.mark.parametrize("closed", ["shared", "shared/attempts"])
def test_an_engine_needs_a_shared_folder_that_users_can_pass_through(tmp_path: Path, closed: str) -> None:
    for name in ("shared", "shared/attempts"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o711)
    shared: dict[str, Any] = {"executor": "slurm", "shared_dir": tmp_path / "shared"}
    keep_users_apart(settings_in(tmp_path / "data", **shared))
    (tmp_path / closed).chmod(0o700)
    with pytest.raises(StartError, match=rf"cannot pass through {tmp_path / closed} \(mode 0700\).*chmod o\+x"):
        keep_users_apart(settings_in(tmp_path / "data", **shared))
    keep_users_apart(settings_in(tmp_path / "data", **shared, run_as="service"))


def test_only_root_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(StartError, match="needs a service that runs as root, and this one runs as user 1234"):
        keep_users_apart(settings_in(tmp_path))


@needs_root
@pytest.mark.parametrize("name", ["root", "no-such-user-here"])
def test_a_rule_for_a_user_that_jobs_cannot_run_as(passed: Path, name: str) -> None:
    settings = settings_in(passed, run_as_users={"alice": name, "bob": ENTRY.pw_name})
    with pytest.raises(StartError, match=f"run_as_users: alice={name}: jobs run as their users"):
        keep_users_apart(settings)


@needs_root
def test_a_way_that_is_closed(passed: Path) -> None:
    (passed / "closed").mkdir(mode=0o700)
    with pytest.raises(StartError, match=r"cannot pass through .*/closed \(mode 0700\).*chmod o\+x"):
        keep_users_apart(settings_in(passed / "closed" / "data"))
    with pytest.raises(StartError, match=r"cannot pass through .*/closed"):
        keep_users_apart(settings_in(passed / "data", checkpoints_dir=passed / "closed" / "checkpoints"))


@needs_root
def test_everything_in_the_data_folder_is_closed_but_the_way_to_the_jobs(passed: Path) -> None:
    data = passed / "data"
    settings = settings_in(data)
    (data / "token").touch(mode=0o644)
    (data / "models").mkdir(mode=0o755)
    (data / "attempts" / "1.1").mkdir(parents=True)
    (data / "link").symlink_to(passed)
    data.chmod(0o755)
    keep_users_apart(settings)
    modes = {path.name: mode(path) for path in (data, *data.iterdir()) if not path.is_symlink()}
    assert modes == {"data": 0o711, "token": 0o600, "models": 0o700, "attempts": 0o711, "checkpoints": 0o711}
    assert mode(passed) == 0o711, "what a link points to is not changed"
    (data / "new").touch()
    assert mode(data / "new") == 0o600
    assert sentence(settings) == "Jobs run as their users (run_as=submitter)"
