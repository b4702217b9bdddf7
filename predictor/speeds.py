"""What the model of an iteration's time leaves out, learnt from measured seconds per iteration.

Of each job with a stage graph the measured seconds are divided by alpha(x), those of its model. The logarithm is a sum of a part
of the job, a part of the GPU type and a part of the span. The part of a job is that of all programs, drawn towards what its
user's, its model's and its own program's runs show, as far as there are any. The parts of a type and of a span come from
programs that ran on several, so that a wrong ``gpu_speed`` is corrected for all programs. Where a program, or its model, was
measured on a type at a span, that counts most. Nothing measured: no correction. Medians throughout, and a program counts once in
a wider group, so that one outlier and one large array have no weight of their own. Over several users it is the median of each
user's median, and at most a factor of 10, because programs report their own speeds: one user's reports, however many and however
wrong, do not decide the correction of others.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from statistics import median
from typing import Final, NamedTuple, TypeVar

from policies.model.estimate import EndedJob
from policies.model.job import JobSpec
from policies.model.placement import Slowdown, Span, TypeFactor

RUNS_KEPT: Final = 20
"""Newest runs of a program, programs of a user, and users of a wider group, that count."""
PROGRAMS_SHARED: Final = 5
"""Newest programs of each user that count in a group of several users."""
GROUPS_MAX: Final = 100_000
"""Groups kept; the one that was measured longest ago is dropped first."""
_WEIGHTS: Final = {"all": 3.0, "user": 3.0, "model": 1.0, "program": 0.5}
"""How many measurements the next wider group weighs."""
_SHARED: Final = ("all", "model")
"""The groups of several users."""
_EFFECT_WEIGHT: Final = 1.0
"""How many programs it takes to believe half of what they show of a type or a span."""
_LOG_MAX: Final = math.log(1e4)
"""Beyond it a measurement or a model is broken."""
_SHARED_LOG_MAX: Final = math.log(10.0)
"""The most that programs of other users change a correction by: in all, as runs of its model, by its type, by its span."""


K = TypeVar("K")
V = TypeVar("V")


class _Run(NamedTuple):
    gpu_type: str
    span: Span
    log: float


class _Group:
    """The newest runs of a program, or the newest run of each of a wider group's programs, by user."""

    def __init__(self) -> None:
        self._by_user: OrderedDict[str, OrderedDict[Hashable, deque[_Run]]] = OrderedDict()

    def observe(self, spec: JobSpec, run: _Run, level: str) -> None:
        kept = RUNS_KEPT if level == "program" else 1
        programs = _newest(self._by_user, spec.user, OrderedDict[Hashable, deque[_Run]])
        limit = PROGRAMS_SHARED if level in _SHARED else RUNS_KEPT
        _newest(programs, spec.recurrence, lambda: deque[_Run](maxlen=kept), limit).append(run)

    def __iter__(self) -> Iterator[_Run]:
        return (run for runs in self.by_user() for run in runs)

    def by_user(self) -> Iterator[list[_Run]]:
        """The runs of each user, the newest last."""
        return ([run for runs in programs.values() for run in runs] for programs in self._by_user.values())


