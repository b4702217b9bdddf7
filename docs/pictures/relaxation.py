"""The relaxation: one virtual machine runs the job with the least work left."""

from itertools import groupby

from docs.pictures.example import COLOURS, JOBS, MINUTE_S, block, flag, virtual_schedule, virtual_work
from service.reports.svg import GREY, LEFT, RIGHT, WIDTH, Axis, Drawing, Scale, standalone, text

_ROW_TOP, _ROW = 46.0, 40.0
_TOP, _BOTTOM = 112.0, 290.0
_BESIDE_MOST = 17.0
"""The words on A stand above its line."""


def picture() -> str:
    """Above, which job runs when; below, the work that each job has left."""
    history, completions = virtual_schedule()
    drawing = Drawing("SRPT on the virtual machine: C and B interrupt A and complete first")
    xs = Scale(Axis("", least=0.0, most=float(len(history) + 1)), [], LEFT, WIDTH - RIGHT)
    ys = Scale(Axis("", least=0.0, most=20.0), [], _BOTTOM, _TOP)
    drawing.add(
        text(12.0, 20.0, "The virtual machine runs the job with the least work left. Dashed: virtual completions.")
    )
    drawing.columns(xs, _TOP, _BOTTOM)
    drawing.rows(ys, "work left (minutes)", LEFT, WIDTH - RIGHT, (_TOP + _BOTTOM) / 2.0, 24.0)
    drawing.add(text(LEFT - 8.0, _ROW_TOP + _ROW / 2.0 + 4.0, "machine", anchor="end"))
    for name, minutes in groupby(history, key=lambda work: work.running):
        run = [work.minute for work in minutes]
        block(drawing, xs, run[0], run[-1] + 1.0, _ROW_TOP, _ROW, name)
    for name, minute in completions.items():
        flag(drawing, xs, minute, _ROW_TOP - 2.0, _BOTTOM, name)
    for job in JOBS:
        arrives = job.submit_time_s / MINUTE_S
        work = virtual_work(job.job_id)
        points = [(arrives, work)]
        points += [(each.minute + 1.0, each.left[job.job_id]) for each in history if job.job_id in each.left]
        path = "L".join(f"{xs.at(minute):.1f} {ys.at(left):.1f}" for minute, left in points)
        drawing.add(f'<path d="M{path}" fill="none" stroke="{COLOURS[job.job_id]}" stroke-width="2.5"/>\n')
        drawing.add(f'<circle cx="{xs.at(arrives):.1f}" cy="{ys.at(work):.1f}" r="4" fill="{COLOURS[job.job_id]}"/>\n')
        beside = min(work, _BESIDE_MOST)
        words = f"{job.job_id} at {arrives:g}: {job.gpus} GPUs × {job.duration_s / MINUTE_S:g} min / 8 = {work:g} min"
        drawing.add(text(xs.at(max(completions["B"], arrives) + 0.5), ys.at(beside) - 4.0, words, colour=GREY))
    return standalone(drawing.svg(_BOTTOM + 44.0, "minutes", (LEFT + WIDTH - RIGHT) / 2.0))
