"""The options that the commands of ``sooner sim`` share, and what is read from them before anything runs."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from policies.model.cluster import Cluster
from policies.options import OptionError, named_values
from policies.registry import make_policy
from service.cli import completion
from service.cli.fail import fail
from service.cli.options import (
    FirstOption,
    NetworkOption,
    SeedOption,
    SkipInvalidFlag,
    WorkloadOption,
    given,
    report_skipped,
    report_unfit,
    seconds_option,
)
from service.config.cluster_file import ClusterFileError, load_cluster
from service.runtime.garbage import uncollected
from service.sim.experiment import SimulationOptions
from service.sim.faults import NO_FAULTS, FaultPlan
from service.sim.faults_file import MTBF_S_MIN, SHAPE_MAX, SHAPE_MIN, FaultsError, load_faults, parse_drain
from service.sim.jobs import unfit
from service.sim.sensitivity import Sensitivity
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload
from service.simulations.runs import Plan

_DEFAULTS = SimulationOptions()


def _finite(value: float | None) -> float | None:
    """Option callback: infinity and NaN pass a range check of the parser."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


PolicyOption = Annotated[str, typer.Option("--policy", help="Scheduling policy.", autocompletion=completion.policies)]
PoliciesOption = Annotated[
    str, typer.Option("--policies", help="Policies, comma-separated.", autocompletion=completion.policies)
]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Policy option; repeatable.")
]
PredictorOption = Annotated[
    str,
    typer.Option(
        "--predictor",
        help="oracle, noisy:SIGMA, adversarial, trained or none.",
    ),
]
PreemptionOption = Annotated[
    str | None, typer.Option("--preemption", help="never, guided or always. Default: the policy's default.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", file_okay=False, help="Folder for result.json, jobs.csv and batsim_jobs.csv.")
]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="N,N-N",
        help="Seeds and ranges of them, comma-separated, instead of --seed. All runs with each.",
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Worker processes. Default: one per core; none for small runs.")
]
SEEDS_MAX = 10_000


@dataclass(frozen=True)
class InputOptions:
    """The workload and the cluster of a simulation."""

    workload: WorkloadOption
    cluster: Annotated[Path, typer.Option("--cluster", help="Cluster file (sooner.cluster/1).")]
    first: FirstOption = None
    skip_invalid: SkipInvalidFlag = False

    def read(self) -> tuple[Cluster, Workload]:
        """The two files; ends the command with one line that names the mistake."""
        try:
            cluster = load_cluster(self.cluster)
            with uncollected():
                jobs = read_workload(self.workload, first=self.first, skip_invalid=self.skip_invalid)
        except (ClusterFileError, WorkloadError) as error:
            fail(str(error))
        report_skipped(jobs)
        if self.skip_invalid:
            report_unfit(jobs, unfit(jobs, cluster))
        return cluster, jobs


