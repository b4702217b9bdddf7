"""Files that are opened where a job can write."""

import os
from pathlib import Path

import pytest

from service.runtime.untrusted import open_below, open_file, open_folder, read_small
from tests.hostile import Trick, each_trick, open_descriptors, within


@each_trick
def test_only_regular_files_are_opened(tmp_path: Path, trick: Trick) -> None:
    path = tmp_path / "file"
    trick(path)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(OSError):
            within(lambda flags=flags: open_file(path, flags))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("part", [0, 1, 2])
def test_no_part_of_a_path_may_be_a_link(tmp_path: Path, part: int) -> None:
    real = tmp_path / "a" / "b" / "c"
    real.mkdir(parents=True)
    (real / "file").write_text("text")
    assert read_small(open_below(tmp_path / "a", "b", "c", "file"), 100) == b"text"
    linked = (tmp_path / "a", tmp_path / "a/b", real)[part]
    linked.rename(tmp_path / "moved")
    linked.symlink_to(tmp_path / "moved")
    assert (real / "file").read_text() == "text"
    with pytest.raises(NotADirectoryError):
        open_below(tmp_path / "a", "b", "c", "file")


def test_a_limit_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    assert len(read_small(open_file(tmp_path / "file"), 10)) == 10
    with pytest.raises(OSError, match="longer than 9 bytes"):
        read_small(open_file(tmp_path / "file"), 9)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(OSError, match="not a regular file"):
            open_below(tmp_path, "fifo")
        with pytest.raises(NotADirectoryError):
            open_folder(tmp_path / "fifo")
    assert open_descriptors() == before
