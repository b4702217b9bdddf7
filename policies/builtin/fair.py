"""Max-min fairness over users: the next GPUs go to the user with the least GPU-time so far (deficit order).

A user's account counts all GPU-seconds that the user's jobs have held, ended ones included; nothing decays. The rank is the
level of the account, and each level is about a quarter above the one before: so a user's waiting jobs are ranked again a few
dozen times in the life of a cluster instead of at every instant. Users of one level go first in, first out. Where a trace
names no user, the project's account counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from policies.builtin.sjf import Sjf
from policies.lifecycle import TERMINAL
from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.shares import ShareAccount, Shares
from policies.model.view import ClusterView, JobView
from policies.options import Options
from policies.rank import Rank
from policies.ranked import RankedPolicy
from policies.state.scheduler_state import SchedulerState
from policies.state.sorted_list import SortedList

LEVEL_RATIO = 1.25
"""Ratio of the lengths of successive levels."""

LEVEL_GPU_S = 60.0
"""Level k begins at LEVEL_GPU_S x (LEVEL_RATIO^k - 1): accounts far below a GPU-minute are equal."""


class Line(NamedTuple):
    """GPU-seconds held as a function of time: ``at_zero_gpu_s + gpus x time``."""

    at_zero_gpu_s: float
    gpus: int

    def at(self, now_s: float) -> float:
        """GPU-seconds held by then."""
        return self.at_zero_gpu_s + self.gpus * now_s


NOTHING = Line(0.0, 0)


@dataclass(slots=True)
class Account:
    """One user: the sum of the lines of the user's jobs, its level, and when it reaches the next (inf: not by itself)."""

    line: Line = NOTHING
    level: int = 0
    next_level_s: float = math.inf


class FairState(SchedulerState):
    """The state, and the accounts of all users."""

    __slots__ = ("accounts", "closing", "due", "had_gpu_s", "lines", "now_s", "user_of", "waiting_of")

    def __init__(self, view: ClusterView, options: Options) -> None:
        """No user has held any GPUs."""
        SchedulerState.__init__(self, view, options)
        self.now_s = view.now_s
        self.accounts: dict[str, Account] = {}
        self.lines: dict[JobId, tuple[str, Line]] = {}
        """What each unfinished job adds to its user's account."""
        self.had_gpu_s: dict[str, float] = {}
        """What ended jobs held, by user."""
        self.closing: dict[JobId, tuple[str, float]] = {}
        """Jobs that ended in the last decision: they count, unless their end was not committed."""
        self.due: SortedList[tuple[float, str]] = SortedList()
        """(next_level_s, user) where that is finite."""
        self.waiting_of: dict[str, dict[JobId, None]] = {}
        self.user_of: dict[JobId, str] = {}
        """The user of each waiting job."""

    def dump(self) -> dict[str, Any]:
        """The state's dump, what ended jobs held, and what those held that are unfinished or whose end may not be committed."""
        return {
            **SchedulerState.dump(self),
            "had_gpu_s": dict(sorted(self.had_gpu_s.items())),
            "closing": [[job, user, gpu_s] for job, (user, gpu_s) in self.closing.items()],
            "unfinished": [[job, user, line.at(self.now_s)] for job, (user, line) in self.lines.items()],
        }

    def enqueue(self, job: JobView, rank: float) -> None:
        """Index a waiting job, also by its user."""
        SchedulerState.enqueue(self, job, rank)
        user = self.user_of[job.id] = _user(job)
        self.waiting_of.setdefault(user, {})[job.id] = None

    def dequeue(self, job: JobId) -> None:
        """Remove a waiting job; unknown jobs are ignored."""
        SchedulerState.dequeue(self, job)
        if (user := self.user_of.pop(job, None)) is not None:
            del self.waiting_of[user][job]

    def account(self, user: str) -> Account:
        """The user's account, opened if it is new."""
        return self.accounts.setdefault(user, Account())

    def credit(self, user: str, gpu_s: float, gpus: int = 0) -> None:
        """Add to the user's line."""
        account = self.account(user)
        account.line = Line(account.line.at_zero_gpu_s + gpu_s, account.line.gpus + gpus)

    def count(self, job: JobView, now_s: float) -> str:
        """Update the user's account with the GPUs that the job has held and holds; return the user. O(1)."""
        user = _user(job)
        gpus = job.spec.gpus if job.placement is not None else 0
        line = Line(job.attained_service_s(now_s) - gpus * now_s, gpus)
        _, before = self.lines.get(job.id, ("", NOTHING))
        self.credit(user, line.at_zero_gpu_s - before.at_zero_gpu_s, gpus - before.gpus)
        self.lines[job.id] = (user, line)
        return user

    def close(self, job: JobId) -> None:
        """The job has ended; it was counted just before."""
        user, line = self.lines.pop(job)
        self.closing[job] = (user, line.at_zero_gpu_s)

    def settle(self) -> None:
        """Count the jobs that ended in the last decision, which is committed now."""
        for user, gpu_s in self.closing.values():
            self.had_gpu_s[user] = self.had_gpu_s.get(user, 0.0) + gpu_s
        self.closing = {}

    def level_up(self, user: str, now_s: float) -> bool:
        """Compute the account's level, and the time of its next level; return whether the level has changed. O(log users)."""
        account = self.account(user)
        if account.next_level_s < math.inf:
            self.due.remove((account.next_level_s, user))
        level = _level(account.line.at(now_s))
        account.next_level_s = math.inf
        if account.line.gpus:
            account.next_level_s = (_threshold_gpu_s(level + 1) - account.line.at_zero_gpu_s) / account.line.gpus
            self.due.add((account.next_level_s, user))
        changed, account.level = level != account.level, level
        return changed


