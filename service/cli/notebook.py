"""``sooner notebook``: the notebooks that study errors, policies, work and calibration, opened in JupyterLab.

They are copied first, because users change them. A file that is in the folder already is never overwritten.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import typer

from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import printable
from service.runtime.packaged import packaged_folder

FOLDER = "sooner-notebooks"
LAB = "jupyterlab"
NOT_INSTALLED = (
    "JupyterLab is not installed; install it with: pip install 'sooner[notebooks]'; "
    "or copy the notebooks and open them in an editor: sooner notebook --copy-only"
)


class Copied(NamedTuple):
    """Names of the notebooks that are new in a folder, and of those that were there and differ from ours."""

    new: list[str]
    kept: list[str]


def copy_notebooks(folder: Path) -> Copied:
    """Put the notebooks that are not there yet into ``folder``, which is made where it is missing. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    copied = Copied([], [])
    for ours in sorted(packaged_folder("notebooks").glob("*.ipynb")):
        text = ours.read_bytes()
        theirs = folder / ours.name
        try:
            # "x": a file that appears in between, or a link that leads nowhere, is not written through.
            with theirs.open("xb") as stream:
                stream.write(text)
            copied.new.append(ours.name)
        except FileExistsError:
            if theirs.read_bytes() != text:
                copied.kept.append(ours.name)
    return copied


def notebook_command(
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- OPTION...", help="Options for JupyterLab, as in `-- --allow-root`."),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", file_okay=False, help="Folder of the notebooks; they are copied to it.")
    ] = Path(FOLDER),
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="TCP port of JupyterLab. It listens on this machine only.")
    ] = 8888,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address instead of opening a browser.")
    ] = False,
    copy_only: Annotated[
        bool, typer.Option("--copy-only", help="Copy the notebooks and exit. JupyterLab is not needed.")
    ] = False,
) -> None:
    """Copy the notebooks to a folder and open them in JupyterLab. They find the service as other commands do.

    They show prediction errors, policies, workload, calibration and iteration times. Without a service they use
    generated jobs and say so.
    """
    if not copy_only and find_spec(LAB) is None:
        fail(NOT_INSTALLED, EXIT_FAILED)
    try:
        copied = copy_notebooks(folder)
    except OSError as error:
        fail(f"--folder: {error.filename or folder}: {error.strerror or error}")
    if copied.new:
        typer.echo(printable(f"copied to {folder}: {', '.join(copied.new)}"), err=True)
    if copied.kept:
        typer.echo(
            printable(
                f"not overwritten in {folder}: {', '.join(copied.kept)} (changed since; delete a file to get the original)"
            ),
            err=True,
        )
    if not copy_only:
        _open(folder, port, no_browser, more or [])


def _open(folder: Path, port: int, no_browser: bool, more: list[str]) -> NoReturn:
    """Replace this process by JupyterLab, which then has the terminal, Ctrl-C and the exit code."""
    words = [sys.executable, "-m", LAB, f"--port={port}", *(["--no-browser"] if no_browser else []), *more, str(folder)]
    os.execv(sys.executable, words)  # noqa: S606 (our own interpreter, no shell)
