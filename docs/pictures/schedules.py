"""The three jobs on eight GPUs: after their virtual completions, and with one preemption."""

from collections.abc import Sequence

from docs.pictures.example import CLUSTER, MINUTE_S, RESTART_S, block, flag, simulated, virtual_schedule, virtual_work
from policies.options import Options
from service.reports.svg import GREY, LEFT, RIGHT, WIDTH, Axis, Drawing, Scale, rectangle, standalone, text
from service.sim.results import JobOutcome

_GPU = 15.0
_MINUTES = 46.0
_TALL = _GPU * CLUSTER.gpus


def virtual_completion() -> str:
    """Under `preemption=never` a job competes for GPUs from its virtual completion on."""
    outcomes = simulated("asrpt", preemption="never")
    drawing = Drawing("Without preemption a job may start at its virtual completion: C at 7, B at 9, A at 25")
    xs = _frame(drawing, 66.0, f"preemption=never: {_flow(outcomes)}")
    _blocks(drawing, xs, 66.0, outcomes)
    for name, minute in virtual_schedule()[1].items():
        flag(drawing, xs, minute, 56.0, 66.0 + _TALL, name)
    drawing.add(text(12.0, 38.0, "Dashed: virtual completions. No job may start before its own.", colour=GREY))
    return standalone(drawing.svg(66.0 + _TALL + 44.0, "minutes", (LEFT + WIDTH - RIGHT) / 2.0))


def one_preemption() -> str:
    """First come, first served, and the same jobs with one preemption."""
    fifo, guided = simulated("fifo"), simulated("asrpt", preemption="guided")
    drawing = Drawing(
        "One preemption: A is stopped for B, and pays a restart; B and C end far earlier than in order of arrival"
    )
    above, below = 30.0, 30.0 + _TALL + 94.0
    xs = _frame(drawing, above, f"first in, first out: {_flow(fifo)}")
    _blocks(drawing, xs, above, fifo)
    xs = _frame(drawing, below, f"preemption=guided: {_flow(guided)}", title_at=below - 32.0)
    _blocks(drawing, xs, below, guided)
    stopped_for = _price(guided)
    drawing.add(text(12.0, below - 14.0, stopped_for, colour=GREY))
    first = next(outcome for outcome in guided if outcome.preemptions)
    stopped, resumed = (xs.at(minute / MINUTE_S) for minute in (first.spans[0].end_s, first.spans[1].start_s))
    drawing.add(f'<path d="M{stopped:.1f} {below - 4.0:.1f}v{_TALL + 8.0:.1f}" stroke="#000" stroke-width="3"/>\n')
    wide = xs.at(RESTART_S / MINUTE_S) - xs.at(0.0)
    drawing.add(rectangle(resumed, below, wide, _TALL, 'fill="#000"', "restart"))
    return standalone(drawing.svg(below + _TALL + 44.0, "minutes", (LEFT + WIDTH - RIGHT) / 2.0))


def _price(outcomes: Sequence[JobOutcome]) -> str:
    """The rule at the moment of the preemption, with its numbers."""
    victim = next(outcome for outcome in outcomes if outcome.preemptions)
    stopped = victim.spans[0].end_s / MINUTE_S
    left = virtual_work(victim.job_id) - stopped
    short = virtual_work("B")
    gain = f"{short:g} < {Options().eta:g} × {left:g} − {RESTART_S / MINUTE_S:g}"
    return (
        f"At minute {stopped:g}: B has {short:g} minutes of work, A {left:g}. {gain}. Black: the stop and the restart."
    )


def _flow(outcomes: Sequence[JobOutcome]) -> str:
    """The times from arrival to end, and their sum."""
    flow = {outcome.job_id: outcome.jct_s / MINUTE_S for outcome in outcomes}
    parts = " + ".join(f"{name} {minutes:g}" for name, minutes in flow.items())
    return f"{parts} = {sum(flow.values()):g} minutes from arrival to end"


def _frame(drawing: Drawing, top: float, title: str, title_at: float = 20.0) -> Scale:
    xs = Scale(Axis("", least=0.0, most=_MINUTES), [], LEFT, WIDTH - RIGHT)
    drawing.add(text(12.0, title_at, title, more=' font-weight="bold"'))
    drawing.columns(xs, top, top + _TALL)
    for index, server in enumerate(CLUSTER.servers):
        down = top + _GPU * server.gpus * index
        drawing.add(f'<path d="M{LEFT:.1f} {down:.1f}H{WIDTH - RIGHT:.1f}" stroke="#999999"/>\n')
        drawing.add(text(LEFT - 8.0, down + _GPU * server.gpus / 2.0 + 4.0, server.name, anchor="end"))
    return xs


def _blocks(drawing: Drawing, xs: Scale, top: float, outcomes: Sequence[JobOutcome]) -> None:
    """Each attempt on the GPUs that it holds, as one block where these are adjacent."""
    for outcome in outcomes:
        for span in outcome.spans:
            rows = sorted(
                4 * share.server + gpu
                for share, gpus in zip(span.placement.shares, span.gpu_ids, strict=True)
                for gpu in gpus
            )
            down, tall = top + _GPU * rows[0], _GPU * len(rows)
            block(drawing, xs, span.start_s / MINUTE_S, span.end_s / MINUTE_S, down, tall, outcome.job_id)
