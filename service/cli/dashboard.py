"""``sooner dashboard``: open the dashboard in a browser, signed in."""

import webbrowser
from typing import Annotated

import typer

from service.cli.connect import connect


def dashboard_command(
    show: Annotated[
        bool, typer.Option("--no-browser", help="Print the address instead of opening it in a browser.")
    ] = False,
) -> None:
    """Open the dashboard in the browser, signed in.

    The address has a code that signs one browser in, within a minute.
    """
    with connect() as client:
        address = f"{client.url}/{client.keys.sign_in_code()['path']}"
    if show or not webbrowser.open(address):
        typer.echo(address)
