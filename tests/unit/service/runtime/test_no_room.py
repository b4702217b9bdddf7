"""A full disk is recognised in the errors of files, of SQLite and of PostgreSQL, and in what they cause."""

import errno
import os
import sqlite3

from sqlalchemy.exc import OperationalError

from service.runtime.no_room import no_room


def written(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/data/token")


def test_errors_of_files() -> None:
    assert no_room(written(errno.ENOSPC)) == "cannot write /data/token: No space left on device"
    assert no_room(written(errno.EFBIG)) == "cannot write /data/token: File too large"
    assert no_room(written(errno.EACCES)) is None


def test_errors_that_a_full_disk_caused() -> None:
    outer = RuntimeError("cannot start")
    outer.__cause__ = written(errno.EDQUOT)
    assert no_room(outer) is not None
    outer.__cause__ = outer
    assert no_room(outer) is None


def test_errors_of_databases() -> None:
    full = sqlite3.OperationalError("database or disk\nis full")
    full.sqlite_errorname = "SQLITE_FULL"
    line = no_room(OperationalError("INSERT", None, full))
    assert line is not None
    assert "disk is full" in line and "\n" not in line

    class DiskFull(Exception):
        sqlstate = "53100"

    assert no_room(OperationalError("INSERT", None, DiskFull("could not extend file"))) is not None
    locked = sqlite3.OperationalError("database is locked")
    assert no_room(OperationalError("INSERT", None, locked)) is None
