"""The files of a cluster's attempts as every service with the shared folder reads them: logs, progress over HTTP, deletion."""

import hmac
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from policies.model.ids import AttemptId, JobId, attempt_id, job_of
from service.engine.ports import Clock, ExecutorUnavailable
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.shared import LAUNCH, AttemptFolder, append_progress
from service.executors.deletion import delete_path
from service.executors.keys import ATTEMPT_NAME, AttemptKeys, attempts_of
from service.executors.logs import LogChunk, read_log
from service.executors.progress import LINE_BYTES_MAX, Ignored, RateLimit, check_line

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""Longest wait of a progress report over HTTP, which holds one of the threads that answer requests."""
_RECEIVERS = 32
"""Reports that may wait for the shared folder at once."""
_RATES = 10_000


class ClusterFiles:
    """``attempts``: the folder of all attempts. ``checkpoints``: that of all jobs' checkpoints. For calls from any thread.

    ``checkpoint_name``: see :class:`service.executors.launch_plan.Site`.
    """

    def __init__(
        self,
        attempts: Path,
        checkpoints: Path,
        keys: AttemptKeys,
        clock: Clock,
        checkpoint_name: Callable[[int], str] = str,
    ) -> None:
        self._attempts = attempts
        self._checkpoints = checkpoints
        self._keys = keys
        self._clock = clock
        self._checkpoint_name = checkpoint_name
        self._lock = threading.Lock()
        self._rates: OrderedDict[AttemptId, RateLimit] = OrderedDict()
        self._receiving = threading.Semaphore(_RECEIVERS)
        self._undeleted: set[Path] = set()

    def folder(self, attempt: AttemptId) -> AttemptFolder:
        """The records of an attempt."""
        return AttemptFolder(self._attempts / attempt, self._keys.seal(attempt))

    def jobs_with_files(self) -> set[JobId]:
        """Jobs that still have logs. O(all attempts ever made)."""
        found = (path for path in self._attempts.iterdir() if ATTEMPT_NAME.fullmatch(path.name))
        return {job_of(AttemptId(path.name)) for path in found if self.folder(AttemptId(path.name)).has_files()}

    def read_logs(self, job: JobId, attempt: int, offset: int, limit_bytes: int, node: int) -> LogChunk:
        """A part of the log of an attempt on one of its servers. Raises KeyError if there is none."""
        folder = self.folder(attempt_id(job, attempt))
        if not names.exists(folder.path):
            raise KeyError(attempt_id(job, attempt))
        record = folder.read_launch()
        if node not in range(len(record.servers) if record is not None else 1):
            raise KeyError(f"{attempt_id(job, attempt)} on its server {node}")
        return read_log(shared.node_folder(folder.inbox(record), node) / names.OUTPUT, offset, limit_bytes)

    def accept_progress(self, attempt: AttemptId, token: str, line: Mapping[str, Any]) -> bool:
        """Append one line to the progress file of the attempt, whose rules it must obey; False if it breaks one.

        Raises PermissionError for a wrong token or an attempt that does not run, and ExecutorUnavailable if the folder hangs.
        """
        if not ATTEMPT_NAME.fullmatch(attempt) or not hmac.compare_digest(
            self._keys.identity(attempt).token.encode(), token.encode()
        ):
            raise PermissionError(attempt)
        if isinstance(check_line(line), Ignored):
            return False
        data = json.dumps(dict(line)).encode() + b"\n"
        written = self._in_time(lambda: self._receive(attempt, data))
        if written is None:
            raise PermissionError(attempt)
        return written

    def _receive(self, attempt: AttemptId, data: bytes) -> bool | None:
        """Whether the line was written; None if the attempt does not run."""
        path = self._attempts / attempt
        over = names.has(path, names.EXIT) or names.has(path, names.ACKNOWLEDGED)
        if over or not names.has(path, LAUNCH):
            return None
        if len(data) > LINE_BYTES_MAX or not self._may_pass(attempt):
            return False
        return append_progress(path, data)

    def _may_pass(self, attempt: AttemptId) -> bool:
        now_s = self._clock.now_s()
        with self._lock:
            rate = self._rates.setdefault(attempt, RateLimit(now_s))
            self._rates.move_to_end(attempt)
            if len(self._rates) > _RATES:
                self._rates.popitem(last=False)
            return rate.admit(1, now_s) > 0

    def _in_time(self, work: Callable[[], bool | None]) -> bool | None:
        """The result of ``work``, which may hang with the folder. Raises ExecutorUnavailable."""
        if not self._receiving.acquire(timeout=_PATIENCE_S):
            raise ExecutorUnavailable("the folders of the attempts do not answer")
        answers: list[bool | None] = []
        done = threading.Event()

        def run() -> None:
            try:
                answers.append(work())
            finally:
                self._receiving.release()
                done.set()

        threading.Thread(target=run, name="progress", daemon=True).start()
        if not done.wait(_PATIENCE_S):
            raise ExecutorUnavailable("the folders of the attempts do not answer")
        return answers[0] if answers else False

    def prune(self, jobs: Iterable[JobId]) -> int:
        """Delete logs, work folders and checkpoints of ended jobs; returns the number of attempts.

        The records of each attempt stay, so that it never runs again. Files that cannot be deleted hold up no other job; they are
        logged once. Checkpoints of another user, which this service may not delete, stay without the rest of the job.
        """
        pruned = 0
        for job, attempts in attempts_of(self._attempts, jobs).items():
            checkpoints = self._checkpoints / self._checkpoint_name(job)
            if not self._deleted(checkpoints, partial(_delete_permitted, checkpoints)):
                continue
            for attempt in attempts:
                folder = self.folder(attempt)
                if names.has(folder.path, names.ACKNOWLEDGED):
                    pruned += self._deleted(folder.path, folder.prune)
        return pruned

    def _deleted(self, path: Path, delete: Callable[[], None]) -> bool:
        try:
            delete()
        except OSError as error:
            if path not in self._undeleted:
                logger.error("%s cannot be deleted: %s", path, error)
            self._undeleted.add(path)
            return False
        self._undeleted.discard(path)
        return True


def _delete_permitted(checkpoints: Path) -> None:
    """Delete the checkpoints of a job. Those that this process may not delete are left to their owner. Raises OSError."""
    try:
        delete_path(checkpoints)
    except PermissionError as error:
        owner = checkpoints.lstat().st_uid
        logger.error("%s stays: user %d or root has to delete it (%s)", checkpoints, owner, error)
