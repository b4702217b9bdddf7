"""Recognising a full disk in whichever exception it shows. Imports the standard library alone: every command may need it."""

import errno
from collections.abc import Iterator
from typing import Final

_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No room, over the user's quota, over the process's limit (``ulimit -f``)."""

_SQLITE: Final = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE"})
"""SQLite reports a write error without its number: a failing disk is among these."""

_POSTGRESQL: Final = "53100"


def no_room(error: BaseException) -> str | None:
    """One line if the error, or one that caused it, is a write for which the disk has no room; else None."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _ERRORS:
            where = f"cannot write {cause.filename}: " if cause.filename else "cannot write: "
            return f"{where}{cause.strerror}"
        if getattr(cause, "sqlite_errorname", None) in _SQLITE or getattr(cause, "sqlstate", None) == _POSTGRESQL:
            return f"cannot write to the database, its disk is full or fails: {' '.join(str(cause).split())}"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        yield following
        original = getattr(following, "orig", None)
        if isinstance(original, BaseException):
            yield original
        following = following.__cause__ or following.__context__
