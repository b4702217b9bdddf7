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
    """Whether jobs run as their users."""
    return settings.run_as == "submitter" and settings.executor == "local"


def data_dir_mode(settings: Settings) -> int:
    """The mode of the data folder."""
    return ENTERED_FOLDER if runs_as_submitters(settings) else PRIVATE_FOLDER


def sentence(settings: Settings) -> str:
    """One line about whom jobs run as, for the start; empty if there are no processes."""
    if settings.executor != "local":
        return ""
    if runs_as_submitters(settings):
        return "Jobs run as their users (run_as=submitter)"
    return f"Jobs run as user {os.geteuid()}, can read what the service can, and are not kept from each other (run_as=service)"


def keep_users_apart(settings: Settings) -> None:
    """Check that jobs can run as their users, and close the data folder to them except for their own folders.

    Does nothing for ``run_as=service``. Raises StartError.
    """
    if not runs_as_submitters(settings):
        return
    if os.geteuid() != 0:
        raise StartError(
            f"run_as=submitter needs a service that runs as root, and this one runs as user {os.geteuid()}; "
            "start it as root, or set run_as=service"
        )
    for user in settings.run_as_users:
        try:
            account_of(user, settings.run_as_users)
        except NoAccount as refusal:
            name = settings.run_as_users[user]
            raise StartError(f"run_as_users: {user}={name}: {refusal}") from None
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
        mode = stat.S_IMODE(part.stat().st_mode)
        if not mode & stat.S_IXOTH:
            raise StartError(
                f"run_as=submitter: other users cannot pass through {part} (mode {mode:04o}) on the way to {folder}; "
                f"run chmod o+x {part}, or choose another data_dir or checkpoints_dir"
            )
