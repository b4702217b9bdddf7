"""``sooner job plan``: a training plan from what a launcher is given, its memory and its time, without a service."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.model.plan import Precision
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import Column, JsonFlag, print_json, print_table, printable

if TYPE_CHECKING:
    from service.plans.reading import Given, Model, Reading

Document = Mapping[str, Any]

_GIB = 2**30


def plan_command(
    gpu_type: Annotated[
        str, typer.Option("--gpu-type", help="GPU type, such as H100 or A100-80; other spellings are understood.")
    ],
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
            help="A torchrun command with arguments of Hugging Face Trainer, as one text.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="NAME|FILE", help="A model of the catalogue, or its Hugging Face config.json."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=1, help="Number of GPUs.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of servers.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of a server.")] = None,
    micro_batch: Annotated[int | None, typer.Option("--micro-batch", min=1, help="Samples of a micro-batch.")] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", min=1, help="Samples of an iteration.")] = None,
    sequence: Annotated[int | None, typer.Option("--sequence", min=1, help="Tokens of a sample.")] = None,
    precision: Annotated[Precision | None, typer.Option("--precision", help="Format of matrix products.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a training configuration asks of the cluster: GPUs, memory of each GPU, and time.

    Options replace what the configuration says. Nothing is submitted, and no service is needed. Exit code 1 if the plan does
    not fit the GPUs' memory.
    """
    from service.plans.gpu_types import gpu_of
    from service.plans.prediction import predict
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
        reading = _reading(megatron, deepspeed, accelerate, torchrun, given, _model(model))
        found = predict(reading, gpu_of(gpu_type))
    except ReadError as error:
        fail(printable(str(error)))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found["memory"]["fits"]:
        raise typer.Exit(EXIT_FAILED)


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
) -> "Reading":
    """The configuration as a plan, by the reader of the option that was given."""
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
        readers["--from-torchrun"] = lambda: read_torchrun(torchrun, given, model)
    if len(readers) != 1:
        given_ones = f" (got {' and '.join(readers)})" if readers else ""
        fail(f"give one of --from-megatron, --from-deepspeed, --from-accelerate and --from-torchrun{given_ones}")
    (read,) = readers.values()
    return read()


def _print(found: Document) -> None:
    for line in found["warnings"]:
        typer.echo(printable(f"warning: {line}"), err=True)
    plan, memory = found["plan"], found["memory"]
    model = found["model"]
    typer.echo(
        printable(f"{model['name']}, {_amount(model['parameters'])} parameters, on {found['gpus']} {found['gpu_type']}")
    )
    typer.echo()
    print_table(
        [
            Column[Document]("VALUE", lambda row: row["field"]),
            Column[Document]("IS", lambda row: row["value"], right=True),
            Column[Document]("FROM", lambda row: row["origin"], long=True),
        ],
        [
            *found["sources"],
            {
                "field": "micro_batches",
                "value": str(plan["micro_batches"]),
                "origin": "global_batch / (micro_batch x data)",
            },
        ],
    )
    typer.echo()
    verdict = "fits" if memory["fits"] else "does not fit"
    stage = f" of stage {memory['stage']}" if plan["pipeline"] > 1 else ""
    typer.echo(f"Memory of each GPU{stage}: {_gib(memory['peak_bytes'])} of {_gib(memory['limit_bytes'])}, {verdict}")
    for name, size in memory["parts_bytes"].items():
        if size:
            typer.echo(f"  {name:<12} {_gib(size):>12}")


def _gib(size: float) -> str:
    return f"{size / _GIB:,.1f} GiB"


def _amount(count: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"
