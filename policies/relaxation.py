"""The single-machine relaxation that guides A-SRPT: one virtual machine under preemptive shortest-remaining-work-first.

The idea of mapping the cluster to one machine, solved optimally by preemptive SRPT, is the A-SRPT paper's
(arXiv 2501.05563, abstract). The work of a job on it, p = GPUs x seconds / all GPUs, is our construction: with the true
iterations and alpha_floor the sum of virtual completion times is a lower bound on that of any schedule of the cluster,
because running job i at rate g_i / G while it runs for real is feasible on the machine.
"""

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

from policies.model.ids import JobId


class Completion(NamedTuple):
    """A completion of a job on the virtual machine."""

    at_s: float
    job: JobId


@dataclass(slots=True)
class _Task:
    remaining_s: float
    submitted_at_s: float
    entry: int


class VirtualMachine:
    """Preemptive SRPT at speed 1. Only arrivals and completions are events; each costs O(log n).

    Ties go to the earlier submission, then the smaller job id. Time never goes backwards (ValueError).
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._tasks: dict[JobId, _Task] = {}
        self._heap: list[tuple[float, float, JobId, int]] = []
        self._entries = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, job: JobId) -> bool:
        return job in self._tasks

    def add(self, job: JobId, work_s: float, submitted_at_s: float) -> None:
        """Add a job with ``work_s`` seconds of virtual work, released now. ValueError for a known job."""
        if job in self._tasks:
            raise ValueError(f"job {job} is on the virtual machine already")
        self._push(job, max(0.0, work_s), submitted_at_s)

    def remove(self, job: JobId) -> None:
        """Remove a job (cancelled, held); unknown jobs are ignored."""
        self._tasks.pop(job, None)

    def rescale(self, factor: float) -> None:
        """Multiply all remaining work, because the machine's speed has changed. O(n)."""
        for task in self._tasks.values():
            task.remaining_s *= factor
        self._heap = [(task.remaining_s, task.submitted_at_s, job, task.entry) for job, task in self._tasks.items()]
        heapq.heapify(self._heap)

    def remaining_s(self, job: JobId) -> float:
        """Virtual work that is left. KeyError for unknown jobs."""
        return self._tasks[job].remaining_s

    def advance(self, to_s: float) -> list[Completion]:
        """Run until ``to_s`` and return what completed, in order."""
        if to_s < self.now_s:
            raise ValueError(f"the virtual machine is at {self.now_s}, cannot go back to {to_s}")
        completed: list[Completion] = []
        while (top := self._top()) is not None:
            job, task = top
            end_s = self.now_s + task.remaining_s
            if end_s > to_s:
                self._work(job, task, to_s - self.now_s)
                break
            self.now_s = end_s
            heapq.heappop(self._heap)
            del self._tasks[job]
            completed.append(Completion(end_s, job))
        self.now_s = to_s
        return completed

    def next_completion_s(self) -> float | None:
        """When the next job completes if nothing arrives; None when idle."""
        top = self._top()
        return None if top is None else self.now_s + top[1].remaining_s

    def dump(self) -> dict[str, Any]:
        """The machine's time and each job's remaining work."""
        remaining = {str(job): task.remaining_s for job, task in sorted(self._tasks.items())}
        return {"now_s": self.now_s, "remaining_s": remaining}

    def _push(self, job: JobId, remaining_s: float, submitted_at_s: float) -> None:
        self._entries += 1
        self._tasks[job] = _Task(remaining_s, submitted_at_s, self._entries)
        heapq.heappush(self._heap, (remaining_s, submitted_at_s, job, self._entries))

    def _top(self) -> tuple[JobId, _Task] | None:
        """The job that runs now; entries that were replaced or removed are dropped here."""
        while self._heap:
            _, _, job, entry = self._heap[0]
            task = self._tasks.get(job)
            if task is not None and task.entry == entry:
                return job, task
            heapq.heappop(self._heap)
        return None

    def _work(self, job: JobId, task: _Task, elapsed_s: float) -> None:
        """Shorten the running job. It is at the top of the heap and stays there."""
        if elapsed_s > 0.0:
            task.remaining_s -= elapsed_s
            heapq.heapreplace(self._heap, (task.remaining_s, task.submitted_at_s, job, task.entry))
