"""Combines the output of an attempt's ranks into one log: raw for one rank, whole lines marked ``[rank]`` for a gang."""

import os

from service.executors.logs import LogWriter
from service.executors.ranks import Rank

_CHUNK_BYTES = 64 * 1024
_REST_CHUNKS_MAX = 64
"""Chunks that are copied after the end: 4 MiB. A pipe holds 1 MiB at most, unless root has raised that limit."""
_LINE_BYTES_MAX = 8 * 1024
_TAIL_BYTES = 4 * 1024
_DISK_FULL = os.strerror(28).encode()


class Output:
    """Copies the pipes of all ranks to the log. ``tail`` is the newest few KiB, which are searched for a reason."""

    def __init__(self, log: LogWriter, gang: bool) -> None:
        self._log = log
        self._gang = gang
        self.tail = b""

    def pump(self, rank: Rank) -> bool | None:
        """Copy available output: True if there was some, None if there was none, False when the pipe has ended."""
        try:
            data = os.read(rank.output, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        if data:
            self._write(self._lines(rank, data) if self._gang else data)
        return bool(data)

    def finish(self, ranks: list[Rank]) -> None:
        """Copy the rest of the pipes of ended ranks, and their incomplete last lines.

        Another process of the user may write to a pipe for ever, which must not delay the record of the end.
        """
        for rank in ranks:
            if rank.output >= 0:
                for _ in range(_REST_CHUNKS_MAX):
                    if not self.pump(rank):
                        break
                os.close(rank.output)
                rank.output = -1
            if rank.line:
                self._write(self._marked(rank, rank.line))
        self._log.close()

    @property
    def names_full_disk(self) -> bool:
        """Whether the log, or the program by its own message, ran out of disk space."""
        return self._log.disk_full or _DISK_FULL in self.tail

    def _lines(self, rank: Rank, data: bytes) -> bytes:
        *lines, rank.line = (rank.line + data).split(b"\n")
        if len(rank.line) > _LINE_BYTES_MAX:
            # A line without end must not grow in memory: it is broken here.
            lines.append(rank.line)
            rank.line = b""
        return b"".join(self._marked(rank, line) for line in lines)

    def _marked(self, rank: Rank, line: bytes) -> bytes:
        return b"[%d] %s\n" % (rank.index, line)

    def _write(self, data: bytes) -> None:
        self._log.write(data)
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
