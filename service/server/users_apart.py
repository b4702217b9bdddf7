"""Jobs that run as their users (setting ``run_as``): what must hold at the start, and the modes of the data folder."""

import os
import stat
from pathlib import Path

from service.config.settings import Settings
from service.runtime.accounts import NoAccount, account_of
from service.runtime.untrusted import PRIVATE_FOLDER
from service.server.startup import StartError

ENTERED_FOLDER = 0o711
"""Mode of the folders on the way to those of the jobs: others may pass, but not list them."""

_UMASK = 0o077


def runs_as_submitters(settings: Settings) -> bool:
    """Whether this service starts jobs as their users, which an engine does by itself."""
    return settings.run_as == "submitter" and settings.executor == "local"


def data_dir_mode(settings: Settings) -> int:
    """The mode of the data folder."""
    return ENTERED_FOLDER if runs_as_submitters(settings) else PRIVATE_FOLDER


def sentence(settings: Settings) -> str:
    """One line about whom jobs run as, for the start; empty if there are no processes."""
    if settings.executor == "fake":
        return ""
    if settings.run_as == "submitter":
        return "Jobs run as their users (run_as=submitter)"
    if settings.executor != "local":
        return "Jobs run as one user of the engine, and are not kept from each other (run_as=service)"
    return f"Jobs run as user {os.geteuid()}, can read what the service can, and are not kept from each other (run_as=service)"


def keep_users_apart(settings: Settings) -> None:
    """Check that jobs can run as their users, and close the data folder to them except for their own folders.

    Where an engine runs them, nothing of theirs is in the data folder: then the shared one is checked, as this machine sees it.
    Does nothing for ``run_as=service``. Raises StartError.
    """
    if settings.run_as != "submitter" or settings.executor == "fake":
        return
    if settings.executor != "local":
        _check_accounts(settings)
        _check_shared(settings)
        return
    if os.geteuid() != 0:
        raise StartError(
            f"run_as=submitter needs a service that runs as root, and this one runs as user {os.geteuid()}; "
            "start it as root, or set run_as=service"
        )
    _check_accounts(settings)
    # Files that the service makes from here on are for root alone. Jobs get the usual umask.
    os.umask(_UMASK)
    entered = [settings.data_dir / "attempts", settings.checkpoints_dir or settings.data_dir / "checkpoints"]
    try:
        inside = [path.relative_to(settings.data_dir) for path in entered if path.is_relative_to(settings.data_dir)]
        _close(settings.data_dir, {path.parts[0] for path in inside if path.parts})
        for path in entered:
            if not path.exists():
                path.mkdir(parents=True)
                path.chmod(ENTERED_FOLDER)
            elif path.parent == settings.data_dir:
                path.chmod(ENTERED_FOLDER)
    except OSError as error:
        raise StartError(f"run_as=submitter: {error.filename}: {error.strerror}") from error
    for path in (settings.data_dir, *entered):
        _check_way(path)


def _check_accounts(settings: Settings) -> None:
    for user, name in settings.run_as_users.items():
        try:
            account_of(user, settings.run_as_users)
        except NoAccount as refusal:
            raise StartError(f"run_as_users: {user}={name}: {refusal}") from None


def _check_shared(settings: Settings) -> None:
    """Raises StartError if other users cannot pass through the folders of the jobs. The way to them is that of the servers."""
    if settings.shared_dir is None:
        return
    for part in (settings.shared_dir, settings.shared_dir / "attempts"):
        if part.is_dir():
            _check_passed(part, part, "shared_dir")


def _close(data_dir: Path, entered: set[str]) -> None:
    """Take all rights of others from everything in the data folder except the folders ``entered``."""
    place = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(place):  # noqa: PTH208 a descriptor, no path
            status = os.stat(name, dir_fd=place, follow_symlinks=False)
            if name not in entered and not stat.S_ISLNK(status.st_mode):
                os.chmod(name, stat.S_IMODE(status.st_mode) & ~0o077, dir_fd=place)
        os.fchmod(place, ENTERED_FOLDER)
    finally:
        os.close(place)


def _check_way(folder: Path) -> None:
    """Raises StartError if other users cannot pass through a folder on the way."""
    for part in (folder, *folder.parents):
        _check_passed(part, folder, "data_dir or checkpoints_dir")


def _check_passed(part: Path, folder: Path, settings: str) -> None:
    mode = stat.S_IMODE(part.stat().st_mode)
    if not mode & stat.S_IXOTH:
        raise StartError(
            f"run_as=submitter: other users cannot pass through {part} (mode {mode:04o}) on the way to {folder}; "
            f"run chmod o+x {part}, or choose another {settings}"
        )