class Fair(RankedPolicy):
    """See the module."""

    name = "fair"
    summary = "the user with the least GPU time so far comes first"
    option_names = Sjf.option_names
    state_type = FairState

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        """The lower end of the level of the user's account, in virtual seconds."""
        assert isinstance(state, FairState)
        return Rank(_threshold_gpu_s(state.account(_user(job)).level) / state.gpus, 0)

    def restore(self, view: ClusterView, state: SchedulerState, dump: dict[str, Any]) -> None:
        """Restore what ended jobs held, up to the dump for those that ended later; the rest follows from the jobs."""
        assert isinstance(state, FairState)
        state.had_gpu_s = dict(dump.get("had_gpu_s", {}))
        gone = (*dump.get("closing", ()), *dump.get("unfinished", ()))
        state.closing = {JobId(job): (user, gpu_s) for job, user, gpu_s in gone if job not in view.jobs}
        state.settle()
        for user, gpu_s in state.had_gpu_s.items():
            state.credit(user, gpu_s)
        for job in view.jobs.values():
            if job.attempts:
                state.count(job, view.now_s)
                if job.state in TERMINAL:
                    state.close(job.id)
        for user in state.accounts:
            state.level_up(user, view.now_s)

    def observe(self, view: ClusterView, changes: Sequence[Change], state: SchedulerState) -> bool:
        """Keep the accounts. A new level costs O(the user's waiting jobs log n)."""
        assert isinstance(state, FairState)
        state.now_s = view.now_s
        state.settle()
        touched = {user for _, user in takewhile(lambda due: due[0] <= view.now_s, state.due)}
        for change in changes:
            job = view.jobs.get(change.job) if change.job is not None else None
            if job is not None and change.kind in (ChangeKind.STARTED, ChangeKind.VACATED, ChangeKind.FINISHED):
                touched.add(state.count(job, view.now_s))
                if change.kind is ChangeKind.FINISHED:
                    state.close(job.id)
        for user in sorted(touched):
            if state.level_up(user, view.now_s):
                for job_id in list(state.waiting_of.get(user, ())):
                    self.on_arrival(view, view.jobs[job_id], state)
        return False

    def shares(self, view: ClusterView, state: SchedulerState) -> Shares:
        """The accounts of users besides."""
        assert isinstance(state, FairState)
        users = (
            ShareAccount(user, 1.0, max(0.0, account.line.at(view.now_s)), account.level)
            for user, account in sorted(state.accounts.items())
        )
        return RankedPolicy.shares(self, view, state)._replace(users=tuple(users))


def _user(job: JobView) -> str:
    return job.spec.user or f"project {job.spec.project}"


def _level(had_gpu_s: float) -> int:
    return math.floor(math.log1p(max(0.0, had_gpu_s) / LEVEL_GPU_S) / math.log(LEVEL_RATIO) + 1e-9)


def _threshold_gpu_s(level: int) -> float:
    return LEVEL_GPU_S * (LEVEL_RATIO**level - 1.0)
