"""What a job can leave in place of a file, for tests; and a call that must not wait for it."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _loop(path: Path) -> None:
    other = path.with_name(f"other-{path.name}")
    other.symlink_to(path)
    path.symlink_to(other)


def _secret(path: Path) -> None:
    victim = path.parent / "victim"
    victim.write_text("secret")
    path.symlink_to(victim)


Trick = Callable[[Path], None]

TRICKS: dict[str, Trick] = {
    "fifo": os.mkfifo,
    "folder": lambda path: (path / "inner").mkdir(parents=True),
    "link to itself": lambda path: path.symlink_to(path),
    "loop of links": _loop,
    "link to a file": _secret,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to(path.parent / "missing"),
}
"""Each puts something that is no regular file in place of ``path``, which does not exist."""

each_trick = pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())


def open_descriptors() -> int:
    """The number of open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def within(work: Callable[[], Any], deadline_s: float = 30.0) -> Any:
    """What ``work`` returns. Fails, instead of waiting for ever, if it does not return in time."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(deadline_s)
    assert not thread.is_alive(), f"no answer within {deadline_s} s"
    if errors:
        raise errors[0]
    return answers[0]


def dig(folder: Path, levels: int, name: str = "d" * 100) -> None:
    """A chain of so many folders, one in the other, with a file at the bottom."""
    folder.mkdir(parents=True, exist_ok=True)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=at))
    os.close(at)
