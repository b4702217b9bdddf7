"""Options that every rank-ordered policy shares, parsed from ``--option name=value`` strings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from policies.rank import OverRun
from policies.suggestion import did_you_mean


class Preemption(StrEnum):
    """Whether running jobs may be stopped for better ones."""

    NEVER = "never"
    GUIDED = "guided"
    """With a price (checkpoint, restart, lost work) and hysteresis."""
    ALWAYS = "always"
    """Without a price, for experiments."""


class PreemptUnsaved(StrEnum):
    """Whether a job that cannot checkpoint is stopped for another job."""

    NEVER = "never"
    PRIORITY = "priority"
    """Only for a job of larger priority."""


class Queue(StrEnum):
    """Whether jobs may pass one that cannot start."""

    STRICT = "strict"
    SKIP = "skip"
    AUTO = "auto"
    """``strict`` behind the gate of ``asrpt`` without preemption, else ``skip``."""


class Order(StrEnum):
    """Order of released jobs in ``asrpt`` without preemption: virtual completion time, or virtual work."""

    VIRTUAL = "virtual"
    WORK = "work"


class Release(StrEnum):
    """When ``asrpt`` without preemption lets a job compete: on virtual completion, or early onto idle GPUs."""

    VIRTUAL = "virtual"
    EARLY = "early"


class Fill(StrEnum):
    """How ``asrpt`` or ``promise`` with preemption fills the cluster from the order of ranks."""

    FIRST_FIT = "first_fit"
    """Every job that fits, in the order of ranks."""
    SERVER_FILLING = "server_filling"
    """The shortest prefix that fills the cluster, of it the largest gangs first."""
    AUTO = "auto"
    """``server_filling`` while gangs of at least half the GPUs of a type bring much of the work, else ``first_fit``."""


class PlacementMethod(StrEnum):
    """Which of the free GPUs a gang gets."""

    HEAVY_EDGE = "heavy_edge"
    """Those with the fastest iterations, on few servers."""
    RANDOM = "random"
    """Random ones, to measure the benefit of the choice."""


class ContentionView(StrEnum):
    """Whether a policy counts who shares a link, on a cluster whose links are shared."""

    FORESEE = "foresee"
    IGNORE = "ignore"
    """Every GPU owns its share of its server's NIC."""


class OptionError(ValueError):
    """An unknown option or a value out of range; the message names both."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of projects, written ``nlp:3+vision:1``; others weigh 1."""

    of: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return "+".join(f"{project}:{weight:g}" for project, weight in self.of.items())


@dataclass(frozen=True, slots=True)
class Options:
    """See ``docs/reference/policies.md``. Seconds and ratios.

    ``eta``: a job displaces another only if its rank is below eta times the other's, less the price. ``tau``: a job whose
    slowest placement is more than tau times its best is communication-heavy and may wait for a good one, at most
    ``delay_factor`` times its remaining time. ``guard_share`` of the GPUs goes to the oldest jobs first (0: no guard);
    after ``guard_wait_s`` GPUs are set aside for the oldest as they become free.

    A job that has restarted ``restarts_free`` times runs undisturbed for ``restarted_attempt_s_min`` after each further
    start, so that in any 24 hours it is preempted at most restarts_free + 86,400 / restarted_attempt_s_min + 1 times.

    ``promise_level``: share of the promised ends to keep; ``promise_weight``: how much a promise weighs as its slack runs out
    (:mod:`policies.builtin.promise`).

    ``fair_share``: projects that have used less by their ``project_weights`` come first, whatever the ranks; half of the use
    decays every ``fair_share_half_life_s`` (:mod:`policies.state.project_shares`).
    """

    preemption: Preemption = Preemption.NEVER
    preempt_unsaved: PreemptUnsaved = PreemptUnsaved.NEVER
    queue: Queue = Queue.SKIP
    order: Order = Order.WORK
    release: Release = Release.VIRTUAL
    fill: Fill = Fill.FIRST_FIT
    placement: PlacementMethod = PlacementMethod.HEAVY_EDGE
    contention: ContentionView = ContentionView.FORESEE
    reserve: bool = False
    over_run: OverRun = OverRun.DOUBLE
    eta: float = 0.8
    attempt_duration_s_min: float = 0.0
    restarts_free: float = 20.0
    restarted_attempt_s_min: float = 900.0
    tau: float = 1.5
    delay_factor: float = 1.0
    guard_share: float = 0.05
    guard_wait_s: float = 86_400.0
    promise_level: float = 0.9
    promise_weight: float = 0.25
    fair_share: bool = False
    fair_share_half_life_s: float = 7 * 86_400.0
    project_weights: Weights = Weights()


