"""Failures in a sampled future: servers fail and return, and attempts fail and are requeued, at the rate of the recent past.

Servers fail as a Poisson process, each as likely as another, at the recorded failures over the recorded server time; each outage
is as long as one that was recorded. A server that is down now returns after a recorded outage longer than its own so far. An
attempt fails at its age by the cumulative hazard of the recorded attempts (Nelson and Aalen): a program that fails at its start
says nothing of one that has run for a day. A rate by n failures is shrunk to n/(n+1) of itself, which has the least mean squared
error of all multiples; without a recorded failure nothing happens.

A failure that ends a job is not drawn: the totals of ended jobs, from which predictions are made, have it already.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np

from policies.model.ids import JobId, ServerIndex
from service.engine.record import JobRecord
from service.engine.world import World
from service.sim.clock import Priority, SimClock
from service.sim.draws import uniform
from service.sim.executor import SimulatedExecutor

FAILURES_MIN = 16
FAILURES_SHARE = 0.5
"""Largest number of server failures in a future: at least FAILURES_MIN, and this share of its jobs. One costs about as much as a
job, and a gang that fails more often than it saves would never end.
"""

_DRAWS = 2**34
"""Seed of a future's server failures, beside the numbers of jobs."""


class Outage(NamedTuple):
    """A server was down; ``to_s`` None: it still is."""

    server: ServerIndex
    from_s: float
    to_s: float | None = None


class PastAttempt(NamedTuple):
    """How long an attempt ran, until now if it still does, and whether it then failed and its job was requeued."""

    ran_s: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Failures:
    """Rates of the recent past. ``per_server_s``: failures of a server in a second in which it is up. ``outages_s``: how long the
    ended outages were, ascending. ``down_since_s``: the servers that are down and may return. ``ages_s``, ``hazards``: the
    cumulative hazard of an attempt from each of these ages on, both ascending.
    """

    per_server_s: float = 0.0
    outages_s: tuple[float, ...] = ()
    down_since_s: Mapping[ServerIndex, float] = field(default_factory=dict)
    ages_s: tuple[float, ...] = ()
    hazards: tuple[float, ...] = ()

    def fails_at_age_s(self, exponential: float, age_s: float = 0.0) -> float | None:
        """When an attempt fails that has lived for ``age_s``, by a draw with mean 1; None: it does not."""
        passed = bisect_left(self.ages_s, age_s)
        survived = self.hazards[passed - 1] if passed else 0.0
        at = bisect_left(self.hazards, survived + exponential, passed)
        return self.ages_s[at] if at < len(self.ages_s) else None


NO_FAILURES = Failures()
"""Nothing fails, and no server returns."""


def failures_of(outages: Sequence[Outage], server_s: float, attempts: Iterable[PastAttempt]) -> Failures:
    """The rates by these outages in ``server_s`` of all servers' time up, and by these attempts. O(attempts log attempts).

    Until an outage has ended, no server fails: it is not known when one returns.
    """
    ended_s = sorted(each.to_s - each.from_s for each in outages if each.to_s is not None)
    ages_s, hazards = _hazard(attempts)
    return Failures(
        _shrunk(len(outages)) * len(outages) / server_s if ended_s and server_s > 0.0 else 0.0,
        tuple(ended_s),
        {each.server: each.from_s for each in outages if each.to_s is None},
        ages_s,
        hazards,
    )


def _hazard(attempts: Iterable[PastAttempt]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nelson and Aalen's estimate: the sum of one over the attempts that lived as long, over the failures so far."""
    lives = sorted(attempts)
    shrunk = _shrunk(sum(each.failed for each in lives))
    ages_s, hazards, total = [], [], 0.0
    for index, each in enumerate(lives):
        if each.failed:
            total += shrunk / (len(lives) - index)
            ages_s.append(each.ran_s)
            hazards.append(total)
    return tuple(ages_s), tuple(hazards)


def _shrunk(failures: int) -> float:
    """The multiple of a Poisson rate with the least mean squared error, with the rate as counted in place of the true one."""
    return failures / (failures + 1.0)


class Failing:
    """Lets servers and attempts of one future fail. Draws follow from (seed, number of the future, job or server) alone.

    ``last_arrival_s``: servers do not fail once nothing runs after it. ``jobs``: those of the future.
    """

    def __init__(
        self,
        failures: Failures,
        seed: int,
        number: int,
        clock: SimClock,
        executor: SimulatedExecutor,
        jobs: int,
        last_arrival_s: float,
    ) -> None:
        self._failures = failures
        self._seed = seed
        self._number = number
        self._clock = clock
        self._executor = executor
        self._left = max(FAILURES_MIN, int(FAILURES_SHARE * jobs))
        self._last_arrival_s = last_arrival_s
        self._draw = np.random.default_rng((seed, _DRAWS, number))

    def begin(self, world: World) -> None:
        """Schedule the first failures, also of open attempts, and the returns of servers that are down."""
        self._world = world
        now_s, outages_s = self._clock.now_s(), self._failures.outages_s
        for server, since_s in sorted(self._failures.down_since_s.items()):
            longer = outages_s[bisect_left(outages_s, now_s - since_s) :]
            if longer and server < len(world.servers) and world.servers[server].down:
                at_s = since_s + longer[int(self._draw.integers(len(longer)))]
                self._schedule(max(now_s, at_s), partial(self._executor.repair_server, server))
        if self._failures.per_server_s > 0.0:
            self._next_failure()
        for job in world.holding():
            self.started(world.jobs[job])

    def started(self, job: JobRecord) -> None:
        """The job has an attempt: it may fail."""
        attempt = job.attempt
        if not self._failures.ages_s or attempt is None:
            return
        now_s = self._clock.now_s()
        since_s = attempt.started_at_s if attempt.started_at_s is not None else now_s
        exponential = -log(uniform(self._seed, attempt.id, f"failure in future {self._number}"))
        age_s = self._failures.fails_at_age_s(exponential, now_s - since_s)
        if age_s is not None:
            self._schedule(max(now_s, since_s + age_s), partial(self._fail_attempt, job.id, attempt.number))

    def _fail_attempt(self, job: JobId, number: int) -> None:
        record = self._world.jobs.get(job)
        if record is None or record.attempt is None or record.attempt.number != number:
            return
        # Without a retry left the failure would end the job, which its total says already.
        if record.retries < record.spec.max_retries:
            self._executor.crash(record.attempt.id)

    def _next_failure(self) -> None:
        servers = len(self._world.servers)
        after_s = self._draw.exponential(1.0 / (self._failures.per_server_s * servers))
        server = ServerIndex(int(self._draw.integers(servers)))
        down_s = self._failures.outages_s[int(self._draw.integers(len(self._failures.outages_s)))]
        self._schedule(self._clock.now_s() + after_s, partial(self._fail_server, server, down_s))

    def _fail_server(self, server: ServerIndex, down_s: float) -> None:
        now_s = self._clock.now_s()
        if self._left == 0 or (now_s > self._last_arrival_s and not self._world.holding()):
            return
        if not self._world.servers[server].down:
            self._left -= 1
            self._executor.fail_server(server)
            self._schedule(now_s + down_s, partial(self._executor.repair_server, server))
        self._next_failure()

    def _schedule(self, at_s: float, action: Callable[[], None]) -> None:
        self._clock.schedule(at_s, Priority.FAULT, action)
