"""The three jobs of the page on A-SRPT: on the virtual machine, and in simulations of two servers."""

from collections.abc import Sequence
from typing import NamedTuple

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId
from policies.registry import make_policy
from policies.relaxation import Completion, VirtualMachine
from service.reports.svg import PALETTE, Drawing, Scale, rectangle, text
from service.sim.experiment import SimulationOptions, run
from service.sim.results import JobOutcome
from service.sim.workloads.model import Workload, WorkloadJob

MINUTE_S = 60.0
CLUSTER = Cluster("two servers", (Server("server 1", 4), Server("server 2", 4)))
RESTART_S = 60.0
COLOURS = {"A": PALETTE[0], "B": PALETTE[1], "C": PALETTE[2]}


def _job(name: str, arrives_min: float, gpus: int, runs_min: float) -> WorkloadJob:
    seconds = runs_min * MINUTE_S
    return WorkloadJob(name, arrives_min * MINUTE_S, gpus, seconds, user=name, iterations=round(seconds))


JOBS = (_job("A", 0, 8, 20), _job("B", 4, 2, 16), _job("C", 6, 4, 2))


class Work(NamedTuple):
    """What the virtual machine does within a minute: the job that it runs, and the work left of each at its end, in minutes."""

    minute: int
    running: str
    left: dict[str, float]


def virtual_schedule() -> tuple[list[Work], dict[str, float]]:
    """Minute by minute until all is done, and the completion of each job in minutes."""
    machine = VirtualMachine()
    names = {JobId(number): job for number, job in enumerate(JOBS, start=1)}
    history: list[Work] = []
    done: list[Completion] = []
    while len(done) < len(JOBS):
        minute = len(history)
        for number, job in names.items():
            if job.submit_time_s == minute * MINUTE_S:
                machine.add(number, virtual_work(job.job_id) * MINUTE_S, job.submit_time_s)
        before = _left(machine, names)
        done += machine.advance((minute + 1) * MINUTE_S)
        after = _left(machine, names)
        running = next(name for name, left in before.items() if after.get(name, 0.0) < left)
        history.append(Work(minute, running, {name: after.get(name, 0.0) for name in before}))
    return history, {names[each.job].job_id: each.at_s / MINUTE_S for each in done}


def virtual_work(name: str) -> float:
    """Minutes that a job takes on the virtual machine."""
    job = next(job for job in JOBS if job.job_id == name)
    return job.gpus * job.duration_s / CLUSTER.gpus / MINUTE_S


def _left(machine: VirtualMachine, names: dict[JobId, WorkloadJob]) -> dict[str, float]:
    return {job.job_id: machine.remaining_s(number) / MINUTE_S for number, job in names.items() if number in machine}


def simulated(policy: str, **options: str) -> Sequence[JobOutcome]:
    """The jobs with their attempts under a policy, with exact predictions."""
    costs = SimulationOptions(restart_s=RESTART_S, checkpoint_period_s=MINUTE_S, keep_spans=True)
    return run(Workload("example", JOBS), CLUSTER, make_policy(policy, options), "oracle", costs).outcomes


def block(drawing: Drawing, xs: Scale, start_min: float, end_min: float, top: float, tall: float, name: str) -> None:
    """A rectangle in the job's colour with the job's name."""
    left, right = xs.at(start_min), xs.at(end_min)
    look = f'fill="{COLOURS[name]}" stroke="#fff" stroke-width="1"'
    title = f"job {name}: minute {start_min:g} to {end_min:g}"
    middle = top + tall / 2.0 + 5.0
    bold = ' font-weight="bold" font-size="14"'
    drawing.add(rectangle(left, top, right - left, tall, look, title))
    drawing.add(text((left + right) / 2.0, middle, name, colour="#fff", anchor="middle", more=bold))


def flag(drawing: Drawing, xs: Scale, minute: float, top: float, bottom: float, name: str) -> None:
    """A dashed line at a virtual completion with the job's name and the minute above it."""
    across = xs.at(minute)
    drawing.add(
        f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{COLOURS[name]}" stroke-width="2" stroke-dasharray="4 3"/>\n'
    )
    bold = ' font-weight="bold"'
    drawing.add(text(across, top - 4.0, f"{name} {minute:g}", colour=COLOURS[name], anchor="middle", more=bold))
