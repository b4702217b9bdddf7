"""``sooner job spec``: jobs as they were submitted, with their environments as far as the caller may read them."""

import typer

from service.cli.connect import connect
from service.cli.output import JsonFlag, print_json, printable
from service.cli.selectors import SelectorArgument, select


def spec_command(jobs: SelectorArgument, as_json: JsonFlag = False) -> None:
    """Show jobs as they were submitted: job files that can be submitted again. Hidden values of environments are null."""
    import yaml

    with connect() as client:
        specs = {number: client.spec(number) for number in select(client, jobs)}
    if as_json:
        print_json({"schema": "sooner.specs/1", "specs": list(specs.values())})
        return
    for number, spec in specs.items():
        typer.echo(f"--- # job {number}")
        for line in yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).splitlines():
            typer.echo(printable(line))
