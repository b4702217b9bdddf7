"""The check of the servers of a large cluster, whose submissions and answers take time on a clock that the tests set."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from policies.model.cluster import Server
from service.engine.ports import Abilities
from service.executors.cluster.checks import SUBMITS_MAX, NodeChecks
from service.executors.cluster.driver import EngineEnd, EngineJob, EngineJobState, EngineNode, NodeLaunch, NodeState
from service.executors.cluster.runtime import CHECKS

SERVERS = 100


class SlowEngine:
    """Implements :class:`service.executors.cluster.driver.EngineDriver`. ``submit_s`` and ``jobs_s``: what a call takes.

    ``answers``: each server says at once that it has no problem; else each submission waits.
    """

    name = "slow engine"
    abilities = Abilities()
    kill_wait_s = 0.0

    def __init__(self, folder: Path, *, answers: bool, submit_s: float = 0.0, jobs_s: float = 0.0) -> None:
        self.folder, self.answers, self.submit_s, self.jobs_s = folder, answers, submit_s, jobs_s
        self.now_s = 0.0
        self.submitted: list[NodeLaunch] = []
        self.submitted_s: list[float] = []
        self.cancelled: set[str] = set()
        self.looks = 0

    def submit(self, launch: NodeLaunch) -> str:
        self.submitted_s.append(self.now_s)
        self.now_s += self.submit_s
        self.submitted.append(launch)
        if self.answers:
            plan = json.loads(launch.plan)
            answer = {"node": launch.shares[0].server, "problems": []}
            (self.folder / CHECKS / plan["nonce"] / plan["answer"]).write_text(json.dumps(answer))
        return str(len(self.submitted))

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled |= set(ids)

    def jobs(self) -> Sequence[EngineJob]:
        self.looks += 1
        self.now_s += self.jobs_s
        end = EngineEnd.COMPLETED if self.answers else None
        state = EngineJobState.ENDED if self.answers else EngineJobState.PENDING
        return [EngineJob(str(n), launch.attempt, state, end=end) for n, launch in enumerate(self.submitted, 1)]

    def nodes(self) -> Sequence[EngineNode]:
        return [EngineNode(Server(f"n{number:03}", 8), NodeState.UP, "") for number in range(SERVERS)]

    def close(self) -> None:
        pass


def checks_of(engine: SlowEngine) -> NodeChecks:
    checks = NodeChecks(engine, engine.folder, lambda check: ("x",), lambda: engine.now_s)
    checks.overlaid(engine.nodes())
    return checks


def up(engine: SlowEngine, checks: NodeChecks) -> int:
    return sum(node.state is NodeState.UP for node in checks.overlaid(engine.nodes()))


def test_servers_take_jobs_while_others_wait_for_the_submission_of_their_check(tmp_path: Path) -> None:
    engine = SlowEngine(tmp_path, answers=True, submit_s=0.1)
    checks = checks_of(engine)
    found, pauses = [], []
    while len(found) < SERVERS and up(engine, checks) < SERVERS:
        pauses.append(checks.step())
        found.append(up(engine, checks))
    assert found == [*range(SUBMITS_MAX, SERVERS, SUBMITS_MAX), SERVERS]
    assert pauses[:-1] == [0.0] * (len(pauses) - 1) and pauses[-1] > 0.0
    assert len({json.loads(launch.plan)["nonce"] for launch in engine.submitted}) == 1


def test_the_time_of_a_check_that_waits_begins_with_its_own_submission(tmp_path: Path) -> None:
    engine = SlowEngine(tmp_path, answers=False, submit_s=50.0)
    checks = checks_of(engine)
    checks.step()
    waited = {str(n): engine.now_s - at_s for n, at_s in enumerate(engine.submitted_s, 1)}
    assert engine.cancelled == {name for name, time_s in waited.items() if time_s >= 600.0} != waited.keys()


def test_looks_at_many_jobs_take_a_part_of_the_time(tmp_path: Path) -> None:
    engine = SlowEngine(tmp_path, answers=False, submit_s=0.1, jobs_s=3.0)
    checks = checks_of(engine)
    while checks.step() == 0.0:
        pass
    assert engine.now_s == pytest.approx(SERVERS * 0.1 + 3.0 * engine.looks)
    assert engine.looks == 1, "the submissions take less than four times as long"


def test_servers_that_were_never_checked_come_before_those_with_a_problem(tmp_path: Path) -> None:
    engine = SlowEngine(tmp_path, answers=True)
    checks = checks_of(engine)
    faulty = [node.server.name for node in engine.nodes()[: SUBMITS_MAX + 4]]
    checks._problems = dict.fromkeys(faulty, "no disk")
    checks._due_s = dict.fromkeys(faulty, 60.0)
    engine.now_s = 100.0
    checks.step()
    assert {launch.shares[0].server for launch in engine.submitted}.isdisjoint(faulty)
