"""Online aggregation of experts: what is served is the weighted mixture of all predictions, level by level.

An expert is whatever gives quantiles of a job's total: each baseline, each empirical distribution of the past, each kind of
model. The weights are learnt per history bucket and level, when a job ends: exponential weights with a second-order
correction and a learning rate for each expert (BOA: Wintenberger, Machine Learning 2017; for quantiles: Berrisch and Ziel,
CRPS learning, Journal of Econometrics 2023), on the linearised pinball loss. There are no thresholds and no champions.

**Mixture.** At each learnt level p, what is served is the p-quantile of the mean of the experts' distribution functions, with the
weights of that level. The mean m of their quantiles is sharper (Lichtendahl, Grushka-Cockayne and Winkler, Management Science
2013): where one says a minute and another an hour, it says eight minutes, which neither believes, and its interval does not
grow with their disagreement. The mixture keeps both. Between the learnt levels it has the shape of m.

**Bound.** The pinball loss is convex in the quantile, so the loss of the served quantile q exceeds that of an expert k by at
most the sum of r = g (q - q_k), g being the subgradient at q. For a single rate of forgetting 0, labels in the order of
predictions, and |r| <= 2, the sum is O(sqrt(V_k log K) + log K) for each k and each level, V_k being the sum of r^2, if m
is served. The mixture adds the sum of g (q - m), which has no bound; measured, its loss is lower than that of m
(docs/measurements/prediction.md). A label counts when its job ends; if at most D predictions are
open at a time, the sum grows by a factor of at most sqrt(D + 1) (Joulani, Gyorgy, Szepesvari, ICML 2013). With forgetting, the
bound is on the sum over the newest 1/forgetting labels, and the weights of the slow memory are the prior of the fast one.

**Ours**, chosen by measurement (docs/measurements/prediction.md): the product of a slow and a fast memory, regrets smoothed over
neighbouring levels and shared between buckets, jobs of one burst counted as the few observations that they are, and the regrets
that are expected of unfinished jobs (:meth:`Aggregation.expect`). The bound is on the labels alone. It holds for learning rates
of at most 1 / (2 |r|), 0.25 here. Where labels come soon the rate may be up to four times that: it falls with sqrt(D + 1), as
rates for delayed labels do, down to 0.25 where some thirty labels come between a prediction and its own.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictor.intervals import LEVELS, Array, at_levels, interpolation, probits, times
from predictor.recurrence import BUCKETS

AGGREGATION: Final = "aggregation"
"""What is served, by name beside the experts."""
WITHOUT_MODELS: Final = "aggregation_without_models"
"""What would be served without models, likewise."""
LEARNT: Final[Array] = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
"""The levels at which weights are learnt. Between them they are interpolated."""
FORGETTING: Final = (0.003, 0.03)
"""Share of the past regrets that a label makes forget: memories of about 300 and 30 jobs."""
PRIOR_BASE: Final = 0.3
"""Weight of the first expert, the recurrence median, before any label, and for new programs that of first runs too. The others
share the rest.
"""
FIRST_RUNS: Final = "first_runs"
"""The expert that knows only first runs of programs."""
REGRET_MAX: Final = 2.0
"""Regrets are clipped here, in log units: an error beyond a factor of 7 counts as one of 7."""
SMOOTHING: Final = 1.0
"""Standard deviation, in normal quantiles, of the kernel by which neighbouring levels share their regrets."""
COLD_SHARE: Final = 0.5
"""How much the regrets of new programs count for known ones and the reverse. Known ones count fully for each other."""
BURST_S: Final = 3_600.0
"""Jobs of one user that are submitted within this time are one burst."""
BURSTS_KEPT: Final = 10_000
ENDED_KEPT: Final = 5_000
"""Ended jobs, the newest, that count as submitted later than an unfinished one: after 1,700 the slow memory has forgotten it."""
CENSORED_MAX: Final = 1_000
"""Unfinished jobs that are counted, the newest."""
DELAY_FORGETTING: Final = 0.01
"""Share of the mean delay of the labels that a label makes forget."""
DELAY_MAX: Final = 255
"""A longer delay counts as this one."""
DELAY_SLOW: Final = 31.0
"""The mean delay from which the learning rate is that of the bound."""
SPEED_MAX: Final = 4.0
"""How many times that rate is the largest, where labels come at once."""
EXPECTED_EVERY_S: Final = 300.0
"""How often what is expected of them is computed anew, at the next prediction."""

FROM_LEARNT: Final[Array] = interpolation(LEARNT, LEVELS)
"""Turns values at the learnt levels (9) into values at all levels (25)."""
_FORGETTING: Final[Array] = np.array(FORGETTING)
_UP_TO: Final[Array] = np.diff(LEVELS, prepend=0.0)
"""The mass of a distribution between each of its quantiles and the one before it."""
_FROM: Final[Array] = np.diff(LEVELS, append=1.0)
"""The mass between each and the one after it."""
_ROUNDING: Final = 1e-9
"""Sums of masses that differ by no more than this are equal."""


def _smoother() -> Array:
    distance = probits(LEARNT)[:, None] - probits(LEARNT)
    kernel = np.exp(-0.5 * (distance / SMOOTHING) ** 2)
    return np.asarray(kernel / kernel.sum(axis=0))


def _sharing() -> Array:
    """How much the regrets of each bucket (row) count for each other (column)."""
    known = np.arange(len(BUCKETS)) > 0
    return np.where(np.equal.outer(known, known), 1.0, COLD_SHARE)


_SMOOTHER: Final[Array] = _smoother()
_SHARING: Final[Array] = _sharing()


def _mixed(quantiles: Array, weights: Array) -> Array:
    """The quantiles (jobs, 9) of mixtures of distributions (jobs, experts, 25) at the learnt levels, each with weights of its own
    (jobs, experts, 9), which sum to 1. An infinite distribution must have no weight.

    The mass between two quantiles of a distribution is taken as at the upper one, and as at the lower one; the answer is the
    mean of both, and for one distribution its own quantile.
    """
    flat = quantiles.reshape(len(quantiles), -1)
    order = np.argsort(flat, axis=1, kind="stable")
    nodes = np.take_along_axis(flat, order, axis=1)
    expert, of = np.divmod(order, len(LEVELS))
    found = np.empty((len(quantiles), len(LEARNT)))
    for position, level in enumerate(LEARNT):
        share = np.take_along_axis(weights[:, :, position], expert, axis=1)
        below, left = np.cumsum(share * _UP_TO[of], axis=1), share * _FROM[of]
        before = LEVELS[0] + np.cumsum(left, axis=1) - left
        upper = np.min(nodes, axis=1, where=below >= level - _ROUNDING, initial=np.inf)
        lower = np.max(nodes, axis=1, where=(before <= level + _ROUNDING) & (share > 0.0), initial=-np.inf)
        found[:, position] = 0.5 * (lower + upper)
    return found


def _mean(quantiles: Array, weights: Array) -> Array:
    """The weighted mean (jobs, 25) of quantiles (jobs, experts, 25), those that are NaN left out."""
    return np.asarray((np.where(np.isnan(quantiles), 0.0, quantiles) * times(weights, FROM_LEARNT)).sum(axis=1))


class Censored(NamedTuple):
    """A job that has run and has not ended: the log of what it has attained, what had been predicted of it at the learnt levels,
    combined (9) and by each expert (experts, 9), how much it counts, and the sum of the weights of the ended jobs that were
    submitted ``later``.
    """

    bucket: int
    log_attained: float
    served: Array
    experts: Array
    share: float
    later: float

    @property
    def exceeded(self) -> float:
        """The share of its distribution, as it was served, that it has exceeded. Below 1."""
        return float(np.interp(self.log_attained, self.served, LEARNT, left=0.0))


class Label(NamedTuple):
    """How much the label of an ended job counts, and its ``delay``: how many others ended between its submission and its end."""

    share: float
    delay: int


class Bursts:
    """Counts the jobs of each burst that have ended, so that a hundred alike jobs weigh as ten, and the delays of labels."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[Hashable, int], int] = OrderedDict()
        self._ended: deque[tuple[float, float]] = deque(maxlen=ENDED_KEPT)
        """Submission and weight of the newest ended jobs."""
        self._ends_s: deque[float] = deque(maxlen=DELAY_MAX)

    def ended(self, group: Hashable | None, submitted_at_s: float, ended_at_s: float) -> Label:
        """One more job has ended. It counts 1 / sqrt(n) as the n-th of its burst. ``group`` None: jobs of unknown users."""
        burst = (group, int(submitted_at_s // BURST_S))
        count = self._counts.pop(burst, 0) + 1
        self._counts[burst] = count
        if len(self._counts) > BURSTS_KEPT:
            self._counts.popitem(last=False)
        label = Label(1.0 / math.sqrt(count), sum(end_s > submitted_at_s for end_s in self._ends_s))
        self._ended.append((submitted_at_s, label.share))
        self._ends_s.append(ended_at_s)
        return label

    def censored(self, jobs: Iterable[tuple[Hashable | None, float]]) -> list[tuple[float, float]]:
        """For unfinished jobs (group and submission) the weight of each as if they ended now, one after the other, and the sum
        of the weights of the ended jobs that were submitted after it. Changes nothing. O(jobs + ended jobs that are kept).
        """
        more: Counter[tuple[Hashable, int]] = Counter()
        counts, submitted_at_s = [], []
        for group, at_s in jobs:
            burst = (group, int(at_s // BURST_S))
            more[burst] += 1
            counts.append(self._counts.get(burst, 0) + more[burst])
            submitted_at_s.append(at_s)
        ended = np.array(sorted(self._ended)).reshape(-1, 2)
        before = np.concatenate([[0.0], np.cumsum(ended[:, 1])])
        later = before[-1] - before[np.searchsorted(ended[:, 0], submitted_at_s, side="right")]
        return list(zip((1.0 / np.sqrt(counts)).tolist(), later.tolist(), strict=True))


class Aggregation:
    """The weights of experts. Equal labels in an equal order give equal weights."""

    def __init__(
        self,
        experts: Sequence[str],
        known: "Aggregation | None" = None,
        *,
        prior_base: float = PRIOR_BASE,
        regret_max: float = REGRET_MAX,
    ) -> None:
        """``experts`` are their names, first the one that has the weight ``prior_base`` before any label. ``known`` is an
        aggregation whose regrets are taken over for the experts that both have; one that is new to it starts without regrets. A
        smaller ``regret_max`` learns faster, and from large errors less.
        """
        self.experts = tuple(experts)
        self._prior_base, self._regret_max = prior_base, regret_max
        shape = (len(BUCKETS), len(FORGETTING), len(self.experts), len(LEARNT))
        self._regrets, self._squares = np.zeros(shape), np.zeros(shape)
        self._expected = np.zeros(shape), np.zeros(shape)
        self.labels = [0] * len(BUCKETS)
        self.delay, self._delays = DELAY_SLOW, 0
        self._weights: dict[int, Array] = {}
        if known is not None:
            both = [name for name in self.experts if name in known.experts]
            here, there = [self.experts.index(name) for name in both], [known.experts.index(name) for name in both]
            self._regrets[:, :, here], self._squares[:, :, here] = (
                known._regrets[:, :, there],
                known._squares[:, :, there],
            )
            self.labels, self.delay, self._delays = list(known.labels), known.delay, known._delays

    def weights(self, bucket: int) -> Array:
        """The weight of each expert at each of the learnt levels, (experts, 9). Columns sum to 1."""
        if bucket not in self._weights:
            regrets, squares = self._expected
            self._weights[bucket] = self._weighed(bucket, self._regrets + regrets, self._squares + squares)
        return self._weights[bucket]

    def _weighed(self, bucket: int, all_regrets: Array, all_squares: Array) -> Array:
        regrets = np.tensordot(_SHARING[bucket], all_regrets, 1) @ _SMOOTHER
        squares = np.tensordot(_SHARING[bucket], all_squares, 1) @ _SMOOTHER
        count = len(self.experts)
        speed = min(SPEED_MAX, max(1.0, math.sqrt((DELAY_SLOW + 1.0) / (self.delay + 1.0))))
        rate = np.minimum(speed * 0.5 / self._regret_max, np.sqrt(math.log(count + 1) / np.maximum(squares, 1e-12)))
        favoured = [0, *(index for index, name in enumerate(self.experts) if name == FIRST_RUNS and bucket == 0)]
        prior = np.full((count, 1), (1.0 - len(favoured) * self._prior_base) / max(1, count - len(favoured)))
        prior[favoured] = self._prior_base
        log_weights = np.log(prior) + (rate * regrets - rate * rate * squares).sum(axis=0)
        unscaled = np.exp(log_weights - log_weights.max(axis=0))
        return np.asarray(unscaled / unscaled.sum(axis=0))

    def expect(self, jobs: Sequence[Censored]) -> None:
        """Count these unfinished jobs, instead of those of the last call, with the regrets that are expected of them. O(jobs x
        experts).

        Short jobs end first, so the labels alone show shorter jobs than there are, above all where many were submitted at once.
        A job that has attained t has a total above t. Given that, and what is served for it, the expected subgradient at its
        served quantile of level p is max(0, p - F(t)) / (1 - F(t)) - p, F being the served distribution: nothing at its start,
        and that of its label once it has exceeded the quantile. Each memory counts it as far forgotten as the labels of jobs that
        were submitted with it: else old long jobs would outweigh the short ones of their time, which have ended.
        """
        self._expected = np.zeros_like(self._regrets), np.zeros_like(self._squares)
        self._weights.clear()
        if not jobs:
            return
        served, experts = np.array([job.served for job in jobs]), np.array([job.experts for job in jobs])
        exceeded = np.array([[job.exceeded] for job in jobs])
        gradient = np.maximum(0.0, LEARNT - exceeded) / (1.0 - exceeded) - LEARNT
        shares = np.array([[[job.share]] for job in jobs])
        regrets = self._clipped(gradient[:, None], served[:, None], experts) * shares
        kept = np.exp(-np.outer(_FORGETTING, [job.later for job in jobs]))
        for bucket in range(len(BUCKETS)):
            of_bucket = [job.bucket == bucket for job in jobs]
            for expected, each in zip(self._expected, (regrets, regrets**2), strict=True):
                expected[bucket] = np.tensordot(kept[:, of_bucket], each[of_bucket], 1)

    def _clipped(self, gradient: Array, served: Array, quantiles: Array) -> Array:
        """The regrets, 0 for an expert that sleeps."""
        regrets = np.clip(gradient * (served - quantiles), -self._regret_max, self._regret_max)
        return np.where(np.isnan(regrets), 0.0, regrets)

    def combine(self, bucket: int, quantiles: Array, *, by_labels: bool = False) -> Array:
        """The quantiles (jobs, 25) of the weighted mixture of the experts' distributions (jobs, experts, 25), ascending.

        An expert that has no answer for a job (NaN) sleeps: the others share its weight. At least one must be awake.
        ``by_labels``: as without unfinished jobs.
        """
        awake = ~np.isnan(quantiles[..., :1])
        weights = self._awake(bucket, awake, by_labels=by_labels)
        mean = _mean(quantiles, weights)
        moved = _mixed(np.where(awake, quantiles, np.inf), weights) - at_levels(mean, LEARNT)
        return np.sort(mean + times(moved, FROM_LEARNT), axis=-1)

    def average(self, bucket: int, quantiles: Array) -> Array:
        """The weighted mean (jobs, 25) of the experts' quantiles (jobs, experts, 25), ascending; sleeping as in :meth:`combine`.

        Where one expert may be nearly right by itself: a mixture would widen its answer by the spread of the others.
        """
        return np.sort(_mean(quantiles, self._awake(bucket, ~np.isnan(quantiles[..., :1]))), axis=-1)

    def _awake(self, bucket: int, awake: NDArray[np.bool_], *, by_labels: bool = False) -> Array:
        """The weights (jobs, experts, 9), those of sleeping experts shared by the others."""
        learnt = self._weighed(bucket, self._regrets, self._squares) if by_labels else self.weights(bucket)
        weights = learnt * awake
        # Awake experts may have lost all their weight to one that sleeps.
        weights = np.where(weights.sum(axis=1, keepdims=True) > 0.0, weights, awake)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def delayed(self, delay: int) -> None:
        """A label comes with this :attr:`Label.delay`. Without such calls labels count as late."""
        self._delays += 1
        self.delay += (delay - self.delay) * max(DELAY_FORGETTING, 1.0 / self._delays)

    def observe(self, bucket: int, label: float, quantiles: Array, served: Array, share: float) -> None:
        """A job ended with this log ``label``: the experts (experts, 9) had predicted it at the learnt levels, and what was
        served (9). ``share``: how much it counts (:class:`Bursts`). O(experts).
        """
        regret = self._clipped((label < served) - LEARNT, served, quantiles) * share
        kept = (1.0 - _FORGETTING * share)[:, None, None]
        self._regrets[bucket] = self._regrets[bucket] * kept + regret
        self._squares[bucket] = self._squares[bucket] * kept + regret * regret
        self.labels[bucket] += 1
        self._weights.clear()

    def dump(self) -> dict[str, Any]:
        """The state as JSON."""
        return {
            "experts": list(self.experts),
            "labels": list(self.labels),
            "delays": [self._delays, self.delay],
            "regrets": self._regrets.tolist(),
            "squares": self._squares.tolist(),
        }

    @classmethod
    def load(cls, dumped: Any) -> "Aggregation":
        """The inverse of :meth:`dump`, equal in all later answers. Raises ValueError for anything else."""
        if not isinstance(dumped, dict) or dumped.keys() != {"experts", "labels", "delays", "regrets", "squares"}:
            raise ValueError("aggregation: must have the keys experts, labels, delays, regrets and squares")
        names, labels = dumped["experts"], dumped["labels"]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError("aggregation: experts: must be a list of names")
        if (
            not isinstance(labels, list)
            or len(labels) != len(BUCKETS)
            or not all(type(count) is int for count in labels)
        ):
            raise ValueError(f"aggregation: labels: must be {len(BUCKETS)} whole numbers")
        match dumped["delays"]:
            case [int(delays), float(delay)] if delays >= 0 and 0.0 <= delay <= DELAY_MAX:
                pass
            case _:
                raise ValueError(f"aggregation: delays: must be their number and their mean, from 0 to {DELAY_MAX}")
        found = cls(names)
        regrets, squares = np.array(dumped["regrets"], dtype=float), np.array(dumped["squares"], dtype=float)
        if regrets.shape != found._regrets.shape or squares.shape != regrets.shape:
            raise ValueError(f"aggregation: regrets, squares: must have the shape {found._regrets.shape}")
        if not np.isfinite(regrets).all() or not np.isfinite(squares).all() or (squares < 0.0).any():
            raise ValueError("aggregation: regrets, squares: must be finite, and squares not negative")
        found._regrets, found._squares, found.labels = regrets, squares, labels
        found._delays, found.delay = delays, delay
        return found
