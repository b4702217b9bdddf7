"""The secrets of a data folder's attempts, all derived from one key."""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

from policies.model.ids import AttemptId, JobId, job_of
from service.executors.launch_plan import Identity
from service.executors.seal import Seal
from service.runtime.untrusted import PRIVATE_FILE, open_file, read_small

logger = logging.getLogger(__name__)

ATTEMPT_NAME = re.compile(r"[0-9]{1,18}\.[0-9]{1,9}")
"""Of names in the folder of the attempts. The numbers fit in the database, whatever a job has put there."""
_KEY_BYTES = 32
_NAME_DIGITS = 32
_UNSEALED_BYTES_MAX = 1 << 26


class AttemptKeys:
    """The key in ``data_dir``, which is drawn at the first start. Raises OSError."""

    def __init__(self, data_dir: Path) -> None:
        self._key = _load_key(data_dir / "executor.key")
        self._unsealed = _attempts_without_seals(data_dir / "unsealed", data_dir / "attempts")

    def identity(self, attempt: str) -> Identity:
        """What identifies the processes of an attempt."""
        return Identity.of(self._key, attempt)

    def checkpoints(self, job: int) -> str:
        """The name of a job's checkpoint folder where every user may make one: only the processes of the job know it."""
        return f"{job}-{hmac.new(self._key, f'checkpoints {job}'.encode(), hashlib.sha256).hexdigest()[:_NAME_DIGITS]}"

    def seal(self, attempt: str) -> Seal:
        """The seal of the records of an attempt."""
        return Seal(self.identity(attempt).seal, required=attempt not in self._unsealed)


def attempts_of(attempts: Path, jobs: Iterable[JobId]) -> dict[JobId, list[AttemptId]]:
    """The attempts of each of these jobs in the folder of all attempts, which is listed once, because an entry of every attempt
    ever made stays in it; without jobs not at all.
    """
    found: dict[JobId, list[AttemptId]] = {job: [] for job in jobs}
    for path in attempts.iterdir() if found else ():
        if ATTEMPT_NAME.fullmatch(path.name) and (job := job_of(AttemptId(path.name))) in found:
            found[job].append(AttemptId(path.name))
    return found


def _load_key(path: Path) -> bytes:
    """The secret behind progress tokens: drawn once for all executors on the folder."""
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                os.write(descriptor, secrets.token_bytes(_KEY_BYTES))
                os.fsync(descriptor)
                path.hardlink_to(temporary)
            finally:
                os.close(descriptor)
                temporary.unlink()
    return read_small(open_file(path), _KEY_BYTES)


def _attempts_without_seals(file: Path, attempts: Path) -> frozenset[str]:
    """The attempts that are older than the seals of records; noted at the first start of a release that has them.

    Raises OSError if the note cannot be read.
    """
    try:
        return frozenset(read_small(open_file(file), _UNSEALED_BYTES_MAX).decode(errors="replace").split())
    except FileNotFoundError:
        pass
    except OSError as error:
        # Without it the ends of older attempts would count as forged, and their jobs would start a second time.
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error
    found = frozenset(path.name for path in attempts.iterdir() if ATTEMPT_NAME.fullmatch(path.name))
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as stream:
            stream.write("\n".join(sorted(found)))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    except OSError as error:
        # A service can be started on a full disk. The next start tries again.
        logger.error("%s cannot be written: %s", file, error)
        draft.unlink(missing_ok=True)
    return found
