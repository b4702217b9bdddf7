"""What to do about a profile: rules on its numbers, each a code for programs and a sentence with the numbers."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from service.profile.stalls import Place, Run, cost

RATIO_MIN: Final = 1.05
"""A smaller difference of two times is taken as none."""
INPUT_SHARE_MIN: Final = 0.1
"""Waiting for input that is a smaller share of an iteration is not worth a change."""
SPREAD_MAX: Final = 0.25
"""Quartiles further apart than this, relative to the median, make a comparison uncertain."""


class Advice(NamedTuple):
    """A stable code and a sentence."""

    code: str
    text: str


def advise(runs: Mapping[Place, Run], *, split_batch: bool) -> list[Advice]:
    """Advice in the order of importance: placement, size, input, and doubts about the measurement."""
    return [
        *_span(runs),
        *_size(runs, split_batch),
        *_input(runs),
        *_doubts(runs, split_batch),
    ]


def _span(runs: Mapping[Place, Run]) -> Iterator[Advice]:
    if Place.SERVER not in runs or Place.SERVERS not in runs:
        return
    one, two = runs[Place.SERVER].measured.seconds, runs[Place.SERVERS].measured.seconds
    gpus = runs[Place.SERVER].gpus
    if two >= RATIO_MIN * one:
        text = (
            f"On 2 servers an iteration takes {two / one:.2f} times as long as on one ({_both(one, two)}): "
            "ask for one server with --topology server."
        )
        yield Advice("one_server", text)
    else:
        text = f"2 servers are about as fast as one ({_both(two, one)}): ask for no topology, then {gpus} GPUs are free sooner."
        yield Advice("any_placement", text)


def _size(runs: Mapping[Place, Run], split_batch: bool) -> Iterator[Advice]:
    if Place.GPU not in runs or len(runs) == 1:
        return
    costs = {place: cost(runs, place, split_batch=split_batch) for place in runs}
    cheapest = min(costs, key=lambda place: (round(costs[place].gpu_hours, 9), -runs[place].gpus))
    fastest = max(costs, key=lambda place: costs[place].speed or 0.0)
    speed = costs[fastest].speed or 0.0
    best, gpus = costs[fastest].gpu_hours, runs[fastest].gpus
    if fastest is Place.GPU or speed < RATIO_MIN:
        yield Advice("one_gpu", "More GPUs are not faster than one GPU: ask for 1 GPU.")
    elif best < RATIO_MIN * costs[cheapest].gpu_hours:
        text = f"{_words(runs[fastest])} do {speed:.1f} times the work of 1 GPU for the same GPU-hours: more GPUs cost nothing."
        yield Advice("scales", text)
    else:
        text = (
            f"{_words(runs[fastest])} do {speed:.1f} times the work of 1 GPU, {speed / gpus:.0%} of what {gpus} GPUs could. "
            f"Cheapest per iteration is {_words(runs[cheapest])}: {costs[cheapest].gpu_hours:.3g} GPU-hours for the work that "
            f"costs {best:.3g} there."
        )
        yield Advice("cheapest", text)


def _input(runs: Mapping[Place, Run]) -> Iterator[Advice]:
    waits = {
        place: run.measured.input_s / run.measured.seconds
        for place, run in runs.items()
        if run.measured.input_s is not None
    }
    if not waits:
        yield Advice(
            "input_unknown",
            "Waiting for input is not separable from computing: let the program report input_s, the seconds that it has "
            "waited so far.",
        )
        return
    worst = max(waits, key=lambda place: waits[place])
    if waits[worst] >= INPUT_SHARE_MIN:
        run = runs[worst]
        least = run.measured.seconds - (run.measured.input_s or 0.0)
        text = (
            f"{_words(run)}: {waits[worst]:.0%} of an iteration waits for input. More loader workers, a cache or faster storage "
            f"can shorten it from {seconds(run.measured.seconds)} to {seconds(least)}."
        )
        yield Advice("input", text)


def _doubts(runs: Mapping[Place, Run], split_batch: bool) -> Iterator[Advice]:
    if not split_batch and Place.GPU in runs and Place.SERVER in runs:
        alone, run = runs[Place.GPU].measured.seconds, runs[Place.SERVER]
        if RATIO_MIN * run.measured.seconds < alone:
            text = (
                f"An iteration is shorter on {run.gpus} GPUs than on 1 GPU ({_both(run.measured.seconds, alone)}): if they "
                "divide a batch of fixed size, repeat the profile with --split-batch."
            )
            yield Advice("split_batch", text)
    for place in runs:
        run = runs[place]
        spread = (run.measured.high_s - run.measured.low_s) / run.measured.seconds
        if spread > SPREAD_MAX:
            text = f"{_words(run)}: iterations are uneven, their quartiles are {spread:.0%} apart. Measure more --iterations."
            yield Advice("uneven", text)


def _words(run: Run) -> str:
    """``4 GPUs on one server``."""
    if run.place is Place.GPU:
        return "1 GPU"
    return f"{run.gpus} GPUs on {'one server' if run.servers == 1 else f'{run.servers} servers'}"


def seconds(value_s: float) -> str:
    """Three digits in a fitting unit."""
    return f"{value_s:.3g} s" if value_s >= 1 else f"{value_s * 1000:.3g} ms"


def _both(first_s: float, second_s: float) -> str:
    """``90 ms and 120 ms``."""
    return f"{seconds(first_s)} and {seconds(second_s)}"
