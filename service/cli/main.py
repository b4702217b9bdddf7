"""The entry point ``sooner``: the tree of commands, and the one place that turns errors into lines and exit codes.

Exit codes: 0 done, 1 the operation failed, 2 wrong usage or input; 130 after Ctrl-C, as shells expect, except where Ctrl-C is the
ordinary end (``--watch``, ``--follow``, ``serve``).
"""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from service.cli import (
    admin,
    bugreport,
    cluster,
    forecast,
    job_spec,
    jobs,
    key,
    models,
    notebook,
    past,
    people,
    queue,
    quota,
    reservation,
    services,
    shadow,
    submit,
    usage,
    webhook,
)
from service.cli.fail import EXIT_USAGE, refusals
from service.cli.guard import DISTRIBUTION, conflict

_LATER = {
    "sim": ("service.cli.replay", "Simulate a workload with the production engine."),
    "workload": (
        "service.cli.workload_export",
        "Workload tables: import traces, describe them, generate synthetic ones.",
    ),
}
"""Groups whose modules are imported when they are called: they bring numpy and the engine along."""


class Sooner(TyperGroup):
    """The top group: loads late what is listed above, and gives every refusal one shape."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace a placeholder by the group it stands for."""
        if args and args[0] in _LATER:
            self.commands[args[0]] = load_group(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with refusals():
            return super().invoke(ctx)


def load_group(name: str) -> Any:
    """The real group behind a placeholder."""
    module, _ = _LATER[name]
    late = import_module(module).app
    late.rich_markup_mode = app.rich_markup_mode
    group = typer.main.get_group(late)
    group.name = name
    return group


app = typer.Typer(
    name=DISTRIBUTION,
    cls=Sooner,
    help="Sooner: prediction-assisted scheduling of deep-learning training jobs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # In rich's own markup "p50 [p10-p90]" loses its brackets.
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{DISTRIBUTION} {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


app.command("serve")(admin.serve_command)
app.command("demo")(admin.demo_command)
app.command("q")(jobs.queue)
app.command("info")(cluster.info)
app.command("services")(services.services_command)
app.command("events")(services.events_command)
app.command("usage")(usage.usage_command)
app.command("forecast")(forecast.forecast_command)
cluster.app.command("export")(past.cluster_export_command)
app.command("bugreport")(bugreport.bugreport_command)
app.command("shadow")(shadow.shadow_command)
app.command("notebook")(notebook.notebook_command)
app.command("whoami")(key.whoami_command)
app.command("audit")(people.audit_command)
jobs.app.command("submit")(submit.submit_command)
jobs.app.command("spec")(job_spec.spec_command)
jobs.app.command("wait")(submit.wait_command)
app.add_typer(jobs.app, name="job")
app.add_typer(cluster.app, name="cluster")
app.add_typer(webhook.app, name="webhook")
app.add_typer(queue.app, name="queue")
app.add_typer(quota.app, name="quota")
app.add_typer(reservation.app, name="reservation")
app.add_typer(key.app, name="key")
app.add_typer(people.user_app, name="user")
app.add_typer(people.project_app, name="project")
app.add_typer(models.app, name="model")
app.add_typer(admin.config_app, name="config")
app.add_typer(admin.database_app, name="db")
app.add_typer(admin.history_app, name="history")
for _name, (_, _help) in _LATER.items():
    app.add_typer(typer.Typer(help=_help), name=_name)


def main() -> None:
    """The console script."""
    problem = conflict()
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    app()


if __name__ == "__main__":
    main()