class SpeedLearner:
    """Learns from ended jobs, and corrects the model of others. Each costs O(levels). Equal labels in equal order give equal
    answers.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()
        self._effects: dict[Hashable, OrderedDict[str, OrderedDict[Hashable, float]]] = {}
        """By type and by span: of the newest programs of each user, by how much their runs there differ from their part."""
        self._types: dict[str, None] = {}

    def observe(self, label: EndedJob) -> None:
        """Learn from a job with a stage graph that was measured; others change nothing."""
        seconds, spec = label.seconds_by_span, label.spec
        if seconds is None or spec.stage_graph is None:
            return
        for span in Span:
            ratio = seconds.at(span)
            if ratio is None or not ratio > 0.0 or not abs(math.log(ratio)) <= _LOG_MAX:
                continue
            run = _Run(seconds.gpu_type, span, math.log(ratio))
            self._types[run.gpu_type] = None
            own = list(self._groups.get(("program", spec.recurrence), ()))
            self._compare(
                spec, run.gpu_type, run.log, [each for each in own if each.span is span], lambda each: each.gpu_type
            )
            self._compare(
                spec, span, run.log, [each for each in own if each.gpu_type == run.gpu_type], lambda each: each.span
            )
            for level, key in _levels(spec):
                self._group(key).observe(spec, run, level)

    def slowdown(self, spec: JobSpec) -> Slowdown | None:
        """The correction of a job's model; None where nothing was measured, and for a job without a stage graph."""
        if spec.stage_graph is None or not self._types:
            return None
        part = self._part(spec)
        newest = next((run for key in self._keys(spec) for run in reversed(list(self._groups[key]))), None)
        assert newest is not None, "the group of all programs has a run"
        at = {span: self._log(spec, part, newest.gpu_type, span) for span in Span}
        factors = {
            name: math.exp(self._log(spec, part, name, newest.span) - at[newest.span]) for name in sorted(self._types)
        }
        return Slowdown(
            server=math.exp(at[Span.SERVER]),
            rack=math.exp(at[Span.RACK]),
            cluster=math.exp(at[Span.CLUSTER]),
            gpu_types=tuple(TypeFactor(name, factor) for name, factor in factors.items()),
        )

    def _log(self, spec: JobSpec, part: float, gpu_type: str, span: Span) -> float:
        """What is expected on a type at a span: the sum of the parts, drawn towards what was measured just there."""
        expected = part + self._drawn(gpu_type) + self._drawn(span)
        for level, key in _levels(spec):
            if level in ("model", "program") and key in self._groups:
                expected = _towards(
                    (
                        [run.log for run in runs if (run.gpu_type, run.span) == (gpu_type, span)]
                        for runs in self._groups[key].by_user()
                    ),
                    expected,
                    _WEIGHTS[level],
                    _log_max(level),
                )
        return expected

    def _part(self, spec: JobSpec) -> float:
        """The job's own part: that of all programs, drawn towards the narrower groups."""
        part = 0.0
        drawn: dict[Hashable, float] = {of: self._drawn(of) for of in (*self._types, *Span)}
        for level, key in _levels(spec):
            if key in self._groups:
                alike = [
                    [run.log - drawn[run.gpu_type] - drawn[run.span] for run in runs]
                    for runs in self._groups[key].by_user()
                ]
                part = _towards(alike, part, _WEIGHTS[level], _log_max(level))
        return part

    def _drawn(self, of: Hashable) -> float:
        """The part of a type or a span, drawn towards none."""
        by_user = (programs.values() for programs in self._effects.get(of, {}).values())
        return _towards(by_user, 0.0, _EFFECT_WEIGHT, _SHARED_LOG_MAX)

    def _compare(
        self, spec: JobSpec, of: Hashable, log: float, own: Iterable[_Run], kind: Callable[[_Run], Hashable]
    ) -> None:
        """Note the part of a type, or of a span, as a program shows it whose own runs were on others of the ``kind``."""
        others = [each.log - self._drawn(kind(each)) for each in own if kind(each) != of]
        if not others:
            return
        by_user = self._effects.setdefault(of, OrderedDict())
        programs = _newest(by_user, spec.user, OrderedDict[Hashable, float])
        programs.pop(spec.recurrence, None)
        _newest(programs, spec.recurrence, lambda: log - median(others), PROGRAMS_SHARED)

    def _keys(self, spec: JobSpec) -> Iterable[Hashable]:
        """Keys of the job's groups that were measured, the narrowest first."""
        return (key for _, key in reversed(list(_levels(spec))) if key in self._groups)

    def _group(self, key: Hashable) -> _Group:
        group = self._groups.setdefault(key, _Group())
        self._groups.move_to_end(key)
        if len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        return group


def _levels(spec: JobSpec) -> Iterator[tuple[str, Hashable]]:
    """The groups of a job, the widest first: their kind and their key."""
    yield "all", ("all",)
    yield "user", ("user", spec.user)
    model = spec.model or (spec.shape.name if spec.shape is not None else None)
    if model is not None:
        yield "model", ("model", model)
    yield "program", ("program", spec.recurrence)


def _log_max(level: str) -> float:
    """The bound of what runs of a group show: that of several users is less."""
    return _SHARED_LOG_MAX if level in _SHARED else _LOG_MAX


def _newest(entries: "OrderedDict[K, V]", key: K, new: Callable[[], V], limit: int = RUNS_KEPT) -> V:
    """The entry of this key, which is the newest now; the oldest above the limit is dropped."""
    found = entries[key] = entries.pop(key) if key in entries else new()
    if len(entries) > limit:
        entries.popitem(last=False)
    return found


def _towards(by_user: Iterable[Collection[float]], wider: float, weight: float, log_max: float) -> float:
    """The median of the users' medians, at most ``log_max``, drawn towards the value of the wider group."""
    found = [logs for logs in by_user if logs]
    if not found:
        return wider
    count, middle = sum(map(len, found)), median(map(median, found))
    return (count * min(max(middle, -log_max), log_max) + weight * wider) / (count + weight)
