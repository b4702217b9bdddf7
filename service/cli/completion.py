"""What the shell's Tab key offers: policies, states, columns, and what the service knows of servers and jobs.

A completion never fails: without a service, or with a wrong setting, it offers nothing.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, suppress
from importlib import import_module
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from service.client import Client

JOBS_MAX = 200
"""Newest unfinished jobs that are offered."""

TABLES = {
    **dict.fromkeys(("q", "job list", "job show", "job submit", "job wait"), "job_tables:JOBS"),
    "job attempts": "job_tables:ATTEMPTS",
    "job events": "job_tables:EVENTS",
    **dict.fromkeys(("info", "cluster show"), "cluster:SERVERS"),
    "cluster events": "cluster:SERVER_EVENTS",
    "services": "services:SERVICES",
    "forecast": "forecast:FORECASTS",
    "advise": "advise:ADVICE",
    "shadow": "shadow:JOBS",
    "audit": "access:CHANGES",
    "webhook list": "webhook:WEBHOOKS",
    "webhook deliveries": "webhook:DELIVERIES",
    "queue show": "limits:PAUSES",
    "quota list": "limits:QUOTAS",
    "reservation list": "limits:RESERVATIONS",
    "key list": "access:KEYS",
    "user list": "access:USERS",
    "project list": "access:PROJECTS",
    "model list": "models:MODELS",
    "model serving": "models:SERVED",
    "config show": "admin:SETTINGS",
}
"""The table of each command that has ``--output``."""


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    """The words that continue the last part of a list with commas."""
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{word}" for word in words if word.lower().startswith(last.lower())]


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Columns of the command's table."""
    path = TABLES.get(ctx.command_path.partition(" ")[2])
    if path is None:
        return []
    module, _, name = path.partition(":")
    table = getattr(import_module(f"service.cli.{module}"), name)
    return _matching((column.header.lower() for column in (*table.columns, *table.hidden)), incomplete)


def policies(incomplete: str) -> list[str]:
    """Names of scheduling policies."""
    from policies.registry import policy_names

    return _matching(policy_names(), incomplete)


def states(incomplete: str) -> list[str]:
    """States of jobs."""
    from service.client import TERMINAL_STATES, UNFINISHED_STATES

    return _matching((*UNFINISHED_STATES, *TERMINAL_STATES), incomplete)


def servers(incomplete: str) -> list[str]:
    """Names of servers."""
    return _matching(_asked(lambda client: [server["name"] for server in client.cluster.show()["servers"]]), incomplete)


def jobs(incomplete: str) -> list[str]:
    """Numbers of unfinished jobs, newest first, and the words for several."""
    from service.client import UNFINISHED_STATES

    numbers = _asked(
        lambda client: [str(job["id"]) for job in client.jobs.list(states=UNFINISHED_STATES, limit=JOBS_MAX)]
    )
    return _matching((*numbers, "last", "all"), incomplete)


def _asked(ask: "Callable[[Client], Sequence[str]]") -> Sequence[str]:
    from service.cli.connect import connect

    with suppress(Exception), redirect_stderr(io.StringIO()), connect() as client:
        return ask(client)
    return ()
