"""Forecasts for instants of a cluster's own past, beside what happened: the material of the calibration."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from policies.model.estimate import Estimate
from policies.model.ids import JobId
from service.advice.calibration import Checked, end_kind, instants, start_kind
from service.advice.learner import Submitted
from service.advice.mirror import Mirrored, MirrorNode, mirror
from service.advice.past import PastJob, name_of, seen_at
from service.forecast.forecast import Forecast, ForecastOptions, NoForecast, forecast

INSTANTS = 40
"""Instants of the past that are forecast."""

SAMPLES = 10
"""Futures of each. The calibration corrects what few futures get wrong."""

JOBS_MAX = 300
"""Jobs of the queue that a rehearsal simulates."""

WARM_SHARE = 0.3
"""The first part of the past is only learnt from."""

UNKNOWN_MAX = 0.1
"""An instant with a larger share of jobs whose start is not known yet is not used: those still waiting are the late ones."""


def rehearse(
    submitted: Sequence[Submitted],
    nodes: Sequence[MirrorNode],
    *,
    until_s: float,
    count: int = INSTANTS,
    keep_going: Callable[[], bool] = lambda: True,
) -> list[Checked]:
    """Forecast the queue at up to ``count`` instants before ``until_s``, each knowing only what was known then.

    ``keep_going`` is called before each instant. O(instants x (jobs + one forecast)).
    """
    past = [each.job for each in submitted]
    times = sorted(job.asked.submitted_at_s for job in past)
    if not times:
        return []
    estimates = {name_of(each.job.asked): each.estimate for each in submitted}
    from_s = times[min(len(times) - 1, int(WARM_SHARE * len(times)))]
    found: list[Checked] = []
    for at_s in instants(times, from_s, until_s, count):
        if not keep_going():
            break
        found += _at(past, nodes, at_s, estimates)
    return found


def _at(
    past: Sequence[PastJob], nodes: Sequence[MirrorNode], at_s: float, estimates: Mapping[str, Estimate | None]
) -> list[Checked]:
    seen = seen_at(past, nodes, at_s)
    mirrored = mirror(seen, JOBS_MAX)
    truths = {name_of(each.asked): each for each in past if each.asked.submitted_at_s <= at_s}
    actual = {number: truths[name_of(job)] for number, job in mirrored.jobs.items()}
    waiting = [each for number, each in actual.items() if mirrored.jobs[number].started_at_s is None]
    unknown = sum(each.started_at_s is None and each.ended_at_s is None for each in waiting)
    if unknown > UNKNOWN_MAX * len(actual):
        return []
    known = {
        number: found for number, each in actual.items() if (found := estimates.get(name_of(each.asked))) is not None
    }
    try:
        made = forecast(mirrored.world(known), mirrored.order(), options=ForecastOptions(samples=SAMPLES))
    except NoForecast:
        return []
    return list(checks(made, mirrored, actual))


def checks(made: Forecast, mirrored: Mirrored, actual: Mapping[JobId, PastJob]) -> Iterator[Checked]:
    """The forecasts of starts and ends that have come true; those of cancelled jobs have not."""
    for number, each in made.jobs.items():
        truth, job = actual.get(number), mirrored.jobs[number]
        if truth is None or truth.started_at_s is None:
            continue
        if each.start is not None:
            yield Checked(start_kind(each.start, made.now_s), made.now_s, job.key, each.start, truth.started_at_s)
        if each.finish is not None and truth.ended_at_s is not None:
            kind = end_kind(running=job.started_at_s is not None)
            yield Checked(kind, made.now_s, job.key, each.finish, truth.ended_at_s)
