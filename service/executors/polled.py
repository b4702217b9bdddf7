"""Reports of an executor, collected often and cheaply and consumed by the next cycle."""

import threading
from collections.abc import Callable, Mapping, Sequence

from policies.model.cluster import Cluster
from policies.model.ids import AttemptId
from service.engine.commands import Command
from service.engine.events import Report, ReportKind
from service.engine.ports import AttemptStatus, Executor

ProgressSink = Callable[[Sequence[Report]], None]


class PolledExecutor:
    """Implements :class:`service.engine.ports.Executor` with reports that were fetched by :meth:`collect`.

    A start or an end asks for a cycle at once. Progress waits for the next cycle, and only the newest of each attempt is kept.
    Committed progress goes to ``progress_sink``.
    """

    def __init__(self, inner: Executor, progress_sink: ProgressSink) -> None:
        self._inner = inner
        self._progress_sink = progress_sink
        self._lock = threading.Lock()
        self._progress: dict[AttemptId, Report] = {}
        self._others: list[Report] = []

    def collect(self) -> bool:
        """Fetch new reports; True if they need a cycle now. O(live attempts)."""
        with self._lock:
            others = []
            for report in self._inner.poll():
                if report.kind is ReportKind.PROGRESS and report.attempt is not None:
                    self._progress[report.attempt] = report
                else:
                    others.append(report)
            self._others = others
            return bool(others)

    def poll(self) -> Sequence[Report]:
        """All reports collected and new."""
        self.collect()
        with self._lock:
            progress = list(self._progress.values())
            self._progress = {}
            return sorted([*progress, *self._others], key=lambda report: report.at_s)

    def acknowledge(self, reports: Sequence[Report]) -> None:
        """Pass on to the executor, and progress to the sink."""
        with self._lock:  # another thread may be in the middle of a poll
            self._inner.acknowledge(reports)
        progress = [report for report in reports if report.kind is ReportKind.PROGRESS]
        if progress:
            self._progress_sink(progress)

    def send(self, commands: Sequence[Command]) -> None:
        """Pass on."""
        self._inner.send(commands)

    def use_cluster(self, cluster: Cluster) -> None:
        """Pass on."""
        self._inner.use_cluster(cluster)

    def observed(self) -> Mapping[AttemptId, AttemptStatus]:
        """Pass on."""
        return self._inner.observed()
