"""The service's part of the shared folder: whose it is, which attempts are live, and the records of each attempt.

| path | what |
|---|---|
| ``cluster-id`` | drawn once: the host of all attempts of this folder, whichever service leads |
| ``live/<attempt>`` | an index: the attempts whose end is not acknowledged |
| ``attempts/<attempt>/launch.json`` | before and after each submission: servers, and the engine's ids |
| ``attempts/<attempt>/exit.json`` | the end of the whole attempt, before it is reported |
| ``attempts/<attempt>/acknowledged.json`` | the same, renamed when the service has committed the report |
| ``attempts/<attempt>/progress.jsonl`` | progress over HTTP |
| ``attempts/<attempt>/<inbox>/`` | what the nodes share, see :mod:`service.executors.cluster.folder` |
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from policies.model.ids import AttemptId
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.deletion import delete_entry
from service.executors.files import rename_over, sync_folder, write_json
from service.executors.keys import ATTEMPT_NAME
from service.executors.seal import Seal
from service.runtime.untrusted import open_below, open_file, open_folder, read_small

CLUSTER_ID = "cluster-id"
LIVE = "live"
ATTEMPTS = "attempts"
LAUNCH = "launch.json"
_ID_BYTES_MAX = 64
_ID = re.compile(r"[0-9a-f]{16}")
_KEPT_WHEN_PRUNED = frozenset({LAUNCH, names.EXIT, names.ACKNOWLEDGED})


def cluster_id(shared_dir: Path) -> str:
    """The id of the shared folder, drawn at its first use. Raises OSError, also if the file holds no id."""
    path = shared_dir / CLUSTER_ID
    if not path.exists():
        draft = path.with_name(f".{CLUSTER_ID}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as stream:
                stream.write(secrets.token_hex(8))
                stream.flush()
                os.fsync(stream.fileno())
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(shared_dir)
    found = read_small(open_file(path), _ID_BYTES_MAX).decode(errors="replace").strip()
    if not _ID.fullmatch(found):
        raise OSError(f"{path} holds no id (16 hexadecimal digits): {found!r}")
    return found


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """What ``launch.json`` holds. ``servers``: by node rank. ``inbox``: the folder of the nodes.

    ``submissions``: an entry for each try, in order; None while its outcome is unknown. ``warning_signal`` and ``grace_s``: with
    which the service stops the attempt when the engine has lost it. ``user``: the system user of its submissions, None for that
    of the service.
    """

    servers: tuple[str, ...]
    inbox: str
    warning_signal: str | None
    grace_s: float
    submissions: tuple[str | None, ...] = ()
    user: str | None = None

    def tried(self) -> "LaunchRecord":
        """With one more submission whose outcome is unknown."""
        return replace(self, submissions=(*self.submissions, None))

    def submitted(self, engine_id: str) -> "LaunchRecord":
        """With the outcome of the last submission."""
        return replace(self, submissions=(*self.submissions[:-1], engine_id))

    def refused(self) -> "LaunchRecord":
        """Without the last submission, which had no effect."""
        return replace(self, submissions=self.submissions[:-1])

    @property
    def ids(self) -> list[str]:
        """The known ids."""
        return [entry for entry in self.submissions if entry is not None]


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The records of one attempt in the folder ``path``, all sealed with the attempt's key."""

    path: Path
    seal: Seal

    def inbox(self, record: LaunchRecord | None) -> Path:
        """The folder of the nodes."""
        return self.path / (record.inbox if record is not None else shared.INBOX)

    def acknowledged(self) -> bool:
        """Whether the end is committed. Raises OSError if the disk does not answer."""
        try:
            (self.path / names.ACKNOWLEDGED).lstat()
        except FileNotFoundError:
            return False
        return True

    def read_launch(self) -> LaunchRecord | None:
        """None if nothing was ever submitted. Raises OSError for an error that may pass."""
        record = names.read_record(self.path, LAUNCH, self.seal, strict=True)
        if record is None or record.keys() | {"user"} != {entry.name for entry in fields(LaunchRecord)}:
            return None
        return LaunchRecord(
            tuple(record["servers"]),
            record["inbox"],
            record["warning_signal"],
            record["grace_s"],
            tuple(record["submissions"]),
            record.get("user"),
        )

    def write_launch(self, record: LaunchRecord) -> None:
        """Raises OSError."""
        write_json(self.path / LAUNCH, self.seal.sealed(LAUNCH, asdict(record)))

    def read_end(self) -> dict[str, Any] | None:
        """The end that was or will be reported. Raises OSError for an error that may pass."""
        return names.read_end(self.path, self.seal)

    def write_end(self, record: dict[str, Any]) -> None:
        """Make the end durable before it is reported. Raises OSError."""
        write_json(self.path / names.EXIT, self.seal.sealed(names.EXIT, record))

    def reopen(self) -> None:
        """Make an acknowledged end one to be reported again. Raises OSError."""
        rename_over(self.path, names.ACKNOWLEDGED, names.EXIT)

    def settle(self) -> None:
        """Note that the report of the end is committed. Raises OSError."""
        rename_over(self.path, names.EXIT, names.ACKNOWLEDGED)

    def has_files(self) -> bool:
        """Whether it has more than its records. Raises OSError."""
        with os.scandir(self.path) as entries:
            return any(entry.name.startswith(shared.INBOX) for entry in entries)

    def prune(self) -> None:
        """Delete everything but the records that keep the attempt from running again. Raises OSError."""
        place = open_folder(self.path)
        try:
            with os.scandir(place) as entries:
                found = [entry.name for entry in entries if entry.name not in _KEPT_WHEN_PRUNED]
            for name in found:
                delete_entry(place, name)
        finally:
            os.close(place)


class LiveIndex:
    """The names of the attempts whose end is not acknowledged, so that finding them costs nothing for older ones."""

    def __init__(self, shared_dir: Path) -> None:
        self._folder = names.make_private(shared_dir / LIVE)

    def add(self, attempt: AttemptId) -> None:
        """Durable before anything else of the attempt is. Raises OSError."""
        os.close(open_below(self._folder, attempt, flags=os.O_WRONLY | os.O_CREAT))
        sync_folder(self._folder)

    def remove(self, attempt: AttemptId) -> None:
        """After its end was acknowledged. Raises OSError."""
        (self._folder / attempt).unlink(missing_ok=True)

    def has(self, attempt: AttemptId) -> bool:
        """Whether it is one of them. Raises OSError if the disk does not answer."""
        return os.path.lexists(self._folder / attempt)

    def attempts(self) -> Iterable[AttemptId]:
        """All of them. Raises OSError."""
        with os.scandir(self._folder) as entries:
            return [AttemptId(entry.name) for entry in entries if ATTEMPT_NAME.fullmatch(entry.name)]


def refresh(folder: Path) -> None:
    """See what other machines have made in a folder since the last look.

    An NFS client remembers for a minute that a name did not exist. It asks the server again when the folder is opened.
    """
    with contextlib.suppress(FileNotFoundError):
        os.close(open_folder(folder))


def append_progress(folder: Path, data: bytes) -> bool:
    """Append a line of progress that came over HTTP; False if it cannot be written."""
    try:
        descriptor = open_below(folder, names.PROGRESS, flags=os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError:
        return False
    try:
        return os.write(descriptor, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(descriptor)
