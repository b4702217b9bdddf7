"""How much time a Slurm job asks for: its walltime, the partition's limit, and what is left before a reservation."""

import time
from dataclasses import replace
from typing import Any

import pytest

from service.executors.cluster.driver import NodeState
from service.slurm.commands import SlurmRefused
from tests.scripted_slurm import Scripted
from tests.unit.service.executors.cluster.test_slurm import driver, launch


@pytest.fixture
def commands() -> Scripted:
    return Scripted()


def reserved(name: str, nodes: str, starts_in_s: float) -> str:
    starts_s = int(time.time() + starts_in_s)
    times = f"StartTime={starts_s} EndTime={starts_s + 7200} Duration=02:00:00"
    return f"ReservationName={name} {times} Nodes={nodes} NodeCnt=1 Features=(null) Flags=MAINT TRES=cpu=4 State=INACTIVE\n"


def test_a_job_asks_for_its_walltime_and_what_comes_before_and_after(commands: Scripted) -> None:
    for wanted_s, asked in ((3540.0, "--time=59"), (3540.5, "--time=60"), (3600.0, "--time=60"), (0.5, "--time=1")):
        driver(commands).submit(replace(launch(), limit_s=wanted_s))
        assert asked in commands.last("sbatch")
    commands.limit = "30:00"
    driver(commands).submit(replace(launch(), limit_s=3541.0))
    assert "--time=30" in commands.last("sbatch")


def test_a_job_ends_before_a_reservation_of_its_nodes(commands: Scripted) -> None:
    """Else Slurm would start nothing on these nodes from the day on which maintenance is planned."""
    commands.reservations = reserved("license", "(null)", 60.0) + reserved("fans", "n[1-2]", 7200.0)
    commands.reservations += (
        reserved("later", "n2", 90_000.0) + "ReservationName=odd StartTime=Unknown EndTime=0 Nodes=n1\n"
    )
    one = driver(commands)
    one.nodes()
    for wanted_s, asked in ((None, "--time=119"), (99_000.0, "--time=119"), (1800.0, "--time=30")):
        one.submit(replace(launch(("n4", 1), ("n2", 1)), limit_s=wanted_s))
        assert asked in commands.last("sbatch")
    one.submit(launch(("n4", 1)))
    assert "--time=UNLIMITED" in commands.last("sbatch")


def test_a_slurm_that_shows_no_reservations_has_none(commands: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: str, *arguments: str, **named: Any) -> str:
        if arguments[-1] == "reservation":
            raise SlurmRefused("scontrol: Access/permission denied")
        return Scripted.run(commands, command, *arguments, **named)

    monkeypatch.setattr(commands, "run", run)
    assert [node.state for node in driver(commands).nodes()] == [NodeState.UP, NodeState.UP]


def test_a_node_closes_shortly_before_it_is_reserved(commands: Scripted) -> None:
    commands.reservations = (
        reserved("fans", "n1", 590.0) + reserved("now", "n2", -60.0) + reserved("later", "n2", 900.0)
    )
    first, second = driver(commands).nodes()
    assert (first.state, second.state) == (NodeState.DRAINED, NodeState.UP)
    assert first.detail.startswith("Slurm's reservation 'fans' begins at ")
    commands.node_rows[0]["state_flags"] = ["DRAIN"]
    assert driver(commands).nodes()[0].detail == "IDLE+DRAIN"


def test_jobs_inside_a_reservation_are_not_limited_by_any(commands: Scripted) -> None:
    commands.reservations = reserved("ours", "n1", 300.0)
    one = driver(commands, extra_args=("--reservation=ours",))
    assert {node.state for node in one.nodes()} == {NodeState.UP}
    one.submit(launch())
    assert "--time=UNLIMITED" in commands.last("sbatch")
