"""``sooner demo``. What the demo needs is imported when it runs."""

import typer


def demo_command() -> None:
    """Run real training jobs through the whole service, in about a minute and a half on simulated GPUs; print a summary."""
    from service.demo.run import run_demo

    raise typer.Exit(run_demo())
