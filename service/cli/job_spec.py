"""``sooner job spec``: jobs as they were submitted, with their environments as far as the caller may read them."""

import typer

from service.cli.connect import connect
from service.cli.output import JsonFlag, print_json, printable
from service.cli.selectors import SelectorArgument, select


def spec_command(jobs: SelectorArgument, as_json: JsonFlag = False) -> None:
    """Show jobs as they were submitted, but for their graphs. Values of environments that are not for you are null."""
    import yaml

    with connect() as client:
        specs = [client.spec(number) for number in select(client, jobs)]
    if as_json:
        print_json({"schema": "sooner.specs/1", "specs": specs})
        return
    for line in yaml.safe_dump_all(specs, sort_keys=False, allow_unicode=True).splitlines():
        typer.echo(printable(line))
