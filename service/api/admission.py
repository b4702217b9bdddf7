"""Limits of what one caller has under way, so that no caller takes the service from the others.

A caller is a user with all of the user's keys, the local token, or the address of a request without a token. Look-ups of keys are
counted apart. The request guard takes a :class:`Ticket` for each request and gives it back after the answer. A request over a
limit is refused before its body is read. A request within the limits waits for a turn if its caller has many others running: it
then holds no thread.
"""

import threading
from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from anyio import CapacityLimiter, WouldBlock
from anyio.lowlevel import RunVar

from service.api.problems import Problem, ProblemType
from service.config.settings import Settings
from service.domain.access import Identity

TURNS: Final = 16
"""Requests of one caller that run at a time on the 40 threads that answer requests, and quick ones of each method without."""

LARGE: Final = 2
"""Large bodies that are acted on at a time, one for each caller: they compute without a pause, and so delay all others."""

_TICKET: Final = "ticket"
_ALL: Final = ("all", "")

Caller = tuple[str, str]
"""What names the caller, and its name."""


class _Turn(NamedTuple):
    """What requests wait for, and whose they are."""

    kind: str
    caller: Caller


class _Kind(NamedTuple):
    """``caller_setting`` and ``total_setting`` name the settings with the limits. ``retry_s`` is the value of ``Retry-After``."""

    what: str
    caller_setting: str
    total_setting: str | None
    total_problem: ProblemType
    retry_s: int


class Bound(Enum):
    """What is limited for each caller, and some of it for all callers together."""

    REQUESTS = _Kind("requests", "caller_requests_max", "connections_max", ProblemType.UNAVAILABLE, 1)
    HEAVY = _Kind(
        "plans, forecasts and snapshots",
        "caller_heavy_requests_max",
        "heavy_requests_max",
        ProblemType.UNAVAILABLE,
        5,
    )
    STREAMS = _Kind(
        "open event streams", "caller_event_streams_max", "event_streams_max", ProblemType.TOO_MANY_REQUESTS, 10
    )
    BODY_BYTES = _Kind("bytes of request bodies", "caller_body_bytes_max", None, ProblemType.UNAVAILABLE, 1)


