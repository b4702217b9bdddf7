"""The progress of an attempt that spans servers: a file on each, and one for what came over HTTP. The newest counts."""

from collections.abc import Sequence
from pathlib import Path

from service.executors.progress import Progress, ProgressFile


class AttemptProgress:
    """All progress files of one attempt. Each reading costs one open a file."""

    def __init__(self, files: Sequence[Path], since_s: float) -> None:
        self.newest = Progress()
        self._files = [ProgressFile(path, since_s) for path in files]

    def read(self, now_s: float, final: bool = False) -> bool:
        """Read new lines of all files; True if the newest numbers changed. ``final`` as in :class:`ProgressFile`."""
        changed = [file.read(now_s, final) for file in self._files]
        if not any(changed):
            return False
        newest = max((file.progress for file in self._files), key=_iteration)
        checkpoints = [file.progress.checkpoint_iteration for file in self._files]
        found = Progress(
            newest.iteration,
            newest.total_iterations,
            max((number for number in checkpoints if number is not None), default=None),
            newest.loss,
            newest.input_s,
        )
        if _numbers(found) == _numbers(self.newest):
            return False
        self.newest = found
        return True


def _iteration(progress: Progress) -> float:
    return progress.iteration if progress.iteration is not None else -1.0


def _numbers(progress: Progress) -> tuple[float | None, ...]:
    return progress.iteration, progress.total_iterations, progress.checkpoint_iteration
