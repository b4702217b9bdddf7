"""The shadow policy of the live service: creation from the settings, and reports between two cycles."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation
from service.config.policy import configured_options, configured_shadow
from service.config.settings import Settings
from service.engine.engine import Engine
from service.engine.watch import EngineReader
from service.shadow import file as shadow_file
from service.shadow.agreement import Difference, Totals, Unwanted, Wish
from service.shadow.decider import Worker
from service.shadow.shadow import Shadow, ShadowState

logger = logging.getLogger(__name__)

DISAGREEMENTS_MAX = 100
"""Largest number of disagreements in a report, oldest first. The first policy explains each of them."""

ANSWER_S = 10.0
"""Time limit for the shadow's process, seconds. After it a report holds what is known so far."""


class Want(StrEnum):
    """What the shadow would do with a job that the first policy treats otherwise."""

    START = "start"
    """The job waits; the shadow would start it now."""
    WAIT = "wait"
    """The job runs; the shadow would not have started it."""
    STOP = "stop"
    """The job runs; the shadow would preempt it now for another one."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One job on which the two policies disagree now. ``servers``: name and GPUs of each server where it would start."""

    job: JobId
    name: str
    gpus: int
    since_s: float
    wants: Want
    servers: Sequence[tuple[str, int]]
    for_job: JobId | None
    first: Explanation
    sentence: str


@dataclass(frozen=True, slots=True)
class JobOpinion:
    """What the shadow would do with one job, in a sentence. ``wants`` is None if both policies agree."""

    policy: str
    wants: Want | None
    sentence: str


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Agreement of the two policies since ``since_s``, and the jobs on which they disagree now. Seconds since the epoch."""

    state: ShadowState
    first_options: Mapping[str, str]
    since_s: float
    at_s: float
    totals: Totals
    disagreements: Sequence[Disagreement]
    disagreements_total: int
    differences: Sequence[Difference]


def make_shadow(settings: Settings, first: Policy[Any], worker: Callable[[], Worker]) -> Shadow | None:
    """``first`` with the shadow policy of the settings, which continues from the saved file; None without such a setting.

    ``worker`` creates the worker in which the second policy decides. Raises :class:`~service.config.settings.SettingsError`.
    """
    found = configured_shadow(settings)
    if found is None:
        return None
    shadow = Shadow(
        first,
        found.policy,
        found.options,
        budget_s=settings.shadow_budget_s,
        worker=worker(),
        warn=lambda message, error: logger.error("%s", message, exc_info=error),
    )
    saved = shadow_file.load(settings.data_dir, _pair(settings, shadow))
    if saved is not None:
        shadow.resume(saved)
    return shadow


def _pair(settings: Settings, shadow: Shadow) -> shadow_file.Pair:
    state = shadow.state()
    return shadow_file.Pair(settings.policy, configured_options(settings), state.policy, state.options)


class Shadowing:
    """Reports of one live shadow. Methods may be called from any thread.

    The scheduling loop does not wait for the other policy: one read of the engine sends a request, and after the answer
    a second read uses it.
    """

    def __init__(self, shadow: Shadow | None, loop: EngineReader, settings: Settings) -> None:
        self._shadow = shadow
        self._loop = loop
        self._settings = settings

    def report(self) -> ShadowReport | None:
        """The counts up to the newest cycle; None without a shadow policy."""
        shadow = self._shadow
        if shadow is None:
            return None
        options = configured_options(self._settings)
        wait(self._loop.read(lambda engine: shadow.unanswered()), ANSWER_S)
        return self._loop.read(lambda engine: _report(engine, shadow, options))

    def opinion(self, job: JobId) -> JobOpinion | None:
        """What the shadow would do with an unfinished job; None if the job does not compete or run."""
        shadow = self._shadow
        if shadow is None:
            return None
        answer = self._request(
            lambda engine: shadow.request_explanation(engine.world, job) if job in engine.world.jobs else None
        )
        return self._loop.read(lambda engine: _opinion(engine, shadow, job, answer))

    def save(self) -> None:
        """Write the file from which a later service continues. The loop waits for the copy, but not for the writing."""
        shadow = self._shadow
        if shadow is None:
            return
        dump = self._request(lambda engine: shadow.request_dump())
        saved = self._loop.read(lambda engine: shadow.saved(engine.world, dump))
        try:
            shadow_file.save(self._settings.data_dir, _pair(self._settings, shadow), saved)
        except (OSError, ValueError, TypeError) as error:
            logger.warning("the counts of the shadow policy were not saved: %s", error)

    def _request(self, send: Callable[[Engine[Any]], Future[Any] | None]) -> Future[Any] | None:
        answer = self._loop.read(send)
        if answer is not None:
            wait([answer], ANSWER_S)
        return answer


def _report(engine: Engine[Any], shadow: Shadow, first_options: Mapping[str, str]) -> ShadowReport:
    agreement = shadow.agreement(engine.world)
    found = [each for job, each in agreement.disagreements().items() if job in engine.world.jobs]
    oldest = sorted(found, key=lambda each: (each.since_s, each.job))[:DISAGREEMENTS_MAX]
    return ShadowReport(
        shadow.state(),
        first_options,
        agreement.since_s,
        engine.world.now_s,
        deepcopy(agreement.totals),
        [_disagreement(engine, each) for each in oldest],
        len(found),
        tuple(agreement.differences),
    )


def _disagreement(engine: Engine[Any], each: Wish | Unwanted) -> Disagreement:
    job, cluster = engine.world.jobs[each.job], engine.world.cluster
    placement = each.placement if isinstance(each, Wish) else None
    return Disagreement(
        each.job,
        job.spec.name,
        each.gpus,
        each.since_s,
        _wants(each),
        _named(cluster, placement) if placement is not None else (),
        each.for_job if isinstance(each, Wish) else None,
        engine.explain(each.job),
        _sentence(cluster, each),
    )


def _opinion(engine: Engine[Any], shadow: Shadow, job: JobId, answer: Future[Any] | None) -> JobOpinion | None:
    opinion = shadow.opinion(engine.world, job, answer) if job in engine.world.jobs else None
    policy = shadow.state().policy
    match opinion:
        case Explanation():
            return JobOpinion(policy, None, opinion.sentence)
        case Wish() | Unwanted():
            return JobOpinion(policy, _wants(opinion), _sentence(engine.world.cluster, opinion))
    return None


def _wants(each: Wish | Unwanted) -> Want:
    if isinstance(each, Unwanted):
        return Want.WAIT
    return Want.START if each.placement is not None else Want.STOP


def _sentence(cluster: Cluster, each: Wish | Unwanted) -> str:
    """``It would start now on s0003:4.``"""
    if isinstance(each, Unwanted):
        instead = f" It would have started {_jobs(each.instead)} instead." if each.instead else ""
        why = f" {each.shadow.sentence}" if each.shadow is not None and not instead else ""
        return f"It would not have been started.{instead}{why}"
    if each.placement is None:
        whom = f" for job {each.for_job}" if each.for_job is not None else ""
        return f"It would be stopped now{whom}."
    return f"It would start now on {' '.join(f'{name}:{gpus}' for name, gpus in _named(cluster, each.placement))}."


def _named(cluster: Cluster, placement: Placement) -> Sequence[tuple[str, int]]:
    return [(cluster.servers[share.server].name, share.gpus) for share in placement.shares]


def _jobs(jobs: Sequence[JobId], most: int = 5) -> str:
    """``jobs 2, 5 and 3 more``."""
    shown = ", ".join(str(job) for job in jobs[:most])
    more = f" and {len(jobs) - most} more" if len(jobs) > most else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {shown}{more}"
