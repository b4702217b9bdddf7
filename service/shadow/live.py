"""The shadow policy of the live service: made from settings, and told to those who ask, between two cycles."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from policies.base import Policy
from policies.model.cluster import Cluster
from policies.model.ids import JobId
from policies.model.placement import Placement
from policies.model.reasons import Explanation
from service.config.policy import configured_options, configured_shadow
from service.config.settings import Settings
from service.engine.engine import Engine
from service.shadow import file as shadow_file
from service.shadow.agreement import Agreement, Difference, Totals, Unwanted, Wish
from service.shadow.decider import Worker
from service.shadow.shadow import Opinion, Shadow, Standing

logger = logging.getLogger(__name__)

DISAGREEMENTS_MAX = 100
"""Jobs that a report tells one by one: the oldest disagreements. The first policy explains each of them."""

ANSWER_S = 10.0
"""How long a reader waits for the shadow's process before it gets what is known."""

Answer = TypeVar("Answer")


class Loop(Protocol):
    """What is needed of the scheduling loop."""

    def read(self, look: Callable[[Engine[Any]], Answer]) -> Answer:
        """Look at the engine between two cycles."""


class Want(StrEnum):
    """What the shadow wants for a job where the first policy does something else."""

    START = "start"
    """It waits, and would start now."""
    WAIT = "wait"
    """It runs, and would not have been started when it was."""
    STOP = "stop"
    """It runs, and would be stopped now for another one."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One job on which the two disagree now. ``servers``: names and GPUs, where it would start."""

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
    """What the shadow thinks of one job, in a sentence. ``wants`` is None where it agrees."""

    policy: str
    wants: Want | None
    sentence: str


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Where the two policies have agreed since ``since_s``, and the jobs on which they do not now. Seconds since the epoch."""

    standing: Standing
    first_options: Mapping[str, str]
    since_s: float
    at_s: float
    totals: Totals
    disagreements: Sequence[Disagreement]
    disagreements_total: int
    differences: Sequence[Difference]


def make_shadow(settings: Settings, first: Policy[Any], worker: Callable[[], Worker]) -> Shadow | None:
    """``first`` with the second policy of the settings beside it, from where an earlier service left it.

    ``worker`` makes the place where the second policy decides.

    Raises :class:`~service.server.startup.StartError`.
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
        trouble=_log_trouble,
    )
    past = shadow_file.load(settings.data_dir, _pair(settings, shadow))
    if past is not None:
        shadow.resume(past)
    return shadow


def _pair(settings: Settings, shadow: Shadow) -> shadow_file.Pair:
    standing = shadow.standing()
    return shadow_file.Pair(settings.policy, configured_options(settings), standing.policy, standing.options)


def _log_trouble(said: str, error: BaseException | None) -> None:
    logger.error("%s", said, exc_info=error)


class Shadowing:
    """Answers for one live shadow. Methods may be called from any thread."""

    def __init__(self, shadow: Shadow | None, loop: Loop, settings: Settings) -> None:
        self._shadow = shadow
        self._loop = loop
        self._settings = settings

    # The loop does not wait for the other policy: its answers are asked for in one look, and read in another.

    def report(self) -> ShadowReport | None:
        """The account up to the newest cycle; None without a shadow policy."""
        shadow = self._shadow
        if shadow is None:
            return None
        options = configured_options(self._settings)
        self._wait(self._loop.read(lambda engine: shadow.unanswered()))
        return self._loop.read(lambda engine: _report(engine, shadow, options))

    def opinion(self, job: JobId) -> JobOpinion | None:
        """What the shadow thinks of an unfinished job; None where it has nothing to say."""
        shadow = self._shadow
        if shadow is None:
            return None
        asked = self._loop.read(
            lambda engine: shadow.request_explanation(engine.world, job) if job in engine.world.jobs else None
        )
        self._wait([asked] if asked is not None else [])
        return self._loop.read(lambda engine: _opinion(engine, shadow, job, asked))

    def save(self) -> None:
        """Write down what a later service resumes from. The loop waits while it is copied, not while it is written."""
        shadow = self._shadow
        if shadow is None:
            return
        asked = self._loop.read(lambda engine: shadow.request_dump())
        self._wait([asked] if asked is not None else [])
        memory = self._loop.read(lambda engine: shadow.memory(engine.world, asked))
        try:
            shadow_file.save(self._settings.data_dir, _pair(self._settings, shadow), memory)
        except (OSError, ValueError, TypeError) as error:
            logger.warning("the shadow's account was not saved: %s", error)

    def _wait(self, answers: Sequence[Future[Any]]) -> None:
        wait(answers, ANSWER_S)


def _report(engine: Engine[Any], shadow: Shadow, first_options: Mapping[str, str]) -> ShadowReport:
    account = shadow.agreement(engine.world)
    found = _found(engine, account)
    oldest = sorted(found, key=lambda each: (each.since_s, each.job))[:DISAGREEMENTS_MAX]
    return ShadowReport(
        shadow.standing(),
        first_options,
        account.since_s,
        engine.world.now_s,
        deepcopy(account.totals),
        [_disagreement(engine, each) for each in oldest],
        len(found),
        tuple(account.differences),
    )


def _found(engine: Engine[Any], account: Agreement) -> list[Wish | Unwanted]:
    """One entry a job: what it would do now says more than what it would not have done."""
    found: dict[JobId, Wish | Unwanted] = {**account.unwanted, **account.wished_stops, **account.wished_starts}
    return [each for job, each in found.items() if job in engine.world.jobs]


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


def _opinion(engine: Engine[Any], shadow: Shadow, job: JobId, asked: Future[Any] | None) -> JobOpinion | None:
    opinion: Opinion | None = shadow.opinion(engine.world, job, asked) if job in engine.world.jobs else None
    if opinion is None:
        return None
    told = opinion.wish or opinion.unwanted
    if told is not None:
        return JobOpinion(opinion.policy, _wants(told), _sentence(engine.world.cluster, told))
    return None if opinion.explanation is None else JobOpinion(opinion.policy, None, opinion.explanation.sentence)


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
