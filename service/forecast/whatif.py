"""Compares policies on the future of one snapshot: the same sampled futures are simulated under each policy.

In each future all policies have the same jobs with the same totals, so that differences come from the policies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from policies.base import Policy
from policies.model.ids import JobId
from service.forecast.forecast import ForecastOptions, Futures, NoForecast, Sampler, Spread, sampled, spread
from service.history.snapshot import WorldSnapshot
from service.runtime.workers import cores


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its name in the answer. ``dump`` is its present state, if it is the live policy."""

    label: str
    policy: Policy[Any]
    dump: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast of the queue under one policy. JCTs count from submission; ``mean_jct_s`` is the expected mean.

    ``better_in`` counts the futures whose mean JCT is below the first policy's. ``finishes`` hold the jobs that end in every
    future, in seconds on the snapshot's clock.
    """

    label: str
    mean_jct_s: float
    mean_jct_spread_s: Spread
    better_in: int
    finishes: Mapping[JobId, Spread]


@dataclass(frozen=True, slots=True)
class Outlooks:
    """The policies side by side. ``jobs`` end in every future under every policy; the means are over these."""

    now_s: float
    samples: int
    jobs: Sequence[JobId]
    unfinished: int
    outlooks: Sequence[Outlook]


def outlooks(
    snapshot: WorldSnapshot,
    candidates: Sequence[Candidate],
    options: ForecastOptions | None = None,
    on_future: Callable[[int, int], None] = lambda done, total: None,
) -> Outlooks:
    """Simulate the snapshot under each policy, on all cores where this process can fork. Raises :class:`NoForecast`.

    O(policies x samples x jobs log jobs).
    ``on_future`` is called with the number of complete futures, of all policies together, and of all.
    """
    world = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if not job.finished))
    if not world.jobs:
        raise NoForecast("All jobs are finished.")
    samplers = [Sampler(world, each.policy, each.dump, options) for each in candidates]
    found = sampled(samplers, on_future=on_future, workers=cores())
    return side_by_side(world, {each.label: futures for each, futures in zip(candidates, found, strict=True)})


def side_by_side(world: WorldSnapshot, found: Mapping[str, Futures]) -> Outlooks:
    """The futures of one world under several policies, by label; the others are compared with the first.

    Raises :class:`NoForecast` if no job ends in all of them.
    """
    ending = [set(future.ended_at_s) for futures in found.values() for future in futures.sampled]
    jobs = sorted(set.intersection(*ending))
    if not jobs:
        raise NoForecast("No job ends in every sampled future under every policy.")
    submitted_s = {job.id: job.submitted_at_s for job in world.jobs}
    jcts = {label: _mean_jcts_s(futures, jobs, submitted_s) for label, futures in found.items()}
    first = jcts[next(iter(found))]
    return Outlooks(
        world.now_s,
        len(first),
        jobs,
        len(world.jobs),
        [
            Outlook(
                label,
                float(jcts[label].mean()),
                spread(jcts[label].tolist()),
                int((jcts[label] < first).sum()),
                {job: spread([end.ended_at_s[job] for end in futures.sampled]) for job in jobs},
            )
            for label, futures in found.items()
        ],
    )


def _mean_jcts_s(futures: Futures, jobs: Sequence[JobId], submitted_s: Mapping[JobId, float]) -> Any:
    """The mean JCT of each future."""
    return np.array(
        [np.mean([future.ended_at_s[job] - submitted_s[job] for job in jobs]) for future in futures.sampled]
    )