class Admission:
    """Counts of one application. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = Counter[Bound]()
        self._of: dict[Caller, Counter[Bound]] = {}

    def under_way(self, bound: Bound) -> int:
        """The total of all callers."""
        return self._totals[bound]

    def take(self, settings: Settings, caller: Caller, bound: Bound, amount: int, own: int) -> None:
        """Count ``amount`` more for the caller, one of whose requests has taken ``own`` and takes these too.

        Raises Problem (429 or 503), and then counts nothing.
        """
        if not amount:
            return
        kind = bound.value
        with self._lock:
            mine = self._of.get(caller, Counter())
            most = getattr(settings, kind.caller_setting)
            # A single body always passes: body_bytes_max limits it.
            alone = bound is Bound.BODY_BYTES and mine[bound] == own
            if mine[bound] + amount > most and not alone:
                detail = f"At most {most} {kind.what} of one caller at a time (setting {kind.caller_setting})."
                raise _refusal(ProblemType.TOO_MANY_REQUESTS, detail, kind.retry_s)
            if kind.total_setting is not None:
                most = getattr(settings, kind.total_setting)
                # An open stream holds a connection too.
                others = self.under_way(Bound.STREAMS) if bound is Bound.REQUESTS else 0
                if self.under_way(bound) + others + amount > most:
                    detail = f"At most {most} {kind.what} of all callers at a time (setting {kind.total_setting})."
                    raise _refusal(kind.total_problem, detail, kind.retry_s)
            mine[bound] += amount
            self._totals[bound] += amount
            self._of[caller] = mine

    def give_back(self, caller: Caller, taken: Mapping[Bound, int]) -> None:
        """Undo :meth:`take`."""
        with self._lock:
            mine = self._of[caller]
            mine.subtract(taken)
            self._totals.subtract(taken)
            if not any(mine.values()):
                del self._of[caller]


@dataclass(slots=True, eq=False)
class Ticket:
    """What one request of a caller has taken. Every ticket must be closed."""

    admission: Admission
    settings: Settings
    caller: Caller
    _taken: Counter[Bound] = field(default_factory=Counter)
    _turns: list[_Turn] = field(default_factory=list)
    _closed: bool = False

    @property
    def is_heavy(self) -> bool:
        """Whether it counts as a heavy request."""
        return self._taken[Bound.HEAVY] > 0

    def take(self, bound: Bound, amount: int = 1) -> None:
        """Count more for this request. Raises Problem (429 or 503). After the request's end it counts nothing."""
        if self._closed:
            # Part of the work outlives a page that was answered with an error.
            return
        self.admission.take(self.settings, self.caller, bound, amount, self._taken[bound])
        self._taken[bound] += amount

    async def wait_for_turn(self, *, is_forwarded: bool, quick: str = "") -> None:
        """Wait until fewer than :data:`TURNS` requests of the caller run.

        Those that other services forward are counted apart: they are never forwarded again, so each of them ends. ``quick``: the
        method of a request that needs none of those threads, or soon waits for a turn with one. Each method has turns of its own,
        so that no look at a job waits for submissions.
        """
        await self._wait(_Turn(f"{'forwarded' if is_forwarded else 'any'} {quick}", self.caller), TURNS)

    async def wait_for_large(self) -> None:
        """Wait until no other large body of the caller, and fewer than :data:`LARGE` of all callers are acted on."""
        await self._wait(_Turn("large", self.caller), 1)
        await self._wait(_Turn("large", _ALL), LARGE)

    def become_stream(self) -> None:
        """Count as an event stream and no longer as a request. Raises Problem (429)."""
        self.take(Bound.STREAMS)
        self.admission.give_back(self.caller, {Bound.REQUESTS: self._taken.pop(Bound.REQUESTS)})
        self.end_turns()

    def close(self) -> None:
        """Give everything back."""
        self._closed = True
        if self._taken:
            self.admission.give_back(self.caller, self._taken)
            self._taken.clear()
        self.end_turns()

    def end_turns(self) -> None:
        """Let waiting requests run instead of this one, which holds no thread from now on."""
        while self._turns:
            turn = self._turns.pop()
            limiter = _limiters()[turn]
            limiter.release_on_behalf_of(self)
            statistics = limiter.statistics()
            if not statistics.borrowed_tokens and not statistics.tasks_waiting:
                del _limiters()[turn]

    async def _wait(self, turn: _Turn, most: int) -> None:
        limiter = _limiters().setdefault(turn, CapacityLimiter(most))
        try:
            limiter.acquire_on_behalf_of_nowait(self)
        except WouldBlock:
            await limiter.acquire_on_behalf_of(self)
        self._turns.append(turn)


_LIMITERS: Final = RunVar[dict[_Turn, CapacityLimiter]]("turns of callers")


def _limiters() -> dict[_Turn, CapacityLimiter]:
    """The limiters that requests hold or wait for, for the running event loop."""
    try:
        return _LIMITERS.get()
    except LookupError:
        made: dict[_Turn, CapacityLimiter] = {}
        _LIMITERS.set(made)
        return made


def caller_name(identity: Identity) -> Caller:
    """The name under which requests of this identity are counted."""
    if identity.user is not None:
        return "user", identity.user
    return ("key", identity.key_id) if identity.key_id is not None else ("local token", "")


def keep_ticket(scope: MutableMapping[str, Any], ticket: Ticket) -> None:
    """Store the ticket with the request."""
    scope[_TICKET] = ticket


def ticket_of(scope: Mapping[str, Any]) -> Ticket:
    """The ticket of the request."""
    found = scope[_TICKET]
    assert isinstance(found, Ticket)
    return found


def _refusal(kind: ProblemType, detail: str, retry_s: int) -> Problem:
    return Problem(kind, detail, headers={"Retry-After": str(retry_s)})
