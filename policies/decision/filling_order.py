"""The order in which waiting jobs get GPUs while servers are filled: for explanations.

The order of ranks would be wrong there. A narrow job is passed by most wide gangs that follow it closely enough in that order,
since they fill the cluster with fewer jobs.
"""

import heapq
import math
from collections.abc import Iterator, Mapping

from policies.decision.server_filling import Contender, Queue, served
from policies.model.ids import JobId
from policies.state.keys import GangClass, JobKey
from policies.state.scheduler_state import SchedulerState
from policies.state.sorted_list import SortedList

FILLINGS_MAX = 64
"""How many times the cluster is filled to find one job."""


def jobs_before(state: SchedulerState, job: JobId, load: float) -> int:
    """Waiting jobs that get GPUs before this one, if whole clusters of jobs are served in turn and none arrives.

    ``load``: the work that arrives, as a share of what the cluster can do. Of the GPU types that the job takes, that of most GPUs
    counts, and the jobs that take it as well.

    All guarded jobs, and all of larger priorities, count as before it. If ``FILLINGS_MAX`` clusters do not reach it, the jobs
    of better ranks count, or those that these clusters serve if they are more. What first fit would start on GPUs that a
    filling leaves over is not counted. O((gang classes + jobs that go before it)
    log n), and O(GPUs log GPUs) for each filling.
    """
    by_rank = state.waiting.jobs_ahead(job)
    gang, key, _ = state.waiting.keys[job]
    if key.tier == 0:
        return by_rank
    first = key._replace(rank=float("-inf"))
    gpu_type = max(gang.types or state.gpus_by_type, key=lambda name: state.gpus_by_type.get(name, 0))
    gpus = state.gpus_by_type.get(gpu_type, 0)
    classes = {each: entries for each, entries in state.waiting.classes.items() if each.takes(gpu_type)}
    waiting = sum(map(len, classes.values()))
    before = sum(entries.before(first) for entries in classes.values())
    order = _equals(classes, first, gpus)
    prefix: list[Contender] = []
    for _ in range(FILLINGS_MAX):
        wanted_gpus = sum(contender.gpus for contender in prefix)
        while wanted_gpus < gpus and (contender := next(order, None)) is not None:
            prefix.append(contender)
            wanted_gpus += contender.gpus
        chosen, _ = served(prefix, gpus, Queue(waiting - before, gpus, load, 0.0))
        filled = [contender.key.job for contender in chosen]
        if job in filled:
            return before + filled.index(job)
        before += len(filled)
        gone = set(filled)
        prefix = [contender for contender in prefix if contender.key.job not in gone]
    return max(before, by_rank)


def _equals(classes: Mapping[GangClass, SortedList[JobKey]], first: JobKey, gpus_max: int) -> Iterator[Contender]:
    """The waiting jobs after this key that filling puts in the order of ranks with it; no gang wider than ``gpus_max``."""

    def of_class(gpus: int, keys: Iterator[JobKey]) -> Iterator[Contender]:
        for key in keys:
            if key[:3] != first[:3]:
                return
            yield Contender(key, gpus, key.rank, runs=False, price=0.0, since_s=math.inf)

    fitting = [item for item in classes.items() if item[0].gpus <= gpus_max]
    return heapq.merge(*[of_class(gang.gpus, entries.after(first)) for gang, entries in fitting])
