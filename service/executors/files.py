"""Small files that survive a crash: written whole or not at all. Standard library only, the supervisor uses it too."""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from service.runtime.untrusted import PRIVATE_FILE, open_below, open_file, open_folder, read_small

JSON_BYTES_MAX = 256 * 1024
"""Limit of a record; all records are much shorter."""

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors that say nothing about the file: the next try may read it."""
_REPLACED = ".replaced-"
_REPLACE_TRIES = 3


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: dict[str, Any], reserved: Path | None = None, mode: int | None = None) -> None:
    """Replace ``path`` atomically and durably, whatever is there. Raises OSError and leaves no trace when the disk is full.

    ``reserved`` is a file of :func:`reserve` in the same folder: its blocks are used first, so that a record that fits in it can
    be written on a full disk. ``mode`` is set before the file gets its name, where others could replace it.
    """
    data = json.dumps(value).encode()
    folder = open_folder(path.parent)
    try:
        name, descriptor = _draft(folder, path.name, reserved)
        try:
            try:
                _write_all(descriptor, data)
                # Whitespace behind a document is no part of it, so a reserved file keeps its length until it is cut.
                os.ftruncate(descriptor, len(data))
                if mode is not None:
                    os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _replace(folder, name, path.name)
        except OSError:
            if reserved is None or name != reserved.name:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _draft(folder: int, name: str, reserved: Path | None) -> tuple[str, int]:
    if reserved is not None:
        with contextlib.suppress(OSError):
            return reserved.name, open_file(reserved.name, os.O_WRONLY, folder)
    # A name that cannot be guessed: a job may have put something in place of one that can.
    drawn = f".{name}.{os.urandom(8).hex()}"
    return drawn, open_file(drawn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder)


def rename_over(folder: Path, source: str, target: str) -> None:
    """Rename a file in ``folder``, whatever is in place of the target. Needs no room on the disk. Raises OSError."""
    place = open_folder(folder)
    try:
        _replace(place, source, target)
    finally:
        os.close(place)


def _replace(folder: int, source: str, target: str) -> None:
    for _ in range(_REPLACE_TRIES):
        try:
            os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            # A job has put a folder in place of the file. It is deleted with the attempt's other files.
            aside = f"{_REPLACED}{os.urandom(8).hex()}"
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, aside, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            return
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)


def reserve(path: Path, size_bytes: int) -> None:
    """Allocate disk blocks now for a record that must be written later even on a full disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _write_all(descriptor, b" " * size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, strict: bool = False) -> dict[str, Any] | None:
    """The object in ``path``; None if the file is missing or holds no object.

    A job that runs as the user of the service may have replaced the file, and a disk may have lost it. ``strict``: raises OSError
    for an error that may pass, such as too many open files, instead of reporting the file as missing.
    """
    try:
        value = json.loads(read_small(open_below(path.parent, path.name), JSON_BYTES_MAX))
    except OSError as error:
        if strict and error.errno in _PASSING:
            raise
        return None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, or this user's share of it, is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
