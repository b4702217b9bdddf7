"""Slowdowns by span of jobs without a stage graph, learnt from measured seconds per iteration.

The construction is ours, after Dally's measured network sensitivity (docs/explanation/locality.md). A slowdown has two steps:
from one server to one rack, and from one rack to several. A step is a logarithm. The runs of one program on one number of
GPUs of one type are a cell; where a cell was measured at two spans, the medians give the step between them. A step that was
not measured, or seldom, is drawn towards that of the program's other cells, then of the model, the user's programs, gangs of
about this size, all programs, and last the prior.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median
from typing import Any, Final, NamedTuple

from policies.model.estimate import EndedJob, Prediction, Reported
from policies.model.ids import JobId
from policies.model.job import JobSpec
from policies.model.placement import Slowdown, Span, SpanSeconds

_Key = tuple[Any, ...]
"""The kind of a group or cell, and its name."""


class Steps(NamedTuple):
    """A pair of numbers: one for the step from a server to a rack, one for that from a rack to the cluster."""

    rack: float
    cluster: float


PRIOR: Final = Steps(0.35, 0.10)
"""Logarithms before any measurement. Their sum is the mean over 6 models on 4 T4 GPUs, on several servers against one, in the
profiles that petuum/adaptdl publishes (``python -m benchmarks.locality --profiles FILE`` computes it). The division is our
assumption, because the source has one network tier."""

CHANGE_LOG_MIN: Final = 0.05
"""A running job's slowdown is revised if a factor changes by more than this logarithm."""
RUNS_KEPT: Final = 20
CELLS_MAX: Final = 100_000
"""Cells kept; the one that was measured longest ago is dropped first."""
_LOG_MAX: Final = math.log(10.0)
"""A larger step is no effect of the network."""
_WEIGHTS: Final = {"all": 4.0, "gpus": 4.0, "user": 4.0, "model": 2.0, "program": 0.5, "cell": 0.2}
"""What the next wider group weighs against the measured cells of a group, in cells; in a cell, in comparisons. Programs differ
far more from each other than runs of one program do."""

_ROUNDING: Final = 1e-9

_STEPS: Final = {
    (Span.SERVER, Span.RACK): Steps(1.0, 0.0),
    (Span.SERVER, Span.CLUSTER): Steps(1.0, 1.0),
    (Span.RACK, Span.CLUSTER): Steps(0.0, 1.0),
}
"""The steps between two spans."""


@dataclass(slots=True)
class _Group:
    """Sums over measured cells: of weights, and of weighted logarithms, by step. ``cells`` counts them."""

    cells: int = 0
    weight: list[float] = field(default_factory=lambda: [0.0, 0.0])
    total: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, seen: "_Seen", sign: float) -> None:
        for step in (0, 1):
            # A cell counts at most once, however often it was measured.
            weight = sign * min(1.0, seen.weight[step])
            self.weight[step] += weight
            self.total[step] += weight * seen.log[step]

    def towards(self, wider: Steps, pull: float) -> Steps:
        """The mean, drawn towards that of the wider group."""
        means = (total / weight if weight > 0.0 else 0.0 for total, weight in zip(self.total, self.weight, strict=True))
        return _towards(Steps(*self.weight), Steps(*means), wider, pull)


class _Seen(NamedTuple):
    """What a cell shows: how much each step was compared, and its logarithm."""

    weight: Steps
    log: Steps


_NOTHING: Final = _Seen(Steps(0.0, 0.0), Steps(0.0, 0.0))


@dataclass(slots=True)
class _Cell:
    """Runs of one program on equal GPUs: logarithms of their seconds by span, and differences within single runs."""

    keys: tuple[_Key, ...]
    runs: dict[Span, deque[float]] = field(default_factory=dict)
    pairs: dict[tuple[Span, Span], deque[float]] = field(default_factory=dict)
    seen: _Seen = _NOTHING

    def observe(self, seconds: SpanSeconds, before: SpanSeconds | None) -> None:
        """``before``: what was observed of the same run already."""
        found = {span: math.log(each) for span in Span if (each := seconds.at(span)) is not None and _usable(each)}
        fresh = {span for span in found if before is None or before.at(span) is None}
        for span in fresh:
            self.runs.setdefault(span, deque(maxlen=RUNS_KEPT)).append(found[span])
        for pair in combinations(found, 2):
            if not fresh.isdisjoint(pair):
                self.pairs.setdefault(pair, deque(maxlen=RUNS_KEPT)).append(found[pair[1]] - found[pair[0]])

    def compare(self, wider: Steps) -> _Seen:
        """The steps that the measurements show. One over both is divided as in the wider group."""
        weight, total = [0.0, 0.0], [0.0, 0.0]
        for pair, log, count in self._differences():
            crossed = _STEPS[pair]
            # A step that makes a placement faster has no part: it would make the other as large as one likes.
            slower = [max(0.0, step) for step in wider]
            whole = sum(share * step for share, step in zip(crossed, slower, strict=True))
            for step in (0, 1):
                if crossed[step]:
                    part = slower[step] / whole if whole > 0.0 else 1.0 / sum(crossed)
                    # A difference over two steps says less of each.
                    weight[step] += count / sum(crossed)
                    total[step] += count / sum(crossed) * log * part
        logs = (t / w if w else 0.0 for t, w in zip(total, weight, strict=True))
        return _Seen(Steps(*weight), Steps(*logs))

    def _differences(self) -> Iterator[tuple[tuple[Span, Span], float, float]]:
        """Logarithms between two spans, and how many comparisons each rests on: within runs where there are any."""
        for pair in _STEPS:
            first, second = self.runs.get(pair[0]), self.runs.get(pair[1])
            if not first or not second:
                continue
            if within := self.pairs.get(pair):
                log, count = median(within), float(len(within))
            else:
                log, count = median(second) - median(first), len(first) * len(second) / (len(first) + len(second))
            if abs(log) <= _LOG_MAX:
                yield pair, log, count


