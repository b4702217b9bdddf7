"""The servers as the engine sees them, and the reports of what has changed since the last acknowledged one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.model.cluster import Server
from policies.model.ids import ServerIndex
from service.engine.events import Report, ReportKind
from service.engine.ports import FoundServer, other_gpus
from service.executors.cluster.driver import EngineNode, NodeState

ABSENT_ANSWERS = 3
"""Answers in a row without a server after which it counts as down: an engine that has restarted finds its servers one by one."""

_DOWN = {True: ReportKind.SERVER_DOWN, False: ReportKind.SERVER_UP}
_DRAINED = {True: ReportKind.SERVER_DRAINED, False: ReportKind.SERVER_RETURNED}


@dataclass(slots=True)
class _Server:
    """``server``: as the engine sees it, ``expected``: as the cluster has it.

    ``told_down`` and ``told_drained``: as last acknowledged, None: nothing was.
    """

    server: Server | None = None
    expected: Server | None = None
    address: str = ""
    down: bool = False
    drained: bool = False
    detail: str = ""
    changed_at_s: float = 0.0
    absent: int = 0
    told_down: bool | None = None
    told_drained: bool | None = None

    def found(self, node: EngineNode) -> tuple[tuple[bool, bool], str]:
        """The two flags and the detail after an answer.

        A server that is down may be drained as well: that is unknown until it is up. One with another number of GPUs than
        expected is drained: the engine would refuse attempts that are placed by the expected number.
        """
        if node.state is NodeState.DOWN:
            return (True, self.drained), node.detail
        if other := self.other_gpus():
            return (False, True), other
        return (False, node.state is NodeState.DRAINED), node.detail

    def other_gpus(self) -> str:
        """See :func:`service.engine.ports.other_gpus`."""
        if self.server is None or self.expected is None:
            return ""
        return other_gpus(self.server, self.expected)


class ServerMirror:
    """All servers by name. Not thread-safe. ``engine``: its name, for messages."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._servers: dict[str, _Server] = {}
        self._added: set[str] = set()
        self._untold: dict[str, None] = {}

    def forget_told(self) -> None:
        """Another service may have led since: report the state of every server once."""
        for name, entry in self._servers.items():
            entry.told_down = entry.told_drained = None
            self._untold[name] = None
        self._added.clear()

    def update(self, nodes: Sequence[EngineNode], now_s: float) -> None:
        """Take over an answer of the engine. O(servers)."""
        present = set()
        for node in nodes:
            name = node.server.name
            present.add(name)
            entry = self._servers.get(name)
            if entry is None:
                entry = self._servers[name] = _Server(changed_at_s=now_s)
            if entry.server is None:
                # An expected server that is up from its first answer on changes no flag, but may be stored as down.
                self._untold[name] = None
            entry.server, entry.address, entry.absent = node.server, node.address, 0
            self._set(name, entry, *entry.found(node), now_s)
        for name, entry in self._servers.items():
            if name not in present:
                entry.absent += 1
                if entry.absent >= ABSENT_ANSWERS:
                    self._set(name, entry, (True, entry.drained), f"{self._engine} has no such server", now_s)

    def expect(self, servers: Sequence[Server], now_s: float) -> None:
        """The cluster has these servers. One that the engine never names becomes down."""
        for server in servers:
            entry = self._servers.get(server.name)
            if entry is None:
                entry = self._servers[server.name] = _Server(changed_at_s=now_s)
                self._untold[server.name] = None
            entry.expected = server
            if not entry.down and (other := entry.other_gpus()):
                # It may be stored as drained already, and is reported again when it has the expected number.
                self._set(server.name, entry, (False, True), other, now_s)
                entry.told_drained = None
                self._untold[server.name] = None

    def _set(self, name: str, entry: _Server, flags: tuple[bool, bool], detail: str, now_s: float) -> None:
        if (entry.down, entry.drained) != flags:
            entry.down, entry.drained = flags
            entry.changed_at_s = now_s
            self._untold[name] = None
        entry.detail = detail

    def address(self, name: str) -> str:
        """Under which the other servers reach this one."""
        entry = self._servers.get(name)
        return entry.address if entry is not None and entry.address else name

    def baseline(self) -> list[FoundServer]:
        """All servers that the engine has named, by name. Their states count as reported."""
        for entry in self._servers.values():
            if entry.server is not None:
                entry.told_down, entry.told_drained = entry.down, entry.drained
        return [
            FoundServer(entry.server, entry.drained, entry.down, entry.detail)
            for _, entry in sorted(self._servers.items())
            if entry.server is not None
        ]

    def reports(self, positions: Mapping[str, ServerIndex]) -> list[Report]:
        """What is not acknowledged yet. ``positions``: of the servers of the cluster. O(changed servers)."""
        reports = []
        for name in list(self._untold):
            entry = self._servers[name]
            if name in positions:
                fresh = self._state_reports(entry, positions[name])
                if not fresh:
                    del self._untold[name]
                reports += fresh
            elif entry.server is not None and name not in self._added:
                added = ReportKind.SERVER_ADDED
                reports.append(Report(added, entry.changed_at_s, detail=entry.detail, server_spec=entry.server))
        return reports

    def _state_reports(self, entry: _Server, position: ServerIndex) -> list[Report]:
        kinds = []
        if entry.server is None and entry.absent < ABSENT_ANSWERS:
            return []
        if entry.told_down is not entry.down:
            kinds.append(_DOWN[entry.down])
        if entry.told_drained is not entry.drained:
            kinds.append(_DRAINED[entry.drained])
        return [Report(kind, entry.changed_at_s, server=position, detail=entry.detail) for kind in kinds]

    def acknowledge(self, report: Report, names: Sequence[str]) -> None:
        """The report is committed. ``names``: of the servers of the cluster, by position."""
        if report.server_spec is not None:
            self._added.add(report.server_spec.name)
            return
        if report.server is None or not 0 <= report.server < len(names):
            return
        entry = self._servers.get(names[report.server])
        if entry is None:
            return
        if report.kind in _DOWN.values():
            entry.told_down = report.kind is ReportKind.SERVER_DOWN
        elif report.kind in _DRAINED.values():
            entry.told_drained = report.kind is ReportKind.SERVER_DRAINED
