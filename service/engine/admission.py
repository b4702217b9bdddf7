"""The gate in front of the policy: a job that may not start because of its owner's limits is not shown to the policy.

An owner (a user, a project, the whole queue) may be paused, or limited to so many GPUs at a time. Of an owner's waiting jobs
only so many are let through that their GPUs and those that the owner's jobs hold stay within its limit. So no policy can
break a limit, and nothing is preempted for a job that may not start.

The rule is our construction: waiting jobs are let through in the order of :class:`Turn`, unless one of their owners lacks the
room; an owner that lacks it for one job lets no later job through, so wide gangs are not starved by narrow ones. A better
job that comes later takes the place of worse ones that have not started. A limit that is lowered below what is held stops no
job. A gang larger than a limit waits apart and keeps no other job waiting. One that no servers can hold while some are away is
let through without counting, so that the policy explains it; it comes before the gate again when servers change.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.rank import expected_remaining_s
from policies.state.sorted_list import SortedList
from service.engine.limits import LimitOwner, OwnerLimit, Scope, array_of, limit_of_array, owners_of
from service.engine.record import JobRecord

PATIENCE = 4.0
"""A job is passed only by shorter ones that come within so many times its remaining time: later ones find it ahead of them."""

Owners = tuple[LimitOwner, ...]


class Turn(NamedTuple):
    """The order in which an owner's jobs are let through: larger priorities first, then ``due_s`` = submission + PATIENCE x
    expected remaining time (attained service, where that is unknown), then submission and serial."""

    minus_priority: int
    due_s: float
    submitted_at_s: float
    job: JobId


class Settled(NamedTuple):
    """The outcome for the jobs before the gate: newly let through, sent back after they were let through, and all jobs whose
    reason for waiting is to be set again (those sent back among them)."""

    admitted: tuple[JobRecord, ...] = ()
    sent_back: tuple[JobRecord, ...] = ()
    noted: tuple[JobRecord, ...] = ()


_NOTHING = Settled()


class Admission:
    """The limits, the jobs let through and the jobs that wait. Costs nothing while no owner is limited.

    Every update is O(log n). :meth:`settle` is O((sets of limited owners that jobs wait for + jobs let through or sent back)
    log n), and does nothing unless room or a job has come. ``has_servers``: whether those that take work could hold a job.
    """

    def __init__(self, limits: Mapping[LimitOwner, OwnerLimit] | None = None) -> None:
        self._limits = {owner: limit for owner, limit in (limits or {}).items() if limit.limits}
        self.has_servers: Callable[[JobRecord], bool] = _anything
        self._clear()

    def _clear(self) -> None:
        self._jobs: dict[JobId, JobRecord] = {}
        self._elements: Counter[LimitOwner] = Counter()
        """Jobs among them of each limited array."""
        self._charged: dict[JobId, Owners] = {}
        """Jobs whose GPUs count against the limits: those that hold GPUs, and those let through."""
        self._used: dict[LimitOwner, int] = dict.fromkeys(self._limits, 0)
        self._through: dict[LimitOwner, SortedList[Turn]] = {owner: SortedList() for owner in self._limits}
        self._through_turns: dict[JobId, Turn] = {}
        self._kept: dict[Owners, SortedList[Turn]] = {}
        self._kept_turns: dict[JobId, Turn] = {}
        self._too_wide: dict[JobId, None] = {}
        self._uncounted: dict[JobId, None] = {}
        """Jobs let through that no servers can hold now; they count against no limit."""
        self._admitted: dict[JobId, JobRecord] = {}
        self._sent_back: dict[JobId, JobRecord] = {}
        self._unnoted: dict[JobId, None] = {}
        self._restless = False
        self._lowered = False

    # Called by the engine.

    @property
    def limits(self) -> Mapping[LimitOwner, OwnerLimit]:
        """All limited owners, for reading."""
        return self._limits

    def arrive(self, job: JobRecord) -> bool:
        """Add a job that is otherwise free to start. True if it may start at once; else :meth:`settle` lets it through later."""
        self.know_array(job)
        owners = self._owners(job) if self._limits else ()
        if not owners:
            job.gate = None
            return True
        self._enter(job)
        self._keep_back(job, owners)
        self._restless = True
        return False

    def know_array(self, job: JobRecord) -> None:
        """Limit the job's array if its submission did. Called before any other method for the job."""
        limit = limit_of_array(job.spec)
        if limit is not None:
            owner = array_of(job.spec)
            if owner not in self._limits:
                self._limits[owner] = limit
                self._used[owner] = 0
                self._through[owner] = SortedList()

    def hold(self, job: JobRecord) -> None:
        """The job holds GPUs now."""
        if owners := self._owners(job):
            self._enter(job)
            self._unlist(job)
            self._uncounted.pop(job.id, None)
            self._charge(job, owners)

    def forget(self, job_id: JobId) -> None:
        """The job holds nothing any more, may not start for other reasons, or is gone; unknown ones are ignored."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            self._unlist(job)
            self._discharge(job)
            for told in (self._too_wide, self._uncounted, self._admitted, self._sent_back, self._unnoted):
                told.pop(job_id, None)
            job.gate = None
            if limit_of_array(job.spec) is not None:
                self._leave_array(array_of(job.spec))

    def _enter(self, job: JobRecord) -> None:
        if job.id not in self._jobs and limit_of_array(job.spec) is not None:
            self._elements[array_of(job.spec)] += 1
        self._jobs[job.id] = job

    def _leave_array(self, owner: LimitOwner) -> None:
        """Limit an array no longer whose last element has left; one that arrives later sets the limit again."""
        self._elements[owner] -= 1
        if self._elements[owner] == 0:
            del self._elements[owner], self._limits[owner], self._used[owner], self._through[owner]

    def reprioritize(self, job: JobRecord) -> None:
        """The job's priority has changed."""
        if job.id in self._kept_turns or job.id in self._through_turns:
            owners, through = self._owners(job), job.id in self._through_turns
            self._unlist(job)
            if through:
                self._list_through(job, owners)
            else:
                self._keep_back(job, owners)
            self._restless = True

    def servers_changed(self) -> None:
        """Servers take work again, or no more. O(jobs let through x log n)."""
        for job_id in list(self._uncounted):
            self._send_back(self._jobs[job_id])
        for job_id in list(self._through_turns):
            job = self._jobs[job_id]
            if job.reservation is None and not self.has_servers(job):
                self._unlist(job)
                self._discharge(job)
                self._uncounted[job_id] = None
        self._restless = True

    def limit(self, owner: LimitOwner, limit: OwnerLimit, jobs: Collection[JobRecord]) -> None:
        """An owner's limits are these from now on. ``jobs``: all unfinished ones. O(n log n); called rarely, for an operator."""
        if limit.limits:
            self._limits[owner] = limit
        else:
            self._limits.pop(owner, None)
        for job in self._sent_back.values():
            job.gate = None  # the policy was not told that it went back
        self._clear()
        for job in jobs:
            owners = self._owners(job)
            if job.attempt is None and not job.eligible:
                continue
            if owners:
                self._enter(job)
            if job.attempt is not None:
                self._charge(job, owners)
            elif job.gate is None and owners:
                self._let(job, owners)
            elif owners:
                self._keep_back(job, owners)
            elif job.gate is not None:
                self._admitted[job.id] = job
        self._restless = self._lowered = True

    # Decisions.

    def settle(self) -> Settled:
        """The jobs that are let through and sent back now, each in a fixed order. Sets ``gate`` of the jobs."""
        if not self._restless:
            return _NOTHING
        if self._lowered:
            self._send_back_beyond_limits()
        while self._let_through():
            pass
        admitted, sent_back = tuple(self._admitted.values()), tuple(self._sent_back.values())
        for job in admitted:
            job.gate = None
        noted = tuple(self._jobs[job_id] for job_id in self._unnoted)
        for job in noted:
            job.gate = self._reason(job)
        self._admitted, self._sent_back, self._unnoted = {}, {}, {}
        self._restless = self._lowered = False
        return Settled(admitted, sent_back, noted)

    def _let_through(self) -> bool:
        """Let jobs through in the order of their turns while there is room. True if later jobs were sent back for them,
        which may have made room for other jobs of their owners."""
        heads = [(turns[0], owners) for owners, turns in self._kept.items()]
        heapq.heapify(heads)
        stopped = {owner for owner, limit in self._limits.items() if limit.paused}
        displaced = False
        while heads:
            turn, owners = heapq.heappop(heads)
            if not stopped.isdisjoint(owners):
                continue
            job = self._jobs[turn.job]
            counts = self.has_servers(job)
            short = [owner for owner in owners if counts and self._room(owner) < job.spec.gpus]
            victims = self._worse_ones(job, turn, short) if short else ()
            if victims is None:
                stopped.update(short)
                continue
            for victim in victims:
                displaced = True
                self._send_back(victim)
            self._admit(job, owners)
            if owners in self._kept:
                heapq.heappush(heads, (self._kept[owners][0], owners))
        return displaced

    def _worse_ones(self, job: JobRecord, turn: Turn, short: list[LimitOwner]) -> list[JobRecord] | None:
        """Jobs let through, of later turns, without which none of these owners would lack room; None if there are not
        enough. Jobs for which GPUs are being vacated stay."""
        picked: dict[JobId, JobRecord] = {}
        for owner in short:
            missing = job.spec.gpus - self._room(owner)
            missing -= sum(victim.spec.gpus for victim in picked.values() if owner in self._charged[victim.id])
            for worse in reversed(self._through[owner]):
                if missing <= 0 or worse < turn:
                    break
                victim = self._jobs[worse.job]
                if victim.reservation is None and worse.job not in picked:
                    picked[worse.job] = victim
                    missing -= victim.spec.gpus
            if missing > 0:
                return None
        return list(picked.values())

    def _send_back_beyond_limits(self) -> None:
        """After a change of limits, send back the jobs let through that a pause or a limit forbids now."""
        for owner, limit in self._limits.items():
            for turn in list(reversed(self._through[owner])):
                if limit.paused or self._room(owner) < 0:
                    self._send_back(self._jobs[turn.job])

    def _let(self, job: JobRecord, owners: Owners) -> None:
        if self.has_servers(job):
            self._charge(job, owners)
            self._list_through(job, owners)
        else:
            self._uncounted[job.id] = None

    def _admit(self, job: JobRecord, owners: Owners) -> None:
        self._unlist(job)
        self._let(job, owners)
        self._unnoted.pop(job.id, None)
        if self._sent_back.pop(job.id, None) is None:
            self._admitted[job.id] = job
        else:
            job.gate = None  # the policy was not told that it went back

    def _send_back(self, job: JobRecord) -> None:
        self._unlist(job)
        self._uncounted.pop(job.id, None)
        self._discharge(job)
        if self._admitted.pop(job.id, None) is None:
            self._sent_back[job.id] = job
        self._keep_back(job, self._owners(job))

    # Lists.

    def _owners(self, job: JobRecord) -> Owners:
        return tuple(owner for owner in owners_of(job.spec) if owner in self._limits)

    def _room(self, owner: LimitOwner) -> float:
        most = self._limits[owner].gpus_running_max
        return math.inf if most is None else most - self._used[owner]

    def _keep_back(self, job: JobRecord, owners: Owners) -> None:
        job.gate = Reason.QUOTA
        self._unnoted[job.id] = None
        if self._wider_than(job, owners) is not None:
            self._too_wide[job.id] = None
            return
        turn = self._kept_turns[job.id] = _turn(job)
        self._kept.setdefault(owners, SortedList()).add(turn)

    def _list_through(self, job: JobRecord, owners: Owners) -> None:
        turn = self._through_turns[job.id] = _turn(job)
        for owner in owners:
            self._through[owner].add(turn)

    def _unlist(self, job: JobRecord) -> None:
        """Remove the job from the lists of waiting jobs, kept back or let through."""
        if (turn := self._through_turns.pop(job.id, None)) is not None:
            for owner in self._charged[job.id]:
                self._through[owner].remove(turn)
        elif (turn := self._kept_turns.pop(job.id, None)) is not None:
            owners = self._owners(job)
            self._kept[owners].remove(turn)
            if not self._kept[owners]:
                del self._kept[owners]

    def _charge(self, job: JobRecord, owners: Owners) -> None:
        if job.id not in self._charged:
            self._charged[job.id] = owners
            for owner in owners:
                self._used[owner] += job.spec.gpus

    def _discharge(self, job: JobRecord) -> None:
        for owner in self._charged.pop(job.id, ()):
            self._used[owner] -= job.spec.gpus
            self._restless = True

    def _wider_than(self, job: JobRecord, owners: Owners) -> LimitOwner | None:
        """The owner that may never hold as many GPUs as the job needs."""
        for owner in owners:
            most = self._limits[owner].gpus_running_max
            if most is not None and job.spec.gpus > most:
                return owner
        return None

    # Reasons.

    def _reason(self, job: JobRecord) -> Reason:
        if any(self._limits[owner].paused for owner in self._owners(job)):
            return Reason.QUEUE_PAUSED
        return Reason.QUOTA_TOO_SMALL if job.id in self._too_wide else Reason.QUOTA

    def why(self, job: JobRecord) -> tuple[str, dict[str, float]]:
        """For a job that is kept back: a sentence that names the limit and its use, and the numbers in it."""
        owners = self._owners(job)
        for owner in owners:
            if (limit := self._limits[owner]).paused:
                said = f": {limit.pause_reason.rstrip('.')}." if limit.pause_reason else "."
                return f"{owner.title} is paused{said} Nothing of it starts until it is resumed.", {}
        limited = [owner for owner in owners if self._limits[owner].gpus_running_max is not None]
        if not limited:
            return "", {}
        owner = self._wider_than(job, owners) or min(limited, key=self._room)
        most = self._limits[owner].gpus_running_max
        assert most is not None
        if owner.scope is Scope.ARRAY:
            running, most_running = self._used[owner] // job.spec.gpus, most // job.spec.gpus
            text = f"{owner.title} has {running} of its jobs before it, as many as it may (max_running {most_running})."
            return text, {"max_running": most_running, "running": running}
        if job.spec.gpus > most:
            text = (
                f"{owner.title} may hold {most} of the GPUs at a time, fewer than the job needs; "
                "raise the quota or ask for fewer."
            )
            return text, {"gpus_running_max": most}
        promised = sum(self._jobs[turn.job].spec.gpus for turn in self._through[owner])
        held = self._used[owner] - promised
        text = (
            f"{owner.title} may hold {most} of the GPUs at a time: {held} held, {promised} promised to other waiting jobs; "
            "it may start when enough of them are given back."
        )
        return text, {"gpus_running_max": most, "gpus_running": held, "gpus_promised": promised}


def _anything(job: JobRecord) -> bool:
    return True


def _turn(job: JobRecord) -> Turn:
    # It does not run, so its progress stands still and any instant will do.
    remaining_s = expected_remaining_s(job, job.anchor_s)
    if remaining_s is None:
        remaining_s = job.attained_service_s(job.anchor_s) / job.spec.gpus
    return Turn(-job.priority, job.submitted_at_s + PATIENCE * remaining_s, job.submitted_at_s, job.id)
