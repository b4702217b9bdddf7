"""Opens trace files: plain or gzip text, recognised by their first bytes."""

import gzip
import io
import zlib
from csv import Error as CsvError
from pathlib import Path
from typing import TextIO, cast

_GZIP_MAGIC = b"\x1f\x8b"
READ_ERRORS = (CsvError, UnicodeDecodeError, EOFError, OSError, zlib.error)
"""What reading a damaged file raises."""


class WorkloadError(ValueError):
    """A workload or trace that cannot be used. ``str()`` names file, line and column as far as they are known."""

    def __init__(self, message: str, *, file: str = "", line: int | None = None, column: str = "") -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(": ".join(part for part in (where, column, message) if part))
        self.message = message
        self.file = file
        self.line = line
        self.column = column


def open_text(path: Path, errors: str = "strict") -> TextIO:
    """Open UTF-8 text for reading, with or without a byte order mark, decompressing gzip on the fly.

    ``errors="replace"`` also reads text that is not UTF-8. A file that cannot be opened is a :class:`WorkloadError`.
    """
    try:
        with path.open("rb") as raw:
            compressed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        if compressed:
            return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", errors=errors, newline=""))
        return path.open("r", encoding="utf-8-sig", errors=errors, newline="")
    except OSError as error:
        raise WorkloadError(error.strerror or str(error), file=str(path)) from error


def create_text(path: Path) -> TextIO:
    """Open UTF-8 text for writing; ``.gz`` is compressed without a time stamp, so equal content gives equal bytes."""
    try:
        if path.suffix != ".gz":
            return path.open("w", encoding="utf-8", newline="")
        return io.TextIOWrapper(gzip.GzipFile(path, "wb", mtime=0), encoding="utf-8", newline="")
    except OSError as error:
        raise WorkloadError(error.strerror or str(error), file=str(path)) from error
