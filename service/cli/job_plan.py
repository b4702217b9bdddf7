"""``sooner job plan``: a training plan from what a launcher is given, its memory and its time, without a service."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.model.plan import Precision
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import Column, JsonFlag, print_json, print_table, printable
from service.cli.plan_words import gib_text, part_words, plan_words, seconds_text

if TYPE_CHECKING:
    from service.plans.cluster import Servers
    from service.plans.reading import Given, Model, Reading

Document = Mapping[str, Any]

_SHOWN = 5
_READERS = ("--from-megatron", "--from-deepspeed", "--from-accelerate", "--from-torchrun")


def plan_command(
    gpu_type: Annotated[
        str | None,
        typer.Option(
            "--gpu-type",
            help="GPU type, such as H100 or A100-80; other spellings are understood. Default: the only one of --cluster.",
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="Cluster file: its memory and bandwidths count instead of those of usual servers, and its GPUs are the limit.",
        ),
    ] = None,
    megatron: Annotated[
        str | None,
        typer.Option(
            "--from-megatron",
            metavar="ARGUMENTS",
            help="Arguments of Megatron-LM or overrides of Megatron-Bridge, as one text; a launcher before them is read too.",
        ),
    ] = None,
    deepspeed: Annotated[
        Path | None, typer.Option("--from-deepspeed", metavar="FILE", help="Configuration of DeepSpeed (JSON).")
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option("--from-accelerate", metavar="FILE", help="File of accelerate config (YAML).")
    ] = None,
    torchrun: Annotated[
        str | None,
        typer.Option(
            "--from-torchrun",
            metavar="COMMAND",
            help="A command of torchrun, deepspeed or accelerate launch with arguments of Hugging Face Trainer, as one text.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME|FILE", help="A model of the catalogue, or its Hugging Face config.json."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=1, max=1_000_000, help="Number of GPUs.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, max=1_000_000, help="Number of servers.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option("--gpus-per-node", min=1, max=1_000_000, help="GPUs of a server.")
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", min=1, max=1_000_000_000, help="Samples of a micro-batch.")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", min=1, max=1_000_000_000, help="Samples of an iteration.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=1, max=1_000_000_000, help="Tokens of a sample.")
    ] = None,
    precision: Annotated[Precision | None, typer.Option("--precision", help="Format of matrix products.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a training configuration asks of the cluster: GPUs, memory of each GPU, and time.

    Options replace what the configuration says. Nothing is submitted, and no service is needed. Exit code 1 if the plan does
    not fit the GPUs' memory.
    """
    from service.plans.prediction import predict, rank
    from service.plans.reading import Given
    from service.plans.values import ReadError

    given = Given(
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        micro_batch=micro_batch,
        global_batch=global_batch,
        sequence=sequence,
        precision=precision,
    )
    try:
        servers, beside = _servers(gpu_type, cluster), _model(model)
        reading = _reading(megatron, deepspeed, accelerate, torchrun, given, beside)
        if reading is not None:
            found = predict(reading, servers)
        elif beside is not None:
            found = rank(given, beside, servers)
        else:
            fail(f"give a configuration ({', '.join(_READERS)}) or --model for a ranking of plans")
    except ReadError as error:
        fail(printable(str(error)))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not (found["memory"]["fits"] if found["memory"] is not None else found["alternatives"]):
        raise typer.Exit(EXIT_FAILED)


def _servers(gpu_type: str | None, cluster: Path | None) -> "Servers":
    """Those of the cluster file, else usual ones."""
    from service.config.cluster_file import ClusterFileError, load_cluster
    from service.plans.cluster import servers_on, usual_servers
    from service.plans.values import ReadError

    if cluster is not None:
        try:
            return servers_on(load_cluster(cluster), gpu_type)
        except ClusterFileError as error:
            fail(printable(str(error)))
    if gpu_type is None:
        raise ReadError("gpu-type", "is required without --cluster")
    return usual_servers(gpu_type)


def _model(text: str | None) -> "Model | None":
    from service.plans.model import model_of

    return model_of(text) if text is not None else None


