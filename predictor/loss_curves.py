"""What a running job's loss curve says of its total, from the curves of earlier runs of the same program.

Early stopping, a target loss and pruned sweeps end a program by its loss, and then runs with similar curves end alike. Three
experts give quantiles of the total of a job that has done k iterations, all of them given that it exceeds k: what was predicted
at its submission (``served``), the program's runs that were longer than k (``surviving_runs``), and the same runs, each
weighted by how near its curve was to the job's at k (``loss_curve``). :class:`predictor.aggregation.Aggregation` learns their
weights for each program, when a run ends, from what each would have said after 10, 25 and 50% of it. A program whose end does
not depend on its loss gives its curves no weight.

The idea to estimate convergence from reported losses is that of Optimus (Peng et al., EuroSys 2018), which fits a curve to a
job's own losses. The comparison with other runs is our construction.
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.model.estimate import LOSS_GROWTH, EndedJob, LossCurve, Reported, Unit
from predictor.aggregation import LEARNT, Aggregation
from predictor.intervals import LEVELS, Array, at_levels, estimate_points, quantile_of
from predictor.recurrence import bucket_of
from predictor.rows import plausible

EXPERTS: Final = ("served", "surviving_runs", "loss_curve")
CURVE: Final = EXPERTS.index("loss_curve")
RUNS_KEPT: Final = 50
"""Newest runs of a program whose curves are kept, about 200 bytes each."""
RUNS_MIN: Final = 5
"""Runs longer than the job so far that an answer needs."""
PROGRAMS_MAX: Final = 5_000
"""Programs kept; the one whose run ended longest ago is dropped first."""
SMOOTHED: Final = 3
"""Neighbouring points of a curve that are averaged: the loss of one batch is noisy."""
COMPARED: Final = 4
"""Newest places at which a job's curve is compared with others: since it had about half of its iterations."""
NEAREST: Final = 3
"""Runs that count in any case, however far their curves are."""
BANDWIDTH: Final = 0.5
"""Distance at which a run counts 60%, in standard deviations of the runs' losses."""
SHARES: Final = (0.1, 0.25, 0.5)
"""Of an ended run's iterations, after which the experts are compared."""
SERVED_PRIOR: Final = 0.9
"""Weight of what was predicted at the submission before any run has ended: it may know the total, for instance from arguments."""
REGRET_MAX: Final = 0.25
"""Regrets are clipped here: a program's weights must be known within some ten runs."""
_PLACE_LOG: Final = math.log(LOSS_GROWTH)
"""Curves are compared at fixed places: after 1, 1.25, 1.25^2, ... iterations."""
_MIDDLE: Final = LEARNT.tolist().index(0.5)
_ASLEEP: Final[Array] = np.full(len(LEVELS), math.nan)


class CurveAnswer(NamedTuple):
    """``log_points`` (32) of the total iterations, the weight of the curves in their median, and the number of ``runs``."""

    log_points: Array
    weight: float
    runs: int


class _Program:
    """The newest runs of a program, and how much their curves have told.

    ``losses`` (runs, places): beyond its end a run has its last loss. ``log_totals`` (runs).
    """

    __slots__ = ("log_totals", "losses", "weights")

    def __init__(self) -> None:
        self.losses = np.empty((0, 1), np.float32)
        self.log_totals: Array = np.empty(0)
        self.weights = Aggregation(EXPERTS, prior_base=SERVED_PRIOR, regret_max=REGRET_MAX)

    @property
    def bucket(self) -> int:
        """The history bucket of the weights."""
        return bucket_of(len(self.log_totals))

    def add(self, losses: Array, log_total: float) -> None:
        """Add a run; the oldest above the limit is dropped."""
        width = max(len(losses), self.losses.shape[1])
        rows = [np.pad(each, ((0, 0), (0, width - each.shape[1])), "edge") for each in (self.losses, losses[None])]
        self.losses = np.concatenate(rows, dtype=np.float32)[-RUNS_KEPT:]
        self.log_totals = np.append(self.log_totals, log_total)[-RUNS_KEPT:]

    def experts(self, curve: LossCurve, iterations: float, served: Array) -> Array | None:
        """The log quantiles (3, 25) of the experts for a job that has done so many ``iterations``; None where too few runs tell.

        ``served`` as for :meth:`LossCurves.answer`.
        """
        log_done = math.log(max(1.0, iterations))
        longer = self.log_totals > log_done
        if np.count_nonzero(longer) < RUNS_MIN:
            return None
        totals = self.log_totals[longer]
        order = np.argsort(totals, kind="stable")
        nearness = _nearness(self.losses[longer], curve)[order]
        surviving = served[served > log_done]
        return np.array(
            [
                quantile_of(surviving, LEVELS) if len(surviving) else _ASLEEP,
                _quantiles(totals[order], np.ones(len(totals))),
                _quantiles(totals[order], nearness),
            ]
        )


