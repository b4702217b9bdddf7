"""Trouble between the service and its machines: servers out of reach, reports that are late, doubled and out of order, and a
clock that jumps."""

import random
from collections.abc import Sequence

from policies.model.ids import AttemptId, ServerIndex
from service.engine.commands import Command, Launch
from service.engine.events import Report, ReportKind
from service.sim.clock import SimClock
from service.sim.executor import SimulatedExecutor
from tests.scenarios.dsl import Wire

HOUR_S = 3600.0


class JumpyClock:
    """The service's clock, which somebody sets; the machines keep the true time."""

    def __init__(self, true: SimClock) -> None:
        self._true = true
        self.offset_s = 0.0

    def now_s(self) -> float:
        """What the service takes for now."""
        return self._true.now_s() + self.offset_s


class StormyWire(Wire):
    """Between the engine and the machines, in bad weather.

    A server that is ``away`` is said to be down, and neither hears nor is heard, but everything on it runs on: lost is not
    dead. While ``tardy`` reports take up to ``tardy`` seconds, come in any order, and now and then twice.
    """

    def __init__(self, inner: SimulatedExecutor, clock: SimClock, dice: random.Random) -> None:
        super().__init__(inner, inner._cluster)
        self.away: set[ServerIndex] = set()
        self.tardy = 0.0
        self._clock = clock
        self._dice = dice
        self._placed: dict[AttemptId, tuple[ServerIndex, ...]] = {}
        self._due_s: dict[tuple[object, ...], float] = {}

    def leave(self, server: ServerIndex) -> None:
        """The server is out of reach from now on."""
        self.away.add(server)
        self.inner._report(Report(ReportKind.SERVER_DOWN, self._clock.now_s(), server=server))

    def come_back(self, server: ServerIndex) -> None:
        """It is there again, with all that ran on it meanwhile."""
        self.away.discard(server)
        self.inner.repair_server(server)

    def hears(self, attempt: AttemptId) -> bool:
        """Whether the attempt's servers can all be reached."""
        return self.away.isdisjoint(self._placed.get(attempt, ()))

    def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Launch):
                self._placed[command.attempt] = command.placement.servers
        if not self.away:
            super().send(commands)
            return
        self.sent += commands
        if not self.cut:
            self.inner.send([command for command in commands if self.hears(command.attempt)])

    def poll(self) -> Sequence[Report]:
        reports = [report for report in super().poll() if report.attempt is None or self.hears(report.attempt)]
        if not self.tardy:
            return reports
        reports = [report for report in reports if self._has_come(report)]
        self._dice.shuffle(reports)
        return reports + [report for report in reports if self._dice.random() < 0.2]

    def _has_come(self, report: Report) -> bool:
        key = (report.kind, report.attempt, report.server, report.at_s)
        if key not in self._due_s:
            self._due_s[key] = self._clock.now_s() + self._dice.choice((0.0, self._dice.uniform(0.0, self.tardy)))
        return self._due_s[key] <= self._clock.now_s()
