"""Deleting what jobs leave: deep, wide, locked and strange."""

import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.executors import deletion
from service.executors.deletion import delete_path
from tests.hostile import Trick, dig, each_trick, open_descriptors

DEEP = 3000
"""Levels: more than Python's recursion limit, longer than PATH_MAX, and more than the descriptors below."""


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_a_deep_tree(tmp_path: Path) -> None:
    dig(tmp_path / "tree", DEEP)
    delete_path(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_wide_tree_with_names_that_are_in_the_way(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for outer in range(3):
        for inner in range(700):
            (tree / str(outer) / str(inner)).mkdir(parents=True)
            (tree / str(outer) / str(inner) / "file").touch()
    (tree / ".deleted-1").mkdir()
    (tree / ".deleted-2").touch()
    (tree / "0" / ".deleted-3" / ".deleted-4").mkdir(parents=True)
    delete_path(tree)
    assert list(tmp_path.iterdir()) == []


@each_trick
def test_links_are_deleted_and_not_followed(tmp_path: Path, trick: Trick) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    trick(tmp_path / "tree" / "file")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    delete_path(tmp_path / "tree")
    (tmp_path / "outer").symlink_to(tmp_path / "kept")
    delete_path(tmp_path / "outer")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_folders_that_were_locked_against_their_owner(tmp_path: Path) -> None:
    for mode in (0o000, 0o400, 0o500):
        locked = tmp_path / "tree" / "a" / f"{mode:o}"
        (locked / "inner").mkdir(parents=True)
        (locked / "file").touch()
        (locked / "inner").chmod(mode)
        locked.chmod(mode)
    (tmp_path / "tree").chmod(0)
    # Root may do everything, so another user deletes.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.chown(tmp_path, 65534, 65534)
                for folder, _, _ in os.walk(tmp_path, topdown=False):
                    os.chown(folder, 65534, 65534)
                os.chdir(tmp_path)
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            else:
                os.chdir(tmp_path)
            delete_path(Path("tree"))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not (tmp_path / "tree").exists()


def test_what_does_not_exist(tmp_path: Path) -> None:
    delete_path(tmp_path / "none")
    delete_path(tmp_path / "none" / "none")


def test_a_file_and_no_descriptor_left(tmp_path: Path) -> None:
    before = open_descriptors()
    (tmp_path / "file").touch()
    delete_path(tmp_path / "file")
    assert not (tmp_path / "file").exists()
    assert open_descriptors() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as other users")
def test_an_owner_who_keeps_adding_files_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    for folder in (tree, tree / "inner"):
        os.chown(folder, 65534, 65534)
        folder.chmod(0o777)
    real, rounds = deletion._delete_files, itertools.count(1)

    def add_before(folder: int) -> list[str]:
        number = next(rounds)
        assert number < 20, "the owner is always faster"
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                os.mkdir(f"added-{number}", dir_fd=folder)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return real(folder)

    monkeypatch.setattr(deletion, "_delete_files", add_before)
    delete_path(tree)
    assert list(tmp_path.iterdir()) == []