class SlowdownLearner:
    """Learns from running and ended jobs; each costs O(levels). Equal jobs in equal order give equal answers."""

    def __init__(self) -> None:
        self._cells: OrderedDict[_Key, _Cell] = OrderedDict()
        self._groups: dict[_Key, _Group] = {}
        self._newest: dict[_Key, _Cell] = {}
        """Of each program and number of GPUs the cell that was measured last, for jobs that name no GPU type."""
        self._running: OrderedDict[JobId, SpanSeconds] = OrderedDict()
        """What is learnt already of jobs that have not ended."""

    def observe(self, label: EndedJob) -> None:
        """Learn from an ended gang without a stage graph that was measured; others change nothing."""
        before = self._running.pop(label.job, None)
        if label.seconds_by_span is not None and label.spec.gpus > 1 and label.spec.stage_graph is None:
            self._learn(label.spec, label.seconds_by_span, before)

    def revise(self, reported: Reported, answer: Prediction | None) -> Prediction | None:
        """Learn the speeds of a running job. Returns ``answer``, with the job's slowdown if that has changed.

        ``answer`` is the revision for other reasons; None: there is none.
        """
        seconds, spec = reported.seconds_by_span, reported.request.spec
        if seconds is None or spec.gpus == 1 or spec.stage_graph is not None:
            return answer
        job = reported.request.job
        self._learn(spec, seconds, self._running.get(job))
        self._running[job] = seconds
        if len(self._running) > CELLS_MAX:
            self._running.popitem(last=False)
        slowdown, before = self.slowdown(spec), reported.estimate
        if before is not None and before.slowdown is not None and _alike(slowdown, before.slowdown):
            return answer
        revised = before if answer is None else answer.estimate
        if revised is None:
            return None
        return replace(answer or Prediction(revised), estimate=replace(revised, slowdown=slowdown))

    def _learn(self, spec: JobSpec, seconds: SpanSeconds, before: SpanSeconds | None) -> None:
        """Enter the speeds of a run, of which ``before`` is entered already."""
        if before is not None and before.gpu_type != seconds.gpu_type:
            before = None
        *keys, name = _keys(spec, seconds.gpu_type)
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = _Cell(tuple(keys))
            for key in cell.keys:
                self._groups.setdefault(key, _Group()).cells += 1
        self._cells.move_to_end(name)
        self._newest[name[:3]] = cell
        cell.observe(seconds, before)
        self._enter(cell, cell.compare(self._expected(cell.keys)))
        if len(self._cells) > CELLS_MAX:
            self._drop(*self._cells.popitem(last=False))

    def _drop(self, name: _Key, cell: _Cell) -> None:
        """Forget a cell, and the groups that had no other one."""
        self._enter(cell, _NOTHING)
        for key in cell.keys:
            self._groups[key].cells -= 1
            if not self._groups[key].cells:
                del self._groups[key]
        if self._newest.get(name[:3]) is cell:
            del self._newest[name[:3]]

    def slowdown(self, spec: JobSpec) -> Slowdown:
        """What is expected of a job, also of one of an unknown program."""
        *keys, name = _keys(spec, spec.gpu_type or "")
        steps = self._expected(keys)
        cell = self._cells.get(name) if spec.gpu_type else self._newest.get(name[:3])
        if cell is not None:
            steps = _towards(*cell.seen, steps, _WEIGHTS["cell"])
        rack = max(0.0, steps.rack)
        program = self._groups.get(keys[-1])
        measured = program is not None and max(program.weight) > _ROUNDING
        return Slowdown(math.exp(rack), math.exp(rack + max(0.0, steps.cluster)), measured)

    def _expected(self, keys: Sequence[_Key]) -> Steps:
        """The steps of the narrowest group, each drawn towards the next wider one."""
        steps = PRIOR
        for key in keys:
            if (group := self._groups.get(key)) is not None:
                steps = group.towards(steps, _WEIGHTS[key[0]])
        return steps

    def _enter(self, cell: _Cell, seen: _Seen) -> None:
        """Replace what the cell shows in all its groups."""
        for key in cell.keys:
            group = self._groups[key]
            group.add(cell.seen, -1.0)
            group.add(seen, 1.0)
        cell.seen = seen


def _towards(weight: Steps, log: Steps, wider: Steps, pull: float) -> Steps:
    """The means of both steps, drawn towards those of the wider group."""
    rack, cluster = (
        (max(0.0, w) * mean + pull * parent) / (max(0.0, w) + pull)
        for w, mean, parent in zip(weight, log, wider, strict=True)
    )
    return Steps(rack, cluster)


def _keys(spec: JobSpec, gpu_type: str) -> Iterator[_Key]:
    """The groups of a job, the widest first, and its cell."""
    yield ("all",)
    # Sizes from one power of two to the next.
    yield "gpus", spec.gpus.bit_length()
    yield "user", spec.user
    if spec.model:
        yield "model", spec.model
    yield "program", spec.recurrence
    yield "cell", spec.recurrence, spec.gpus, gpu_type


def _alike(one: Slowdown, other: Slowdown) -> bool:
    ratios = one.rack / other.rack, one.cluster / other.cluster
    return one.measured == other.measured and all(abs(math.log(ratio)) <= CHANGE_LOG_MIN for ratio in ratios)


def _usable(seconds: float) -> bool:
    return 0.0 < seconds < math.inf