class LossCurves:
    """Learns from ended runs. Equal runs in equal order give equal answers. O(runs kept) per answer and per end."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Hashable, _Program] = OrderedDict()

    def ended(self, label: EndedJob, served: Array, unit: Unit) -> None:
        """Learn from an ended job that reported losses; others change nothing.

        ``served`` are the log points of its first prediction in ``unit``; empty without one.
        """
        curve, total = label.loss_curve, plausible(label.iterations)
        if curve is None or total is None or total < curve.iterations[0] or label.spec.profile is not None:
            return
        program = self._programs.setdefault(label.spec.recurrence, _Program())
        self._programs.move_to_end(label.spec.recurrence)
        if len(self._programs) > PROGRAMS_MAX:
            self._programs.popitem(last=False)
        if unit is Unit.SERVICE_S:
            per_s = label.seconds_per_iteration
            served = served - math.log(per_s) if per_s else np.empty(0)
        for share in SHARES:
            if (part := _until(curve, share * total)) is not None:
                _score(program, part, share * total, served, math.log(total))
        program.add(_at_places(curve), math.log(total))

    def answer(self, reported: Reported, served: Array) -> CurveAnswer | None:
        """The total iterations of a running job, given that it exceeds those done; None where too few runs tell.

        ``served`` are the log points of its first prediction, in iterations.
        """
        program, curve = self._programs.get(reported.request.spec.recurrence), reported.loss_curve
        if program is None or curve is None:
            return None
        experts = program.experts(curve, reported.iterations, served)
        if experts is None:
            return None
        [combined] = program.weights.average(program.bucket, experts[None])
        weight = float(program.weights.weights(program.bucket)[CURVE, _MIDDLE])
        return CurveAnswer(estimate_points(combined), weight, len(program.log_totals))


def _score(program: _Program, curve: LossCurve, iterations: float, served: Array, log_total: float) -> None:
    """Learn from what the experts would have said of an ended run when it had done so many iterations."""
    experts = program.experts(curve, iterations, served)
    if experts is not None:
        [combined] = program.weights.average(program.bucket, experts[None])
        at = at_levels(np.array([*experts, combined]), LEARNT)
        program.weights.observe(program.bucket, log_total, at[:-1], at[-1], 1.0)


def _until(curve: LossCurve, iterations: float) -> LossCurve | None:
    """The curve when the run had done so many iterations."""
    known = bisect_right(curve.iterations, iterations)
    return LossCurve(curve.iterations[:known], curve.losses[:known]) if known else None


def _at_places(curve: LossCurve) -> Array:
    """The smoothed losses at the places up to the curve's last point, at least at the first place."""
    # As a logarithm where they are large, which no loss makes overflow, and linear around zero, which a loss may cross.
    losses, log_iterations = np.arcsinh(curve.losses), np.log(curve.iterations)
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    last = np.arange(1, len(sums))
    first = np.maximum(0, last - SMOOTHED)
    places = _PLACE_LOG * np.arange(1 + _place(curve.iterations[-1]))
    return np.asarray(np.interp(places, log_iterations, (sums[last] - sums[first]) / (last - first)))


def _place(iteration: float) -> int:
    """The last place up to an iteration."""
    return int(math.log(iteration) / _PLACE_LOG + 1e-9)


def _nearness(losses: NDArray[np.float32], curve: LossCurve) -> Array:
    """The weight (runs) of each run by how near its ``losses`` (runs, places) are to the curve, at the curve's last places."""
    last = _place(curve.iterations[-1])
    places = np.arange(max(_place(curve.iterations[0]), last - COMPARED + 1), last + 1)
    theirs = losses[:, np.minimum(places, losses.shape[1] - 1)].astype(np.float64)
    spread = theirs.std(axis=0)
    apart = np.divide(theirs - _at_places(curve)[places], spread, out=np.zeros_like(theirs), where=spread > 0.0)
    distance = np.sqrt(np.mean(apart * apart, axis=1))
    width = max(BANDWIDTH, float(np.partition(distance, NEAREST - 1)[NEAREST - 1]))
    return np.asarray(np.exp(-0.5 * (distance / width) ** 2))


def _quantiles(ascending: Array, weights: Array) -> Array:
    """Quantiles of weighted values, linear between the middles of their shares of the mass, flat beyond the outermost."""
    middles = (np.cumsum(weights) - 0.5 * weights) / weights.sum()
    return np.asarray(np.interp(LEVELS, middles, ascending))
