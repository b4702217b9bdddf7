"""What the engine says about the submissions of one attempt: usually one, two after a call that succeeded late.

Written by the thread that asks the engine and by the one that submits, read by others: each change replaces the whole.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from service.executors.cluster.driver import EngineEnd, EngineJob, EngineJobState

FORGOTTEN_S = 5.0
"""Time without a submission in the engine's answers after which the engine has forgotten it: one answer may be incomplete."""

_TELLING = (
    EngineEnd.NODE_FAILED,
    EngineEnd.OUT_OF_MEMORY,
    EngineEnd.TIME_LIMIT,
    EngineEnd.CANCELLED,
    EngineEnd.NOT_STARTED,
    EngineEnd.COMPLETED,
)


@dataclass(frozen=True, slots=True)
class _Submission:
    """``job``: as last seen. ``missing_since_s``: of the first of the newest answers in a row that do not have it."""

    known_at_s: float
    job: EngineJob | None = None
    state_since_s: float = math.inf
    missing_since_s: float | None = None
    forgotten: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing of it can run any more as far as the engine knows."""
        return self.forgotten or (self.job is not None and self.job.state is EngineJobState.ENDED)


class Submissions:
    """All of one attempt. Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._known: Mapping[str, _Submission] = {}
        self._uncertain_s: float | None = None
        self.answered_s = -math.inf
        """When the newest answer of the engine was asked for."""

    def add(self, engine_id: str, now_s: float) -> None:
        """The engine has this submission, as the answer to a submit or a record says."""
        with self._writing:
            if engine_id not in self._known:
                self._known = {**self._known, engine_id: _Submission(now_s)}

    def note_uncertain(self, now_s: float) -> None:
        """A submit may have had an effect. Answers that are asked for from now on show it."""
        self._uncertain_s = now_s

    def observe(self, jobs: Sequence[EngineJob], asked_s: float) -> bool:
        """Take over the part of an answer that concerns the attempt; whether anything has changed."""
        with self._writing:
            return self._observe({job.id: job for job in jobs}, asked_s)

    def _observe(self, found: dict[str, EngineJob], asked_s: float) -> bool:
        known = dict(self._known)
        for engine_id, entry in self._known.items():
            if engine_id in found:
                known[engine_id] = _seen(entry, found.pop(engine_id), asked_s)
            elif not entry.over and asked_s > entry.known_at_s:
                since_s = entry.missing_since_s if entry.missing_since_s is not None else asked_s
                known[engine_id] = replace(entry, missing_since_s=since_s, forgotten=asked_s - since_s >= FORGOTTEN_S)
        for engine_id, job in found.items():
            known[engine_id] = _seen(_Submission(asked_s), job, asked_s)
        was_certain = self.certain
        changed = known != self._known
        self._known = known
        self.answered_s = max(self.answered_s, asked_s)
        return changed or self.certain is not was_certain

    @property
    def certain(self) -> bool:
        """Whether an answer was asked for after the last submit whose outcome is unknown."""
        return self._uncertain_s is None or self.answered_s > self._uncertain_s

    @property
    def ids(self) -> list[str]:
        """All known ones."""
        return list(self._known)

    @property
    def alive(self) -> list[str]:
        """Those that are not over."""
        return [engine_id for engine_id, entry in self._known.items() if not entry.over]

    @property
    def pending(self) -> list[str]:
        """Those that wait in the engine."""
        return [
            engine_id
            for engine_id, entry in self._known.items()
            if not entry.over and entry.job is not None and entry.job.state is EngineJobState.PENDING
        ]

    @property
    def forgotten(self) -> bool:
        """Whether the engine has forgotten one before its end was seen."""
        return any(entry.forgotten for entry in self._known.values())

    def waits_since_s(self) -> float:
        """Since when none of them has gone on: the newest change of a state; inf if the engine has shown none."""
        times = [entry.state_since_s for entry in self._known.values() if not entry.over]
        return max(times, default=math.inf)

    def end(self, cancelled: set[str]) -> EngineJob | None:
        """The ended submission that tells most about the end of the attempt. ``cancelled``: by this service."""
        ended = [
            entry.job
            for engine_id, entry in self._known.items()
            if entry.job is not None and entry.job.end is not None and engine_id not in cancelled
        ]
        return min(ended, key=lambda job: _TELLING.index(job.end or EngineEnd.COMPLETED), default=None)

    def detail(self) -> str:
        """What the engine says of those that are not over."""
        jobs = [entry.job for entry in self._known.values() if not entry.over and entry.job is not None]
        return "; ".join(job.detail for job in jobs if job.detail)

    @property
    def stuck(self) -> str:
        """Why the engine will never start one of those that are not over; empty if it may start them all."""
        jobs = [entry.job for entry in self._known.values() if not entry.over and entry.job is not None]
        return next((job.stuck for job in jobs if job.stuck), "")

    def gpu_ids(self, servers: Sequence[str]) -> tuple[tuple[int, ...], ...] | None:
        """The GPUs on these servers, as far as the engine has named them for all."""
        for entry in self._known.values():
            held = entry.job.gpu_ids if entry.job is not None else {}
            if all(server in held for server in servers):
                return tuple(tuple(held[server]) for server in servers)
        return None


def _seen(entry: _Submission, job: EngineJob, asked_s: float) -> _Submission:
    if entry.job is not None and entry.job.state is EngineJobState.ENDED:
        return entry  # an end is final, whatever an answer that was on its way says
    changed = entry.job is None or entry.job.state is not job.state
    since_s = asked_s if changed else entry.state_since_s
    return _Submission(entry.known_at_s, job, since_s)
