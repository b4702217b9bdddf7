"""A log of bounded size that keeps its head and its tail, in files named by the offset of their first byte.

The head takes half of the limit; the tail is a ring of segments of a quarter each, so the newest quarter at least is
there. Offsets count every byte that was ever written, so a reader can page on while the middle is being cut away.
Standard library only: the supervisor writes with this.
"""

import contextlib
import os
import re
import stat
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from service.executors.files import is_disk_full
from service.runtime.untrusted import open_file, open_folder

_TAIL_SEGMENTS = 2
_NAME = re.compile(r"[0-9]{1,18}")
_NAMES_MAX = 10_000
"""Names looked at in a log's folder: a job that runs as the service's user can make many."""


class LogChunk(NamedTuple):
    """Part of a log. ``cut_bytes`` in front of ``data`` are gone; ``size_bytes`` were written in all so far."""

    data: bytes
    offset: int
    next_offset: int
    cut_bytes: int
    size_bytes: int


class LogWriter:
    """Appends to a folder of segments. One writer per folder. Output that cannot be written (a full disk) is dropped.

    The folder is held by its descriptor from the beginning, so that nothing is written elsewhere if a job replaces it.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = open_folder(folder)
        self._head_bytes = bytes_max // 2
        self._segment_bytes = max(1, bytes_max // 4)
        self._offset = 0
        self._room = 0
        self._descriptor = -1
        self._tail: list[int] = []
        self.disk_full = False

    def write(self, data: bytes) -> None:
        """Append, deleting older segments of the middle."""
        view = memoryview(data)
        while view:
            if self._room == 0:
                self._next_segment()
            part = view[: self._room]
            written = self._append(part)
            if written < len(part):
                # A gap: the next byte that fits begins a new segment, so that offsets stay correct.
                self._room = 0
                written = len(part) if written == 0 else written
            else:
                self._room -= written
            self._offset += written
            view = view[written:]

    def close(self) -> None:
        """Close the folder and the open segment."""
        self._close_segment()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _close_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, part: memoryview) -> int:
        if self._descriptor < 0:
            return 0
        try:
            return os.write(self._descriptor, part)
        except OSError as error:
            self.disk_full = self.disk_full or is_disk_full(error)
            return 0

    def _next_segment(self) -> None:
        self._close_segment()
        self._room = self._head_bytes - self._offset
        if self._room <= 0:
            self._room = self._segment_bytes
            while len(self._tail) >= _TAIL_SEGMENTS:
                with contextlib.suppress(OSError):
                    os.unlink(str(self._tail.pop(0)), dir_fd=self._folder)
            self._tail.append(self._offset)
        name, flags = str(self._offset), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)  # whatever a job has put there
            self._descriptor = open_file(name, flags, self._folder)
        except OSError as error:
            self.disk_full = self.disk_full or is_disk_full(error)


def read_log(folder: Path, offset: int, limit_bytes: int) -> LogChunk:
    """Up to ``limit_bytes`` from ``offset`` on, or from the first byte after it that was kept.

    A negative offset counts from the end. An unknown folder reads as an empty log. What is no part of a log is ignored.
    ``folder`` is that of the log in an attempt's folder; neither may be a link.
    """
    try:
        attempt = open_folder(folder.parent)
    except OSError:
        return _read(None, offset, limit_bytes)
    try:
        place = open_folder(folder.name, attempt)
    except OSError:
        return _read(None, offset, limit_bytes)
    finally:
        os.close(attempt)
    try:
        return _read(place, offset, limit_bytes)
    finally:
        os.close(place)


def _read(folder: int | None, offset: int, limit_bytes: int) -> LogChunk:
    segments = _segments(folder) if folder is not None else []
    size = max((first + length for first, length in segments), default=0)
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    for first, length in segments:
        if start < first + length:
            begin = max(start, first)
            try:
                descriptor = open_file(str(first), parent=folder)
                try:
                    data = os.pread(descriptor, limit_bytes, begin - first)
                finally:
                    os.close(descriptor)
            except OSError:
                # Deleted between listing and reading: the next segment is read, and its gap is reported.
                continue
            return LogChunk(data, begin, begin + len(data), begin - start, size)
    return LogChunk(b"", start, start, 0, size)


def _segments(folder: int) -> list[tuple[int, int]]:
    """The first byte and the length of each segment, in order."""
    found = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, _NAMES_MAX):
            if not _NAME.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((int(entry.name), status.st_size))
    return sorted(found)
