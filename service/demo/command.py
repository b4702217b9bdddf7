"""``sooner demo``. What the demo needs is imported when it runs."""

from typing import Annotated

import typer


def demo_command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with the database, models and logs, and print its path.")
    ] = False,
) -> None:
    """Run real training jobs through the whole service on virtual GPUs (about two minutes), and print a summary."""
    from service.demo.run import run_demo

    raise typer.Exit(run_demo(keep=keep))
