"""The token that opens the API. A POST runs commands, so there is no mode without it.

``serve`` writes it once; the command line and the client on the same machine read it by themselves.
"""

import os
import secrets
from pathlib import Path

from service.runtime.untrusted import PRIVATE_FOLDER, open_file

TOKEN_FILE = "token"  # noqa: S105 (a file's name)
TOKEN_BYTES = 32


class TokenFileError(Exception):
    """The token file cannot be used; the message says why in one line."""


def load_or_create(data_dir: Path, folder_mode: int = PRIVATE_FOLDER) -> str:
    """The token of this data folder, made at the first call.

    The folder gets ``folder_mode`` and the file 0600. Two processes that start at once agree on one token: the file appears
    complete and under its name at once, and the loser reads the winner's. Raises :class:`TokenFileError`.
    """
    path = data_dir / TOKEN_FILE
    try:
        data_dir.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        data_dir.chmod(folder_mode)
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise TokenFileError(f"cannot use the token file {path}: {error.strerror}") from error


def _create(path: Path) -> None:
    draft = path.with_name(f"{TOKEN_FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A hard link, unlike a rename, never replaces a token that another process has already handed out.
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    descriptor = open_file(path)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            os.fchmod(file.fileno(), 0o600)
        token = file.read(4096).strip()
    if not token or not token.isascii() or not token.isprintable():
        raise TokenFileError(f"the token file {path} contains no token; delete it, and the next start creates one")
    return token