def _reading(
    megatron: str | None,
    deepspeed: Path | None,
    accelerate: Path | None,
    torchrun: str | None,
    given: "Given",
    model: "Model | None",
) -> "Reading | None":
    """The configuration as a plan, by the reader of the option that was given; None without one."""
    from service.plans.accelerate import read_accelerate
    from service.plans.deepspeed import read_deepspeed
    from service.plans.files import load_json, load_yaml
    from service.plans.megatron import read_megatron
    from service.plans.torchrun import read_torchrun

    readers: dict[str, Callable[[], Reading]] = {}
    if megatron is not None:
        readers["--from-megatron"] = lambda: read_megatron(megatron, given, model)
    if deepspeed is not None:
        readers["--from-deepspeed"] = lambda: read_deepspeed(load_json(deepspeed), given, model)
    if accelerate is not None:
        readers["--from-accelerate"] = lambda: read_accelerate(load_yaml(accelerate), given, model, accelerate.parent)
    if torchrun is not None:
        readers["--from-torchrun"] = lambda: read_torchrun(torchrun, given, model, Path())
    if len(readers) > 1:
        fail(f"{' and '.join(readers)} exclude each other")
    return next((read() for read in readers.values()), None)


def _print(found: Document) -> None:
    for line in found["warnings"]:
        typer.echo(printable(f"warning: {line}"), err=True)
    model = found["model"]
    typer.echo(
        printable(f"{model['name']}, {_amount(model['parameters'])} parameters, on {found['gpus']} {found['gpu_type']}")
    )
    typer.echo()
    _print_sources(found)
    if found["plan"] is not None:
        _print_time(found)
        _print_memory(found)
    _print_alternatives(found)


def _print_sources(found: Document) -> None:
    rows = list(found["sources"])
    if found["plan"] is not None:
        origin = "global_batch / (micro_batch x data)"
        rows.append({"field": "micro_batches", "value": str(found["plan"]["micro_batches"]), "origin": origin})
    print_table(
        [
            Column[Document]("VALUE", lambda row: row["field"]),
            Column[Document]("IS", lambda row: row["value"], right=True),
            Column[Document]("FROM", lambda row: row["origin"], long=True),
        ],
        rows,
    )


def _print_time(found: Document) -> None:
    """The iteration and its parts, without those below a thousandth."""
    time, unit = found["iteration"], found["unit"]
    total = time["time_s"]
    typer.echo()
    typer.echo(
        f"Iteration: {seconds_text(total)}, {time['tokens_per_s']:,.0f} {unit}/s ({time['tokens_per_s_per_gpu']:,.0f} a GPU),"
        f" limited by {part_words(time['bottleneck'])}"
    )
    typer.echo(f"A billion {unit}: {time['gpu_hours_per_billion']:,.0f} GPU-hours")
    for name, seconds in sorted(time["parts_s"].items(), key=lambda part: -part[1]):
        if seconds >= total / 1000:
            typer.echo(f"  {part_words(name):<26} {seconds_text(seconds):>10} {seconds / total:>6.1%}")


def _print_memory(found: Document) -> None:
    """The bill of the stage that needs most, and what would fit instead."""
    memory = found["memory"]
    verdict = "fits" if memory["fits"] else "does not fit"
    stage = f" of stage {memory['stage']}" if found["plan"]["pipeline"] > 1 else ""
    typer.echo()
    typer.echo(
        f"Memory of each GPU{stage}: {gib_text(memory['peak_bytes'])} of {gib_text(memory['limit_bytes'])}, {verdict}"
    )
    for name, size in memory["parts_bytes"].items():
        if size:
            typer.echo(f"  {name:<26} {gib_text(size):>10}")
    for near in found["nearest"]:
        typer.echo(f"  would fit: {near['changes']} ({gib_text(near['peak_bytes'])}, {seconds_text(near['time_s'])})")
    if not memory["fits"] and not found["nearest"]:
        typer.echo("  no plan that fits was found near this one")


def _print_alternatives(found: Document) -> None:
    typer.echo()
    rows = found["alternatives"][:_SHOWN]
    if not rows:
        typer.echo("No plan of these GPUs fits their memory.")
        return
    typer.echo("The fastest plans on these GPUs:")
    own = found["iteration"] if found["plan"] is not None and found["memory"]["fits"] else None
    columns = [
        Column[Document]("PLAN", lambda row: plan_words(row["plan"]), long=True),
        Column[Document]("ITERATION", lambda row: seconds_text(row["time_s"]), right=True),
        Column[Document](f"{found['unit'].upper()}/S", lambda row: f"{row['tokens_per_s']:,.0f}", right=True),
        Column[Document]("GPU-HOURS/BILLION", lambda row: f"{row['gpu_hours_per_billion']:,.0f}", right=True),
        Column[Document]("MEMORY", lambda row: gib_text(row["peak_bytes"]), right=True),
        Column[Document]("LIMITED BY", lambda row: part_words(row["limit"])),
    ]
    if own is not None:
        faster = Column[Document]("SPEED", lambda row: f"{row['tokens_per_s'] / own['tokens_per_s']:.2f} x", right=True)
        columns.insert(1, faster)
    print_table(columns, rows)


def _amount(count: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"