@dataclass(frozen=True)
class SimulationFlags(InputOptions):
    """The options that ``sim run`` and ``sim compare`` share."""

    option: OptionOption = None
    preemption: PreemptionOption = None
    checkpoint_s: Annotated[
        float, seconds_option("--checkpoint-s", "Seconds that the GPUs stay held at a preemption.")
    ] = _DEFAULTS.checkpoint_s
    restart_s: Annotated[
        float, seconds_option("--restart-s", "Seconds without progress at each start after the first.")
    ] = _DEFAULTS.restart_s
    checkpoint_period_s: Annotated[
        float,
        seconds_option(
            "--checkpoint-period-s", "Seconds between checkpoints. A crash loses the work since the last one."
        ),
    ] = 300.0
    network: NetworkOption = "reserved"
    sensitivity: Annotated[
        Sensitivity,
        typer.Option(
            "--sensitivity",
            help="Hidden slowdowns by span of jobs without a model: none, or drawn and unknown to the policy (blind), "
            "learnt from their runs, or known.",
        ),
    ] = Sensitivity.NONE
    launch_latency_s: Annotated[
        float,
        seconds_option(
            "--launch-latency-s", "Seconds from the decision to start a job until it runs. Its GPUs are held."
        ),
    ] = _DEFAULTS.launch_latency_s
    stop_latency_s: Annotated[
        float,
        seconds_option("--stop-latency-s", "Seconds from the decision to stop a job until its program is signalled."),
    ] = _DEFAULTS.stop_latency_s
    mtbf_s: Annotated[
        float | None,
        seconds_option(
            "--mtbf-s", "Mean seconds between a server's repair and its next failure. Default: no failures.", MTBF_S_MIN
        ),
    ] = None
    mttr_s: Annotated[
        float | None,
        seconds_option("--mttr-s", f"Mean seconds to repair a failed server. Default: {NO_FAULTS.mttr_s:g}."),
    ] = None
    failure_shape: Annotated[
        float | None,
        typer.Option(
            "--failure-shape",
            min=SHAPE_MIN,
            max=SHAPE_MAX,
            callback=_finite,
            help="Weibull shape of the times between failures. Default: 1 (exponential).",
        ),
    ] = None
    crash_mtbf_s: Annotated[
        float | None,
        seconds_option(
            "--crash-mtbf-s", "Mean seconds between crashes of a running program. Default: no crashes.", MTBF_S_MIN
        ),
    ] = None
    drain: Annotated[
        list[str] | None,
        typer.Option(
            "--drain",
            metavar="SERVER:FROM_S:TO_S",
            help="Drain the server from FROM_S to TO_S; without TO_S, until the end. Repeatable.",
        ),
    ] = None
    faults: Annotated[
        Path | None,
        typer.Option(
            "--faults", dir_okay=False, help="Faults file (sooner.faults/1); the options above override its values."
        ),
    ] = None
    seed: SeedOption = _DEFAULTS.seed

    def options(self, cluster: Cluster, *, keep_spans: bool = False) -> SimulationOptions:
        """The options of the engine."""
        return SimulationOptions(
            checkpoint_s=self.checkpoint_s,
            restart_s=self.restart_s,
            checkpoint_period_s=self.checkpoint_period_s,
            launch_latency_s=self.launch_latency_s,
            stop_latency_s=self.stop_latency_s,
            network=self.network,
            sensitivity=self.sensitivity,
            seed=self.seed,
            skip_invalid=self.skip_invalid,
            keep_spans=keep_spans,
            faults=self._fault_plan(cluster),
        )

    def _fault_plan(self, cluster: Cluster) -> FaultPlan:
        """The file's faults, overridden by those of the command line, and the drains of both."""
        try:
            plan = NO_FAULTS if self.faults is None else load_faults(self.faults, cluster)
        except FaultsError as error:
            fail(f"--faults {error}")
        try:
            drains = tuple(parse_drain(text, cluster) for text in self.drain or ())
        except FaultsError as error:
            fail(f"--drain {error}")
        numbers = given(
            mtbf_s=self.mtbf_s, mttr_s=self.mttr_s, shape=self.failure_shape, crash_mtbf_s=self.crash_mtbf_s
        )
        if plan.mtbf_s is None and "mtbf_s" not in numbers and ("mttr_s" in numbers or "shape" in numbers):
            fail("--mttr-s and --failure-shape need --mtbf-s")
        return replace(plan, **numbers, drains=(*plan.drains, *drains))


def parse_seeds(text: str | None) -> Sequence[int]:
    """The seeds of ``1,3,5-8``; none for None."""
    seeds: list[int] = []
    for part in text.split(",") if text is not None else ():
        found = re.fullmatch(r"\s*(-?\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
        if found is None:
            fail(f"--seeds: {part!r} is neither a number nor a range like 1-10")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            fail(f"--seeds: {part.strip()} ends before it begins")
        if len(seeds) + last - first >= SEEDS_MAX:
            fail(f"--seeds: at most {SEEDS_MAX} seeds")
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        fail(f"--seeds: {text!r} contains a seed twice")
    return seeds


def make_plans(
    policies: str,
    predictors: str,
    option: list[str] | None,
    preemption: str | None,
    out: Path | None,
    seeds: Sequence[int] = (),
) -> list[Plan]:
    """Every policy with every predictor and every seed, policy by policy."""
    labels, guesses = names_in("--policies", policies), names_in("--predictors", predictors)
    plans = []
    for label in labels:
        name, *own = label.split(":")
        for each in own:
            if not each.partition("=")[0] or "=" not in each:
                fail(f"--policies: {label!r}: {each!r} is not NAME=VALUE")
        options = policy_options(name, [*(option or []), *own], preemption)
        for guess in guesses:
            folder = out
            if folder is not None:
                folder = folder / label.replace(":", "-")
                folder = folder / guess.replace(":", "-") if len(guesses) > 1 else folder
            for seed in seeds or (None,):
                place = folder / f"seed-{seed}" if folder is not None and len(seeds) > 1 else folder
                plans.append(Plan(label, name, options, guess, place, seed=seed))
    return plans


def names_in(flag: str, text: str) -> list[str]:
    """The names of a list with commas, each once. Ends the command for another list."""
    names = [name.strip() for name in text.split(",")]
    if names == [""]:
        fail(f"{flag}: names nothing")
    if not all(names):
        fail(f"{flag}: {text!r} has a comma without a name on each side")
    if len(set(names)) != len(names):
        fail(f"{flag}: {text!r} contains a name twice")
    return names


def policy_options(name: str, options: list[str] | None, preemption: str | None) -> dict[str, str]:
    """The options as names and values, known to be accepted by the policy."""
    try:
        values = named_values(options or [])
    except OptionError as error:
        fail(f"--option {error}")
    if preemption is not None:
        if "preemption" in values:
            fail("--preemption and --option preemption=... are both given")
        values["preemption"] = preemption
    try:
        make_policy(name, values)
    except OptionError as error:
        fail(str(error))
    return values
