"""Fair share between projects: recent use by weight, as a level that comes before every rank.

A project's use is the GPU-seconds that its jobs have held, which decays by half every ``half_life_s``. Its level is the
logarithm, in steps of :data:`STEP`, of use / weight; jobs of smaller levels come first, and within a level the policy's own
rank decides. All uses decay at one rate, so the order of two projects changes only when one of them uses more: the
level is taken of use x exp(decay x time), which never falls, and a job is indexed again only when its project has moved by
a step. This construction is ours.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.model.decision import Change, ChangeKind
from policies.model.ids import JobId
from policies.model.shares import ShareAccount
from policies.model.view import ClusterView, JobView

STEP = 1.03
"""Between projects whose uses by weight differ by less than this factor, rank decides."""

DISPLACING_LEVELS = 4
"""A job displaces, whatever the ranks, a running job of a project that is at least this many levels above its own (a tenth more
use by weight). Projects closer to each other would displace each other in turn, at a price each time."""

IDLE_GPUS = 0.1
"""Each project counts as if it had always held this much of a GPU by its weight. Smaller uses make no difference, so a new
project does not come before one that has used next to nothing."""

IDLE_USE_RATIO = 1e-9
"""The account of an idle project is closed once its use is this fraction of what counts as no use."""

_STEP_LN = math.log(STEP)
_SOON_S = 1e-3


@dataclass(slots=True)
class Account:
    """One project: ``used`` GPU-seconds by weight at ``at_s``, the GPUs it holds since then, its level and when that must
    be computed again."""

    weight: float
    used: float
    at_s: float
    gpus: int = 0
    level: int = 0
    next_s: float = math.inf


@dataclass(slots=True)
class ProjectShares:
    """The accounts of all projects. O(log projects) a start or an end; a step costs O(the project's jobs log n)."""

    half_life_s: float
    weights: Mapping[str, float]
    now_s: float
    accounts: dict[str, Account] = field(default_factory=dict)
    members: dict[str, dict[JobId, None]] = field(default_factory=dict)
    """Jobs that are indexed by their project's level."""
    _counted: dict[JobId, tuple[str, int]] = field(default_factory=dict)
    """Project and GPUs of each job whose GPUs the accounts count."""
    _due: list[tuple[float, str]] = field(default_factory=list)

    def level(self, project: str) -> int:
        """The project's level now; smaller comes first."""
        return self._account(project).level

    def join(self, job: JobView) -> int:
        """Index the job by its project's level, and return that."""
        project = job.spec.project
        self.members.setdefault(project, {})[job.id] = None
        return self.level(project)

    def leave(self, job: JobId, project: str) -> None:
        """The job has ended."""
        jobs = self.members.get(project, {})
        jobs.pop(job, None)
        if not jobs:
            self.members.pop(project, None)

    def absorb(self, view: ClusterView, changes: Sequence[Change]) -> list[str]:
        """Account for GPUs that were given or vacated; return the projects whose level has changed."""
        self.now_s = view.now_s
        started = [
            view.jobs[change.job]
            for change in changes
            if change.kind is ChangeKind.STARTED and change.job is not None and _holds(view, change.job)
        ]
        vacated = [change.job for change in changes if change.kind is ChangeKind.VACATED and change.job is not None]
        touched = self._count(started) | self._discount(vacated)
        return self._look(touched)

    def _count(self, started: Sequence[JobView]) -> set[str]:
        """Count the GPUs of these jobs from the start of their attempts."""
        touched = set()
        for job in sorted(started, key=lambda job: (job.attempt_started_at_s or 0.0, job.id)):
            if job.id not in self._counted:
                project = job.spec.project
                at_s = job.attempt_started_at_s
                started_s = self.now_s if at_s is None else min(self.now_s, at_s)
                account = self.accounts.get(project) or self._open(project, started_s)
                self._settle(account, started_s)
                account.gpus += job.spec.gpus
                self._counted[job.id] = (project, job.spec.gpus)
                touched.add(project)
        return touched

    def _discount(self, vacated: Sequence[JobId]) -> set[str]:
        """Stop counting the GPUs of these jobs."""
        touched = set()
        for job_id in vacated:
            if (counted := self._counted.pop(job_id, None)) is not None:
                project, gpus = counted
                account = self._account(project)
                self._settle(account, self.now_s)
                account.gpus -= gpus
                touched.add(project)
        return touched

    def _look(self, touched: set[str], *, may_close: bool = True) -> list[str]:
        """Compute the levels that are due or touched. ``may_close``: an account without jobs may be closed."""
        while self._due and self._due[0][0] <= self.now_s:
            at_s, project = heapq.heappop(self._due)
            if (account := self.accounts.get(project)) is not None and account.next_s == at_s:
                touched.add(project)
        changed = []
        for project in sorted(touched):
            account = self.accounts[project]
            if may_close and not account.gpus and project not in self.members and self._is_idle(account):
                del self.accounts[project]
                continue
            before = account.level
            self._find_level(project, account)
            if account.level != before:
                changed.append(project)
        return changed

    def next_s(self) -> float | None:
        """When a level must be computed again."""
        while self._due:
            at_s, project = self._due[0]
            account = self.accounts.get(project)
            if account is not None and account.next_s == at_s:
                return at_s
            heapq.heappop(self._due)
        return None

    def shown(self, now_s: float) -> tuple[ShareAccount, ...]:
        """All accounts by name, with the decayed use at ``now_s``. O(projects log projects)."""
        return tuple(
            ShareAccount(project, each.weight, self._used(each, max(now_s, each.at_s)) * each.weight, each.level)
            for project, each in sorted(self.accounts.items())
        )

    # Accounts.

    @property
    def _idle(self) -> float:
        return IDLE_GPUS * self.half_life_s

    @property
    def _decay(self) -> float:
        return math.log(2.0) / self.half_life_s

    def _account(self, project: str) -> Account:
        """The project's account; one is opened now where it has none."""
        account = self.accounts.get(project)
        if account is None:
            account = self._open(project, self.now_s)
            self._find_level(project, account)
        return account

    def _open(self, project: str, at_s: float) -> Account:
        """An account without use from ``at_s`` on, whose level is the one of now."""
        account = self.accounts[project] = Account(self.weights.get(project, 1.0), 0.0, at_s)
        account.level = self._level(0.0)
        return account

    def _aim(self, account: Account) -> float:
        """The limit of use by weight (with ``_idle``) if the project kept its present GPUs."""
        return account.gpus / account.weight / self._decay + self._idle

    def _used(self, account: Account, at_s: float) -> float:
        decayed = -math.expm1(-self._decay * (at_s - account.at_s))
        aim = self._aim(account) - self._idle
        return account.used + (aim - account.used) * decayed

    def _is_idle(self, account: Account) -> bool:
        return self._used(account, self.now_s) < IDLE_USE_RATIO * self._idle

    def _settle(self, account: Account, at_s: float) -> None:
        if at_s > account.at_s:
            account.used = self._used(account, at_s)
            account.at_s = at_s

    def _level(self, used: float) -> int:
        """The level of so much use by weight now: of the logarithm of use x exp(decay x time), which never falls."""
        return math.floor((self._decay * self.now_s + math.log(used + self._idle)) / _STEP_LN)

    def _find_level(self, project: str, account: Account) -> None:
        """Compute the level at ``now_s``, and when it must be computed again."""
        # Powers of the time since ``at_s`` overflow after 1,024 half-lives.
        self._settle(account, self.now_s)
        level = self._level(account.used)
        if account.next_s <= self.now_s:
            level = max(level, account.level + 1)  # rounding must not make the level due again at this instant
        account.level = max(account.level, level)
        there = math.exp((account.level + 1) * _STEP_LN - self._decay * account.at_s)
        grown = (there - account.used - self._idle) / self._aim(account)
        account.next_s = max(account.at_s + math.log1p(max(0.0, grown)) / self._decay, self.now_s + _SOON_S)
        if len(self._due) > 2 * len(self.accounts) + 64:
            self._due = [(each.next_s, name) for name, each in self.accounts.items() if name != project]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (account.next_s, project))

    # Dump and restore.

    def dump(self) -> dict[str, Any]:
        """Earlier use, and the jobs whose GPUs are counted: neither follows from the jobs."""
        return {
            "accounts": {
                project: [each.used, each.at_s, each.gpus, each.level, each.next_s]
                for project, each in sorted(self.accounts.items())
            },
            "counted": sorted(self._counted),
        }

    def restore(self, view: ClusterView, dump: Mapping[str, Any]) -> None:
        """Continue from an earlier dump. Jobs that have started since count from their start, jobs that are gone until now."""
        counted = set(dump.get("counted", ()))
        gone: dict[str, int] = {}
        for project, (used, at_s, gpus, level, next_s) in dump.get("accounts", {}).items():
            if at_s <= view.now_s:
                self.accounts[project] = Account(self.weights.get(project, 1.0), used, at_s, gpus, level, next_s)
                heapq.heappush(self._due, (next_s, project))
                gone[project] = gpus
        started = []
        for job_id in view.holding():
            job = view.jobs[job_id]
            project = job.spec.project
            if job_id in counted and gone.get(project, 0) >= job.spec.gpus:
                self._counted[job_id] = (project, job.spec.gpus)
                gone[project] -= job.spec.gpus
            else:
                started.append(job)
        touched = self._count(started)
        for project, gpus in gone.items():
            if gpus:
                self._settle(self.accounts[project], self.now_s)
                self.accounts[project].gpus -= gpus
                touched.add(project)
        self._look(touched, may_close=False)


def _holds(view: ClusterView, job: JobId) -> bool:
    return job in view.jobs and view.jobs[job].placement is not None


def displaces_by_level(level: int, victims_level: int) -> bool | None:
    """Whether a job of a project at ``level`` displaces one of a project at ``victims_level``; None: their ranks decide."""
    if victims_level == level:
        return None
    if victims_level < level:
        return False
    return True if victims_level >= level + DISPLACING_LEVELS else None
