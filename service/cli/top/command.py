"""``sooner top``. Textual is imported when the view opens."""

import os
import sys

from service.cli.connect import async_client, connect
from service.cli.fail import fail


def top_command() -> None:
    """Show the cluster live in the terminal: GPUs, running jobs, the queue, and one job's story.

    Keys are those of htop; F1 lists them.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        fail("sooner top needs a terminal as input, output and error output; without one, use: sooner q --watch")
    with connect() as client:
        identity = client.me()
    from service.cli.top.app import Top

    Top(async_client(), identity).run()
