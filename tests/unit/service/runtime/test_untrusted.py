"""Files that are opened where a job can write."""

import os
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
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


def as_user(number: int, check: Callable[[], None]) -> None:
    """Run ``check`` in a child process as the user ``number`` if this one is root, for whom permissions do not count."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(number, number, number)
                os.setresuid(number, number, number)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def place() -> Iterator[int]:
    """The descriptor of a folder in which every user may make files: a user may not enter ``tmp_path``."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        yield descriptor
        os.close(descriptor)


NOBODY = 65534


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT])
def test_a_file_whose_permissions_were_removed_is_opened(place: int, flags: int) -> None:
    def check() -> None:
        os.close(open_file("lock", os.O_WRONLY | os.O_CREAT, place))
        os.chmod("lock", 0, dir_fd=place)
        before = open_descriptors()
        os.close(open_file("lock", flags, place))
        assert open_descriptors() == before
        assert stat.S_IMODE(os.stat("lock", dir_fd=place).st_mode) == 0o600

    as_user(NOBODY, check)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_permissions_of_another_users_file_and_of_what_is_no_file_stay(place: int) -> None:
    os.close(os.open("lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=place))

    def check() -> None:
        os.mkfifo("fifo", 0, dir_fd=place)
        os.symlink("lock", "link", dir_fd=place)
        before = open_descriptors()
        for name, error in (("lock", PermissionError), ("fifo", PermissionError), ("link", OSError)):
            with pytest.raises(error):
                open_file(name, os.O_RDONLY, place)
        assert open_descriptors() == before
        assert stat.S_IMODE(os.stat("fifo", dir_fd=place).st_mode) == 0

    as_user(NOBODY, check)
    assert stat.S_IMODE(os.stat("lock", dir_fd=place).st_mode) == 0o600
