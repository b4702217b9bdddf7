"""Small files that survive a crash: written whole or not at all. Standard library only, the supervisor uses it too."""

import errno
import json
import os
from pathlib import Path
from typing import Any

JSON_BYTES_MAX = 1024 * 1024
"""Limit of a record; all records are much shorter."""

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: dict[str, Any], reserved: Path | None = None) -> None:
    """Replace ``path`` atomically and durably. Raises OSError and leaves no trace when the disk is full.

    ``reserved`` is a file of :func:`reserve` on the same file system: its blocks are used first, so that a record that
    fits in it can be written on a full disk.
    """
    data = json.dumps(value).encode()
    temporary = (
        reserved if reserved is not None and reserved.is_file() else path.with_name(f".{path.name}.{os.getpid()}")
    )
    try:
        descriptor = open_at_once(str(temporary), os.O_WRONLY | os.O_CREAT)
        try:
            _write_all(descriptor, data)
            # Whitespace behind a document is no part of it, so a reserved file keeps its length until it is cut.
            os.ftruncate(descriptor, len(data))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        if temporary != reserved:
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def reserve(path: Path, size_bytes: int) -> None:
    """Allocate disk blocks now for a record that must be written later even on a full disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _write_all(descriptor, b" " * size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None if the file is missing or holds no object.

    A job runs as the user of the service and may have overwritten the file, and a disk may have lost it.
    """
    try:
        with open(path, "rb", opener=open_at_once) as stream:
            data = stream.read(JSON_BYTES_MAX + 1) or b""
        value = json.loads(data) if len(data) <= JSON_BYTES_MAX else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def open_at_once(path: str, flags: int) -> int:
    """os.open that does not block on a FIFO in place of the file. Raises OSError."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_FILE)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, or this user's share of it, is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
