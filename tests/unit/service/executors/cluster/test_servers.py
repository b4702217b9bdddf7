"""Reports about servers: each change once until it is acknowledged, whatever the engine repeats."""

import pytest

from policies.model.cluster import Server
from policies.model.ids import ServerIndex
from service.engine.events import Report, ReportKind
from service.executors.cluster.driver import EngineNode, NodeState
from service.executors.cluster.servers import ABSENT_ANSWERS, ServerMirror

NAMES = ("node1", "node2")
SERVERS = tuple(Server(name, 4) for name in NAMES)
POSITIONS = {name: ServerIndex(position) for position, name in enumerate(NAMES)}


def answer(*states: NodeState) -> list[EngineNode]:
    """An answer of the engine about node1, node2 and so on."""
    return [EngineNode(Server(f"node{n}", 4), state, f"10.0.0.{n}", state.value) for n, state in enumerate(states, 1)]


def mirror(*states: NodeState) -> ServerMirror:
    """A mirror whose baseline is this answer."""
    made = ServerMirror("engine")
    made.expect(SERVERS, 0.0)
    made.update(answer(*states), 1.0)
    made.baseline()
    return made


def kinds(reports: list[Report]) -> list[tuple[ReportKind, ServerIndex | None]]:
    return [(report.kind, report.server) for report in reports]


def test_nothing_changes_nothing() -> None:
    made = mirror(NodeState.UP, NodeState.DOWN)
    made.update(answer(NodeState.UP, NodeState.DOWN), 2.0)
    assert made.reports(POSITIONS) == []


def test_a_change_is_repeated_until_acknowledged() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    made.update(answer(NodeState.UP, NodeState.DOWN), 2.0)
    (report,) = made.reports(POSITIONS)
    assert (report.kind, report.server, report.at_s, report.detail) == (ReportKind.SERVER_DOWN, 1, 2.0, "down")
    assert made.reports(POSITIONS) == [report]
    made.acknowledge(report, NAMES)
    assert made.reports(POSITIONS) == []


def test_a_change_that_is_undone_before_it_is_acknowledged_is_not_reported() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    made.update(answer(NodeState.UP, NodeState.DOWN), 2.0)
    made.update(answer(NodeState.UP, NodeState.UP), 3.0)
    assert made.reports(POSITIONS) == []


def test_an_acknowledgement_of_an_older_state_does_not_hide_the_newer_one() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    made.update(answer(NodeState.UP, NodeState.DOWN), 2.0)
    (down,) = made.reports(POSITIONS)
    made.update(answer(NodeState.UP, NodeState.UP), 3.0)
    made.acknowledge(down, NAMES)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_UP, 1)]


def test_a_drain_outlives_a_time_in_which_the_server_is_down() -> None:
    made = mirror(NodeState.UP, NodeState.DRAINED)
    made.update(answer(NodeState.UP, NodeState.DOWN), 2.0)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_DOWN, 1)]
    made.acknowledge(made.reports(POSITIONS)[0], NAMES)
    made.update(answer(NodeState.UP, NodeState.UP), 3.0)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_UP, 1), (ReportKind.SERVER_RETURNED, 1)]


def test_a_server_that_is_not_listed_is_down_after_some_answers() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    for _ in range(ABSENT_ANSWERS - 1):
        made.update(answer(NodeState.UP), 2.0)
        assert made.reports(POSITIONS) == []
    made.update(answer(NodeState.UP), 3.0)
    (report,) = made.reports(POSITIONS)
    assert (report.kind, report.detail) == (ReportKind.SERVER_DOWN, "engine has no such server")
    made.acknowledge(report, NAMES)
    made.update(answer(NodeState.UP, NodeState.UP), 4.0)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_UP, 1)]


def test_a_server_that_the_engine_never_names_is_down() -> None:
    made = ServerMirror("engine")
    made.expect((SERVERS[0], Server("strange", 4)), 0.0)
    for _ in range(ABSENT_ANSWERS):
        made.update(answer(NodeState.UP), 2.0)
    found = made.reports({"node1": ServerIndex(0), "strange": ServerIndex(1)})
    assert (ReportKind.SERVER_DOWN, 1) in kinds(found)
    assert [server.server.name for server in made.baseline()] == ["node1"]


@pytest.mark.parametrize("baseline", [False, True])
def test_an_expected_server_that_appears_late_is_reported_as_up(baseline: bool) -> None:
    """It may be stored as down since an earlier start."""
    made = ServerMirror("engine")
    made.expect(SERVERS, 0.0)
    made.update(answer(NodeState.UP), 1.0)
    if baseline:
        made.baseline()
    for report in made.reports(POSITIONS):
        made.acknowledge(report, NAMES)
    made.reports(POSITIONS)
    made.update(answer(NodeState.UP, NodeState.UP), 2.0)
    assert (ReportKind.SERVER_UP, 1) in kinds(made.reports(POSITIONS))


def test_without_a_baseline_every_state_is_reported_once() -> None:
    made = mirror(NodeState.UP, NodeState.DOWN)
    made.forget_told()
    found = made.reports(POSITIONS)
    assert set(kinds(found)) == {
        (ReportKind.SERVER_UP, 0),
        (ReportKind.SERVER_RETURNED, 0),
        (ReportKind.SERVER_DOWN, 1),
        (ReportKind.SERVER_RETURNED, 1),
    }
    for report in found:
        made.acknowledge(report, NAMES)
    assert made.reports(POSITIONS) == []


def test_an_added_server_is_reported_until_acknowledged_and_its_states_once_it_is_in_the_cluster() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    made.update(answer(NodeState.UP, NodeState.UP, NodeState.DRAINED), 2.0)
    (added,) = made.reports(POSITIONS)
    assert (added.kind, added.server_spec) == (ReportKind.SERVER_ADDED, Server("node3", 4))
    made.acknowledge(added, NAMES)
    assert made.reports(POSITIONS) == []
    positions = POSITIONS | {"node3": ServerIndex(2)}
    assert (ReportKind.SERVER_DRAINED, 2) in kinds(made.reports(positions))


def test_a_server_with_another_number_of_gpus_is_drained_until_it_has_the_expected_one() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    other = EngineNode(Server("node2", 3), NodeState.UP, "10.0.0.2")
    made.update([*answer(NodeState.UP), other], 2.0)
    (drained,) = made.reports(POSITIONS)
    assert (drained.kind, drained.server) == (ReportKind.SERVER_DRAINED, 1)
    assert drained.detail == "has 3 GPUs, 4 expected"
    made.acknowledge(drained, NAMES)
    made.update(answer(NodeState.UP, NodeState.UP), 3.0)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_RETURNED, 1)]


def test_a_server_that_is_enrolled_with_another_number_of_gpus_returns_with_the_expected_one() -> None:
    """It was stored as drained; the baseline was read before that."""
    made = mirror(NodeState.UP, NodeState.UP)
    made.expect((SERVERS[0], Server("node2", 8)), 2.0)
    assert kinds(made.reports(POSITIONS)) == [(ReportKind.SERVER_DRAINED, 1)]
    made.update([*answer(NodeState.UP), EngineNode(Server("node2", 8), NodeState.UP, "10.0.0.2")], 3.0)
    assert (ReportKind.SERVER_RETURNED, 1) in kinds(made.reports(POSITIONS))


def test_addresses_are_those_of_the_engine() -> None:
    made = mirror(NodeState.UP, NodeState.UP)
    assert (made.address("node2"), made.address("unknown")) == ("10.0.0.2", "unknown")
