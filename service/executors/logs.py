"""A log of bounded size that keeps its head and its tail, in files named by the offset of their first byte.

The head takes half of the limit; the tail is a ring of segments of a quarter each, so the newest quarter at least is
there. Offsets count every byte that was ever written, so a reader can page on while the middle is being cut away.
Standard library only: the supervisor writes with this.
"""

import os
from pathlib import Path
from typing import NamedTuple

from service.executors.files import PRIVATE_FILE, is_disk_full

_TAIL_SEGMENTS = 2


class LogChunk(NamedTuple):
    """Part of a log. ``cut_bytes`` in front of ``data`` are gone; ``size_bytes`` were written in all so far."""

    data: bytes
    offset: int
    next_offset: int
    cut_bytes: int
    size_bytes: int


class LogWriter:
    """Appends to a folder of segments. One writer per folder. Never raises on a full disk: output without space is dropped."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
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
        """Close the open segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, part: memoryview) -> int:
        if self._descriptor < 0:
            return 0
        try:
            return os.write(self._descriptor, part)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.disk_full = True
            return 0

    def _next_segment(self) -> None:
        self.close()
        self._room = self._head_bytes - self._offset
        if self._room <= 0:
            self._room = self._segment_bytes
            while len(self._tail) >= _TAIL_SEGMENTS:
                (self._folder / str(self._tail.pop(0))).unlink(missing_ok=True)
            self._tail.append(self._offset)
        try:
            self._descriptor = os.open(
                self._folder / str(self._offset),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                PRIVATE_FILE,
            )
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.disk_full = True


def read_log(folder: Path, offset: int, limit_bytes: int) -> LogChunk:
    """Up to ``limit_bytes`` from ``offset`` on, or from the first byte after it that was kept.

    A negative offset counts from the end. An unknown folder reads as an empty log.
    """
    segments = _segments(folder)
    size = segments[-1][0] + segments[-1][1] if segments else 0
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    for first, length in segments:
        if start < first + length:
            begin = max(start, first)
            try:
                with (folder / str(first)).open("rb") as stream:
                    stream.seek(begin - first)
                    data = stream.read(limit_bytes)
            except FileNotFoundError:
                # Deleted between listing and reading: the next segment is read, and its gap is reported.
                continue
            return LogChunk(data, begin, begin + len(data), begin - start, size)
    return LogChunk(b"", start, start, 0, size)


def _segments(folder: Path) -> list[tuple[int, int]]:
    found = []
    try:
        names = [path for path in folder.iterdir() if path.name.isdigit()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in names:
        try:
            found.append((int(path.name), path.stat().st_size))
        except FileNotFoundError:
            continue
    return sorted(found)
