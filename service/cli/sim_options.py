"""The options that the commands of ``sooner sim`` share, and what is read from them before anything runs."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.model.cluster import Cluster
from policies.options import OptionError
from policies.registry import make_policy
from service.cli.compare import Plan
from service.cli.fail import fail
from service.cli.workload import report_skipped
from service.cluster_file import ClusterFileError, load_cluster
from service.sim.experiment import NETWORKS
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload
from service.sim.workloads.table import read_workload


def _finite(value: float | None) -> float | None:
    """Option callback: infinity and NaN pass a range check of the parser."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _seconds(flag: str, text: str) -> Any:
    return typer.Option(flag, min=0.0, callback=_finite, help=text)


def _known_network(value: str) -> str:
    """Option callback."""
    if value not in NETWORKS:
        raise typer.BadParameter(f"{value!r} is unknown; use {' or '.join(NETWORKS)}")
    return value


WorkloadOption = Annotated[Path, typer.Option("--workload", help="Workload table (sooner.workload/1).")]
ClusterOption = Annotated[Path, typer.Option("--cluster", help="Cluster file (sooner.cluster/1).")]
PolicyOption = Annotated[str, typer.Option("--policy", help="Policy by name.")]
PoliciesOption = Annotated[str, typer.Option("--policies", help="Policies by name, separated by commas.")]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the policy; repeatable.")
]
PredictorOption = Annotated[str, typer.Option("--predictor", help="oracle, noisy:SIGMA, adversarial, trained or none.")]
PredictorsOption = Annotated[
    str | None,
    typer.Option("--predictors", help="Several predictors, separated by commas, each with every policy."),
]
PreemptionOption = Annotated[
    str | None, typer.Option("--preemption", help="never, guided or always; left out: the policy's own default.")
]
CheckpointOption = Annotated[float, _seconds("--checkpoint-s", "Seconds the GPUs stay held at a preemption.")]
RestartOption = Annotated[float, _seconds("--restart-s", "Seconds without progress at each start after the first.")]
PeriodOption = Annotated[
    float, _seconds("--checkpoint-period-s", "Seconds between checkpoints; a crash loses what follows the last one.")
]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        callback=_known_network,
        help="reserved: each GPU owns its share of the NIC; contended: jobs that straddle servers share it.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Equal seeds give equal results.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", file_okay=False, help="Folder for result.json, jobs.csv and batsim_jobs.csv.")
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", dir_okay=False, help="Write the comparison as one self-contained page.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes; left out: one a core, none for little work.")
]
PngOption = Annotated[
    Path | None, typer.Option("--png", file_okay=False, help="Folder for each picture as PNG (needs sooner[png]).")
]


def inputs(cluster: Path, workload: Path, first: int | None, skip_invalid: bool) -> tuple[Cluster, Workload]:
    """The two files, or an end with one line that names the mistake."""
    try:
        machines = load_cluster(cluster)
        jobs = read_workload(workload, first=first, skip_invalid=skip_invalid)
    except (ClusterFileError, WorkloadError) as error:
        fail(str(error))
    report_skipped(jobs)
    return machines, jobs


def make_plans(
    policies: str, predictors: str, option: list[str] | None, preemption: str | None, out: Path | None
) -> list[Plan]:
    """Every policy with every predictor, policy by policy."""
    labels, guesses = _names("--policies", policies), _names("--predictors", predictors)
    plans = []
    for label in labels:
        name, *own = label.split(":")
        options = policy_options(name, [*(option or []), *own], preemption)
        for guess in guesses:
            folder = out
            if folder is not None:
                folder = folder / label.replace(":", "-")
                folder = folder / guess.replace(":", "-") if len(guesses) > 1 else folder
            plans.append(Plan(label, name, options, guess, folder))
    return plans


def _names(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) != len(names):
        fail(f"{flag}: {text!r} names one twice")
    return names


def policy_options(name: str, options: list[str] | None, preemption: str | None) -> dict[str, str]:
    """The options as names and values, known to be accepted by the policy."""
    values: dict[str, str] = {}
    for text in options or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            fail(f"--option {text!r} is not NAME=VALUE")
        if key in values:
            fail(f"--option {key} is given twice")
        values[key] = value
    if preemption is not None:
        if "preemption" in values:
            fail("--preemption and --option preemption=... are both given")
        values["preemption"] = preemption
    try:
        make_policy(name, values)
    except OptionError as error:
        fail(str(error))
    return values


def make_folder(flag: str, folder: Path | None) -> None:
    """Before the run: nobody wants to learn after an hour that the folder cannot be made."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"{flag} {folder}: {error.strerror or error}")
