"""Counts where two policies that decide about the same world agree, decision by decision and in GPU-seconds.

The first policy's actions are carried out. The actions of the second policy, the shadow, are not; they are called wishes. The
wish to start a job counts once until the job starts, and the wish to stop a job counts once for each attempt.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation
from policies.model.view import ClusterView
from service.shadow.comparison import Comparison

DIFFERENCES_KEPT = 100
"""Number of newest cycles with a difference that are kept."""


@dataclass(slots=True)
class Tally:
    """Decisions of one kind. ``first_only`` and ``shadow_only`` count the decisions of one policy alone.

    For starts, ``both_gpu_s`` and ``first_only_gpu_s`` are held by the started attempts, and ``shadow_only_gpu_s`` were free
    on GPUs that the shadow would have used. For preemptions they are the lost work at the time of the stop, times its GPUs.
    """

    both: int = 0
    first_only: int = 0
    shadow_only: int = 0
    both_gpu_s: float = 0.0
    first_only_gpu_s: float = 0.0
    shadow_only_gpu_s: float = 0.0

    @property
    def agreement_ratio(self) -> float | None:
        """The share of decisions that both policies made; None without decisions."""
        total = self.both + self.first_only + self.shadow_only
        return self.both / total if total else None


@dataclass(slots=True)
class Totals:
    """All counts. ``granted_later`` counts wished starts that the first policy made in a later cycle; ``granted_later_s`` is
    the sum of the seconds from the first wish to that start.

    The last four count starts that both policies made in one cycle: on the same servers with the same shares, or the shadow's
    on fewer servers, on more, or on as many but other servers (or in other shares).
    """

    passes: int = 0
    skipped: int = 0
    starts: Tally = field(default_factory=Tally)
    preemptions: Tally = field(default_factory=Tally)
    granted_later: int = 0
    granted_later_s: float = 0.0
    same_placement: int = 0
    fewer_servers: int = 0
    more_servers: int = 0
    other_servers: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """An action of the shadow that the first policy does not take: start the job on ``placement``, or stop it ``for_job``."""

    job: JobId
    since_s: float
    gpus: int
    placement: Placement | None = None
    for_job: JobId | None = None


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An open attempt that only the first policy started.

    ``shadow`` explains why the job would have waited; ``instead`` are jobs that the shadow would have started in that cycle.
    """

    job: JobId
    since_s: float
    gpus: int
    shadow: Explanation | None
    instead: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One cycle in which the two policies decided differently. ``cycle`` is None for a cycle without changes.

    ``starts_shadow`` and ``stops_shadow`` are wishes that are new in this cycle, even if they existed earlier.
    """

    cycle: int | None
    at_s: float
    starts_both: int
    starts_first: tuple[JobId, ...]
    starts_shadow: tuple[JobId, ...]
    stops_both: int
    stops_first: tuple[JobId, ...]
    stops_shadow: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class SavedAgreement:
    """An :class:`Agreement` as an immutable value. A restarted service continues from it.

    ``agreed``: GPUs of running attempts that both policies started; ``first_wished``: when the start of a waiting job was
    first wished; ``counted_stops``: running jobs whose wished stop is counted.
    """

    since_s: float
    at_s: float
    totals: Totals = field(default_factory=Totals)
    agreed: tuple[tuple[JobId, int], ...] = ()
    unwanted: tuple[Unwanted, ...] = ()
    wished_starts: tuple[Wish, ...] = ()
    wished_stops: tuple[Wish, ...] = ()
    differences: tuple[Difference, ...] = ()
    first_wished: tuple[tuple[JobId, float], ...] = ()
    counted_stops: tuple[JobId, ...] = ()


class Agreement:
    """The counts for two policies. Times are seconds on the engine's clock and never decrease."""

    def __init__(self, past: SavedAgreement) -> None:
        """Continue from ``past``. Its attempts and wishes count as if they had continued since then."""
        self.since_s, self._at_s = past.since_s, past.at_s
        self.totals = deepcopy(past.totals)
        self.wished_starts = {each.job: each for each in past.wished_starts}
        self.wished_stops = {each.job: each for each in past.wished_stops}
        self.unwanted = {each.job: each for each in past.unwanted}
        self.differences = deque(past.differences, maxlen=DIFFERENCES_KEPT)
        self._agreed = dict(past.agreed)
        self._first_wished = dict(past.first_wished)
        self._counted_stops = set(past.counted_stops)
        # Running sums: the GPU-seconds of a cycle cost O(1), not O(attempts).
        self._gpus_agreed = sum(self._agreed.values())
        self._gpus_unwanted = sum(each.gpus for each in past.unwanted)
        self._gpus_wished = sum(each.gpus for each in past.wished_starts)

    def saved(self) -> SavedAgreement:
        """An immutable copy."""
        return SavedAgreement(
            self.since_s,
            self._at_s,
            deepcopy(self.totals),
            tuple(self._agreed.items()),
            tuple(self.unwanted.values()),
            tuple(self.wished_starts.values()),
            tuple(self.wished_stops.values()),
            tuple(self.differences),
            tuple(self._first_wished.items()),
            tuple(sorted(self._counted_stops)),
        )

    def disagreements(self) -> dict[JobId, Wish | Unwanted]:
        """One entry for each job on which the policies disagree now. A wish takes precedence over an unwanted attempt."""
        return {**self.unwanted, **self.wished_stops, **self.wished_starts}

    def advance(self, now_s: float) -> None:
        """Add the GPU-seconds until ``now_s``. O(1)."""
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        starts = self.totals.starts
        starts.both_gpu_s += elapsed_s * self._gpus_agreed
        starts.first_only_gpu_s += elapsed_s * self._gpus_unwanted
        starts.shadow_only_gpu_s += elapsed_s * self._gpus_wished

    def note(self, changes: Sequence[Change]) -> None:
        """Remove attempts that have ended and waiting jobs that are gone. O(changes)."""
        for change in changes:
            if change.job is None:
                continue
            if change.kind is ChangeKind.VACATED:
                self._release(change.job)
            elif change.kind in (ChangeKind.FINISHED, ChangeKind.WITHDRAWN):
                self._drop_wish(change.job)
                if change.kind is ChangeKind.FINISHED:
                    self._first_wished.pop(change.job, None)

    def count(self, seen: Comparison) -> None:
        """Count one cycle, after the first policy's actions are carried out. O(actions + wishes)."""
        self.advance(seen.at_s)
        self.note(seen.changes)
        self.totals.passes += 1
        new_starts = self._count_starts(seen)
        new_stops = self._count_stops(seen)
        starts_first = tuple(job for job in seen.starts_first if job not in seen.starts_shadow)
        stops_first = tuple(job for job in seen.stops_first if job not in seen.stops_shadow)
        if starts_first or new_starts or stops_first or new_stops:
            self.differences.appendleft(
                Difference(
                    seen.cycle,
                    seen.at_s,
                    len(seen.starts_first) - len(starts_first),
                    starts_first,
                    new_starts,
                    len(seen.stops_first) - len(stops_first),
                    stops_first,
                    new_stops,
                )
            )

    def skip(self, now_s: float) -> None:
        """Count a cycle without a decision of the shadow. Its earlier wishes may not hold any more and are dropped."""
        self.advance(now_s)
        self.totals.skipped += 1
        self.wished_starts.clear()
        self._gpus_wished = 0
        self.wished_stops.clear()

    def reconcile(self, view: ClusterView) -> None:
        """Remove entries that contradict the world, because changes may have been lost. O(attempts + wishes)."""
        for job in (*self._agreed, *self.unwanted):
            if job not in view.jobs or view.jobs[job].placement is None:
                self._release(job)
        for job in list(self.wished_starts):
            if job not in view.jobs or not view.jobs[job].waiting:
                self._drop_wish(job)
        for job in list(self._first_wished):
            if job not in view.jobs:
                del self._first_wished[job]

    def _count_starts(self, seen: Comparison) -> tuple[JobId, ...]:
        totals, now_s = self.totals, seen.at_s
        instead = tuple(job for job in seen.starts_shadow if job not in seen.starts_first)
        for job in [job for job in self.wished_starts if job not in seen.starts_shadow]:
            self._drop_wish(job)
        for job, placement in seen.starts_first.items():
            self._release(job)
            first_wished_s = self._first_wished.pop(job, None)
            if first_wished_s is not None:
                totals.granted_later += 1
                totals.granted_later_s += now_s - first_wished_s
            wished = seen.starts_shadow.get(job)
            if wished is None:
                totals.starts.first_only += 1
                self.unwanted[job] = Unwanted(job, now_s, seen.gpus[job], seen.why_waits.get(job), instead)
                self._gpus_unwanted += seen.gpus[job]
                continue
            totals.starts.both += 1
            self._drop_wish(job)
            self._agreed[job] = seen.gpus[job]
            self._gpus_agreed += seen.gpus[job]
            self._count_placement(placement, wished)
        new = []
        for job, placement in seen.starts_shadow.items():
            if job in seen.starts_first:
                continue
            before = self.wished_starts.get(job)
            if before is None:
                self._gpus_wished += seen.gpus[job]
                new.append(job)
            if job not in self._first_wished:
                totals.starts.shadow_only += 1
                self._first_wished[job] = now_s
            since_s = now_s if before is None else before.since_s
            self.wished_starts[job] = Wish(job, since_s, seen.gpus[job], placement)
        return tuple(new)

    def _count_placement(self, made: Placement, wished: Placement) -> None:
        more = len(wished.servers) - len(made.servers)
        if made == wished:
            self.totals.same_placement += 1
        elif more < 0:
            self.totals.fewer_servers += 1
        elif more > 0:
            self.totals.more_servers += 1
        else:
            self.totals.other_servers += 1

    def _count_stops(self, seen: Comparison) -> tuple[JobId, ...]:
        tally = self.totals.preemptions
        for job in seen.stops_first:
            if job in seen.stops_shadow:
                tally.both += 1
                tally.both_gpu_s += seen.lost_gpu_s[job]
            else:
                tally.first_only += 1
                tally.first_only_gpu_s += seen.lost_gpu_s[job]
        wished: dict[JobId, Wish] = {}
        new = []
        for job, for_job in seen.stops_shadow.items():
            if job in seen.stops_first:
                continue
            before = self.wished_stops.get(job)
            if before is None:
                new.append(job)
            if job not in self._counted_stops:
                tally.shadow_only += 1
                tally.shadow_only_gpu_s += seen.lost_gpu_s[job]
                self._counted_stops.add(job)
            since_s = seen.at_s if before is None else before.since_s
            wished[job] = Wish(job, since_s, seen.gpus[job], for_job=for_job)
        self.wished_stops = wished
        return tuple(new)

    def _release(self, job: JobId) -> None:
        """Remove the job's attempt, which has ended."""
        self._gpus_agreed -= self._agreed.pop(job, 0)
        if (unwanted := self.unwanted.pop(job, None)) is not None:
            self._gpus_unwanted -= unwanted.gpus
        self.wished_stops.pop(job, None)
        self._counted_stops.discard(job)

    def _drop_wish(self, job: JobId) -> None:
        if (wish := self.wished_starts.pop(job, None)) is not None:
            self._gpus_wished -= wish.gpus
