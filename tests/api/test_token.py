"""The token file: made once, for its owner alone."""

import stat
import threading
from pathlib import Path

import pytest

from service.api.token import TokenFileError, load_or_create


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_made_once_and_belongs_to_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    token = load_or_create(folder)
    assert len(token) >= 40
    assert load_or_create(folder) == token
    assert mode(folder) == 0o700
    assert mode(folder / "token") == 0o600
    assert [entry.name for entry in folder.iterdir()] == ["token"]


def test_tokens_differ(tmp_path: Path) -> None:
    assert load_or_create(tmp_path / "a") != load_or_create(tmp_path / "b")


def test_open_modes_are_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    load_or_create(folder)
    folder.chmod(0o755)
    (folder / "token").chmod(0o644)
    load_or_create(folder)
    assert (mode(folder), mode(folder / "token")) == (0o700, 0o600)


def test_a_race_has_one_winner(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[str] = []

    def start() -> None:
        barrier.wait()
        found.append(load_or_create(tmp_path / "data"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == ["token"]


@pytest.mark.parametrize("content", ["", "\n", "two\x00words", "ключ"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(TokenFileError, match="delete it"):
        load_or_create(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x" * 43)
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenFileError):
        load_or_create(tmp_path)


def test_a_folder_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TokenFileError, match="cannot use the token file"):
        load_or_create(tmp_path / "file" / "data")