_RANGES: dict[str, tuple[float, float]] = {
    "eta": (0.0, 1.0),
    "attempt_duration_s_min": (0.0, 30 * 86_400.0),
    "restarts_free": (0.0, 1e6),
    "restarted_attempt_s_min": (0.0, 30 * 86_400.0),
    "tau": (1.0, 1e6),
    "delay_factor": (0.0, 1e6),
    "guard_share": (0.0, 1.0),
    "guard_wait_s": (0.0, 365 * 86_400.0),
    "promise_level": (0.5, 0.99),
    "promise_weight": (0.0, 1.0),
    "fair_share_half_life_s": (60.0, 365 * 86_400.0),
}


FAIR_SHARE = frozenset({"fair_share", "fair_share_half_life_s", "project_weights"})
"""Every policy takes these."""

PLACEMENT_OPTIONS = frozenset({"placement", "contention", "tau", "delay_factor"})
GUARD_OPTIONS = frozenset({"guard_share", "guard_wait_s"})
PREEMPTION_OPTIONS = frozenset(
    {"preemption", "preempt_unsaved", "eta", "attempt_duration_s_min", "restarts_free", "restarted_attempt_s_min"}
)

_WEIGHTS = (1e-3, 1e3)


def parse_options(defaults: Options, values: Mapping[str, str], allowed: frozenset[str]) -> Options:
    """``defaults`` with ``values`` in their place. OptionError for an unknown name or a bad value."""
    parsed: dict[str, Any] = {}
    types = {field.name: type(getattr(defaults, field.name)) for field in fields(Options)}
    for name, text in values.items():
        if name not in allowed or name not in types:
            raise OptionError(
                f"unknown option {name!r}; known: {', '.join(sorted(allowed))}{did_you_mean(name, allowed)}"
            )
        parsed[name] = _parse(name, text, types[name])
    options = replace(defaults, **parsed)
    if options.project_weights.of and not options.fair_share:
        raise OptionError("option project_weights: needs fair_share=true")
    if options.fair_share:
        # A job that its project's share lets start must not wait behind the gate of ``asrpt``.
        options = replace(options, release=Release.EARLY)
    if options.queue is Queue.AUTO:
        # Jobs that pass a blocked gang take the GPUs that would become free for it: wide gangs wait, the mean gets worse.
        gated = options.preemption is Preemption.NEVER and options.release is Release.VIRTUAL
        return replace(options, queue=Queue.STRICT if gated else Queue.SKIP)
    return options


def _parse(name: str, text: str, kind: type[Any]) -> Any:
    if issubclass(kind, bool):
        if text.lower() not in ("true", "false"):
            raise OptionError(f"option {name}: {text!r} is neither 'true' nor 'false'")
        return text.lower() == "true"
    if issubclass(kind, Weights):
        return _parse_weights(name, text)
    if issubclass(kind, StrEnum):
        try:
            return kind(text)
        except ValueError:
            raise OptionError(f"option {name}: {text!r} is not one of {', '.join(kind)}") from None
    low, high = _RANGES[name]
    try:
        number = float(text)
    except ValueError:
        raise OptionError(f"option {name}: {text!r} is not a number") from None
    if not low <= number <= high:
        raise OptionError(f"option {name}: {text} is outside {low:,.10g} to {high:,.10g}")
    return number


def _parse_weights(name: str, text: str) -> Weights:
    weights: dict[str, float] = {}
    for part in text.split("+"):
        project, separator, number = part.strip().rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not separator or not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
            low, high = _WEIGHTS
            raise OptionError(f"option {name}: {part!r} is not PROJECT:WEIGHT with a weight of {low:g} to {high:g}")
        weights[project] = weight
    return Weights(weights)


def named_values(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping. Raises OptionError."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError(f"{text!r} is not NAME=VALUE")
        if name in values:
            raise OptionError(f"{name} is given twice")
        values[name] = value
    return values
