"""Waiting for a service that cannot be reached for a while."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import typer

from service.cli.output import printable
from service.client import ApiError, Unreachable

T = TypeVar("T")

_AWAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses with which a proxy, or a service that starts or has lost its database, says that another time will do."""


class Outages:
    """The times in which the service cannot be reached, for a command that waits them out: jobs survive a restart of the service.

    Each is told once, on standard error.
    """

    def __init__(self) -> None:
        self._told = False

    def answer(self, ask: Callable[[], T]) -> T | None:
        """The answer; None while the service cannot be reached. Whoever gets None pauses and asks again."""
        try:
            answer = ask()
        except (Unreachable, ApiError) as error:
            if isinstance(error, ApiError) and error.status not in _AWAY:
                raise
            if not self._told:
                typer.echo(printable(f"{error}; waiting until it answers again"), err=True)
            self._told = True
            return None
        self._told = False
        return answer
