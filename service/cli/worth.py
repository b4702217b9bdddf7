"""``sooner worth``: what A-SRPT would have been worth on the past weeks of a Slurm cluster."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import NetworkOption, SeedOption, seconds_option
from service.cli.output import Column, JsonFlag, print_json, print_table, printable
from service.domain.counts import count_of
from service.domain.duration import words_of
from service.simulations.words import left_out_notes

if TYPE_CHECKING:
    from policies.model.cluster import Cluster
    from service.slurm.accounting import AccountedJob

_HEADS = {"real": "REALITY", "slurm": "SLURM, REPLAYED", "asrpt never": "A-SRPT, NO PREEMPTION", "asrpt": "A-SRPT"}
_USERS_SHOWN = 5
_VERDICTS = {
    "good": "good: the gains below are a fair guess",
    "fair": "fair: the gains below may be off by half",
    "poor": "poor: the real waits have causes that the replay does not know, so do not rely on the gains below",
}
_LIMITS = (
    "Not known to any replay: partitions, quality of service, priorities and fair share, CPUs and memory, nodes that were down,"
    " jobs that have not ended. A-SRPT with preemption counts on programs that continue from a checkpoint."
)

Document = Mapping[str, Any]


def worth_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Output of sacct in a file. Default: read it from this machine's sacct.", show_default=False
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", dir_okay=False, help="Cluster file. Default: the nodes of this machine's Slurm."),
    ] = None,
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-type",
            metavar="SLURM=CLUSTER",
            help="A GPU type by its names in Slurm and in the cluster file; repeatable.",
        ),
    ] = None,
    restart_s: Annotated[
        float, seconds_option("--restart-s", "Seconds without progress at each start after the first.")
    ] = 60.0,
    checkpoint_s: Annotated[
        float, seconds_option("--checkpoint-s", "Seconds that the GPUs stay held at a preemption.")
    ] = 0.0,
    network: NetworkOption = "reserved",
    seed: SeedOption = 0,
    as_json: JsonFlag = False,
) -> None:
    """Replay the past of a Slurm cluster under A-SRPT, beside what happened and beside a replay under Slurm's rules.

    Predictions are made from jobs that had ended before. Nothing is written to Slurm.
    """
    from service.advice.history import GpuTypes, past_of
    from service.advice.worth import WorthError, worth
    from service.sim.experiment import SimulationOptions

    names = _given(gpu_type or ())
    # A wrong file is told before anything is asked of Slurm.
    described = _described(cluster) if cluster is not None else None
    read = _read(file) if file is not None else None
    machines = described or _found()
    try:
        types = GpuTypes(machines, names)
    except ValueError as error:
        fail(f"--gpu-type: {error}")
    jobs, left_out = read or (_accounted(), Counter())
    past = past_of(jobs, machines, types)
    past.left_out.update(left_out)
    options = SimulationOptions(checkpoint_s=checkpoint_s, restart_s=restart_s, network=network, seed=seed)
    try:
        found = worth(past, machines, options, lambda step: typer.echo(f"{step} ...", err=True))
    except WorthError as error:
        fail("; ".join([str(error), *left_out_notes(past.left_out)]), EXIT_FAILED)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _given(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, _, known) in zip(texts, pairs, strict=True):
        if not name or not known:
            fail(f"--gpu-type: {text!r} is not SLURM=CLUSTER, such as a100=A100-80GB")
    return {name: known for name, _, known in pairs}


def _described(path: Path) -> "Cluster":
    from service.config.cluster_file import ClusterFileError, load_cluster

    try:
        return load_cluster(path)
    except ClusterFileError as error:
        fail(str(error))


def _found() -> "Cluster":
    from policies.model.cluster import Cluster, Server
    from service.slurm.cluster import Slurm
    from service.slurm.commands import SlurmError

    try:
        nodes = [node for node in Slurm().nodes() if node.gpus]
    except SlurmError as error:
        fail(f"{error}; --cluster FILE gives the servers without Slurm", EXIT_FAILED)
    if not nodes:
        fail("Slurm has no node with GPUs; --cluster FILE gives the servers", EXIT_FAILED)
    return Cluster("slurm", tuple(Server(node.name, node.gpus, node.gpu_type or "GPU") for node in nodes))


def _read(path: Path) -> tuple[Sequence["AccountedJob"], Counter[str]]:
    from service.advice.accounting import AccountingError, read_file

    try:
        return read_file(path)
    except AccountingError as error:
        fail(str(error))


def _accounted() -> Sequence["AccountedJob"]:
    from service.advice.accounting import AccountingError, AccountingStore
    from service.config.environment import default_data_dir
    from service.slurm.commands import SlurmCommands

    try:
        folder = default_data_dir() / "advice"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = AccountingStore(folder / "accounting.sqlite")
        try:
            store.update(SlurmCommands(), time.time())
            # An update reads only what is new, so it cannot count the rows that were left out of the whole past.
            return store.jobs()
        finally:
            store.close()
    except AccountingError as error:
        fail(str(error), EXIT_FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror or error}", EXIT_FAILED)


def _print(found: Document) -> None:
    start, end = (datetime.fromtimestamp(found[name], UTC).date().isoformat() for name in ("from_s", "until_s"))
    typer.echo(
        f"{count_of(found['jobs'])} of {count_of(found['users'], 'user')}, submitted from {start} to {end}, on"
        f" {count_of(found['servers'], 'server')} with {count_of(found['gpus'], 'GPU')}; {_learnt_from(found['learnt_from'])}"
    )
    for note in left_out_notes(found["left_out"]):
        typer.echo(printable(note))
    typer.echo(f"\n{_replay(found['replay'])}\n")
    print_table(_columns(found), _rows(found))
    typer.echo("")
    for label in ("asrpt never", "asrpt"):
        typer.echo(_gain(_HEADS[label], found["gains"][label]))
    users = found["users_changed"]["asrpt"]
    typer.echo(
        f"\nUsers under A-SRPT, by their mean completion time: {users['better']} better and {users['worse']} worse by more than"
        f" 5%, {users['alike']} alike"
    )
    for words, own in (("gains most", users["changes"]), ("loses most", users["changes"][::-1])):
        shown = [each for each in own if (each["mean_jct_change"] < 0.0) == (words == "gains most")][:_USERS_SHOWN]
        for each in shown:
            typer.echo(
                printable(f"  {words}: {each['user']} {each['mean_jct_change']:+.0%} ({count_of(each['jobs'])})")
            )
    typer.echo(f"\n{_LIMITS}")


def _replay(replay: Document) -> str:
    real, replayed = (words_of(replay[f"{name}_mean_wait_s"]) for name in ("real", "replay"))
    correlation = replay["rank_correlation"]
    order = "" if correlation is None else f", rank correlation of the waits {correlation:.2f}"
    return f"The replay of Slurm waits {replayed} on average, reality {real}{order}: {_VERDICTS[replay['verdict']]}"


def _learnt_from(count: int) -> str:
    return f"{count_of(count, 'earlier one')} {'is' if count == 1 else 'are'} only learnt from"


def _gain(head: str, gain: Document) -> str:
    interval = gain["interval_90"]
    if interval is None:
        sure = f"no interval: {count_of(gain['blocks'], 'day')} of jobs, too few"
    else:
        low, high = interval
        sure = f"90% interval {low:+.0%} to {high:+.0%}"
        if low < 0.0 < high:
            sure += ": it may be chance"
    return f"{head}: mean completion time {gain['mean_jct_change']:+.1%} against the replay of Slurm ({sure})"


_Row = tuple[str, Mapping[str, str]]


def _columns(found: Document) -> list[Column[_Row]]:
    heads = [Column[_Row](_HEADS[label], partial(_cell, label), right=True) for label in found["schedules"]]
    return [Column[_Row]("", lambda row: row[0]), *heads]


def _cell(label: str, row: _Row) -> str:
    return row[1][label]


def _rows(found: Document) -> list[_Row]:
    schedules: Mapping[str, Document] = found["schedules"]

    def row(name: str, text: Any, key: str) -> _Row:
        return name, {label: text(measures[key]) for label, measures in schedules.items()}

    rows = [
        row("mean completion time", words_of, "mean_jct_s"),
        row("median", words_of, "median_jct_s"),
        row("95th percentile", words_of, "p95_jct_s"),
        row("mean wait", words_of, "mean_wait_s"),
    ]
    for number, size in enumerate(schedules["real"]["waits"]):
        low, high = size["gpus_min"], size["gpus_max"]
        gpus = f"{low}" if low == high else f"{low} and more" if high is None else f"{low} to {high}"
        cells = {label: words_of(measures["waits"][number]["mean_wait_s"]) for label, measures in schedules.items()}
        rows.append((f"mean wait, {gpus} GPU{'' if gpus == '1' else 's'} ({count_of(size['jobs'])})", cells))
    return [
        *rows,
        row("GPU hours", "{:,.0f}".format, "gpu_hours"),
        row("of them lost by preemption", "{:,.1f}".format, "lost_gpu_hours"),
        row("preemptions", str, "preemptions"),
    ]
