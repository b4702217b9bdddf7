"""The entry point ``sooner`` and the tree of its commands.

Exit codes: 0 done, 1 the operation failed, 2 wrong usage or input, or a full disk; 130 after Ctrl-C, as shells expect, except
where Ctrl-C is the ordinary end (``--watch``, ``--follow``, ``serve``).
"""

import atexit
import gc
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from service.cli.commands import MARKUP, CommandGroup, Group
from service.cli.fail import EXIT_USAGE
from service.cli.guard import DISTRIBUTION, conflict
from service.runtime.no_room import no_room


def _commands(prefix: str = "", /, **modules: str) -> dict[str, str | Group]:
    """Commands by name, from modules of this package. The function behind ``what-if`` is ``what_if_command``.

    ``prefix`` begins the functions' names where a module has the commands of several groups.
    """
    return {
        word: f"service.cli.{module}:{prefix}{word.replace('-', '_')}_command"
        for module, words in modules.items()
        for word in words.split()
    }


_GROUPS = {
    "job": Group(
        "Submit, inspect and control jobs.",
        _commands(
            jobs="list show explain attempts events logs spec",
            job_actions="cancel hold release priority",
            submit="submit wait",
            job_plan="plan",
            profile="profile",
        ),
    ),
    "graph": Group(
        "Layer graphs of models, for the graph of a job.",
        _commands(graph="from-torch from-onnx"),
    ),
    "cluster": Group(
        "Show and change the servers.",
        _commands(cluster="show events add drain resume", past="export", cluster_import="import"),
    ),
    "webhook": Group(
        "Webhooks: HTTP notifications about changes of jobs.",
        {**_commands(webhook="add list remove deliveries"), "test": "service.cli.webhook:try_command"},
    ),
    "queue": Group("Pause and resume the queue.", _commands("queue_", limits="show pause resume")),
    "quota": Group("Limit what users and projects may use.", _commands("quota_", limits="list set remove")),
    "reservation": Group("Reserve servers for a period.", _commands("reservation_", limits="list create cancel")),
    "key": Group("API keys: create, list, revoke.", _commands("key_", access="create list revoke")),
    "user": Group(
        "Users with API keys: list, add, disable, enable.", _commands("user_", access="list add disable enable")
    ),
    "project": Group("Projects and their members.", _commands("project_", access="list add remove")),
    "model": Group(
        "Trained models: evaluate, value, list, show, serving, train, promote.",
        _commands(models="evaluate", value="value") | _commands(models="list show serving train promote"),
    ),
    "tls": Group("Encrypted connections.", _commands(tls="create")),
    "config": Group("Show the settings.", _commands(admin="show")),
    "db": Group("Manage the database.", _commands(database="upgrade backup restore check")),
    "history": Group("Import ended jobs as training data.", _commands(database="import")),
    "sim": Group(
        "Simulate a workload with the production engine.",
        _commands(sim="run compare bounds", whatif="what-if", replay="replay snapshot"),
    ),
    "workload": Group(
        "Workload tables: import traces, describe them, generate synthetic ones.",
        _commands(workload="import describe generate", workload_export="export"),
    ),
}

TREE = Group(
    "Sooner: prediction-assisted scheduling of deep-learning training jobs.",
    {
        **_commands(admin="serve"),
        "demo": "service.demo.command:demo_command",
        "top": "service.cli.top.command:top_command",
        **_commands(
            jobs="q",
            cluster="info",
            services="services events",
            usage="usage",
            forecast="forecast",
            advise="advise",
            bugreport="bugreport",
            shadow="shadow",
            worth="worth",
            notebook="notebook",
            access="whoami audit",
            dashboard="dashboard",
        ),
        **_GROUPS,
    },
)
"""Every command as ``module:function``, in the order of ``sooner --help``."""


class Sooner(CommandGroup):
    """The top group."""

    group = TREE

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` name. For one that is only in groups, such as ``submit``, the error names these."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            groups = (
                name for name, entry in TREE.commands.items() if isinstance(entry, Group) and args[0] in entry.commands
            )
            if found := " or ".join(f"'{DISTRIBUTION} {name} {args[0]}'" for name in groups):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {found}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name=DISTRIBUTION,
    cls=Sooner,
    help=TREE.help,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from service.runtime.compiled import compiled

        typer.echo(f"{DISTRIBUTION} {version(DISTRIBUTION)} ({'compiled' if compiled() else 'pure Python'})")
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    if sys.stdout is None:
        # It was closed at the start (``>&-``). The next file that is opened takes its descriptor: better this one than a socket.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (open until the end)
    elif isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A name with characters that the terminal cannot show ends no command.
        sys.stdout.reconfigure(errors="replace")
    if sys.argv[1:2] == ["sim"] or sys.argv[1:3] == ["model", "value"]:
        # Simulations use one process a core. Their products of small matrices need no threads, and a process with threads cannot
        # be forked.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # The end of the process need not look for garbage among the results of a hundred thousand jobs.
        atexit.register(gc.freeze)
    problem = conflict()
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except Exception as error:
        line = no_room(error)
        if line is None:
            raise
        # What stays in the buffer cannot be written either; at the end of the process it would be tried again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {line}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
