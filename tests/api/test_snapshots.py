"""Recorded cycles over HTTP."""

from dataclasses import replace

from httpx import Client

from policies.model.ids import ServerIndex
from policies.model.server_reservation import ServerReservation
from service.engine.limits import QUEUE, LimitOwner, OwnerLimit, Scope
from service.history.cycle_file import read_cycle
from tests.api.conftest import World
from tests.api.helpers import assert_problem
from tests.unit.service.history.test_replay import recorded, snapshots, with_array


def test_recorded_cycles_are_listed_and_read_back(client: Client, world: World) -> None:
    assert client.get("/v1/snapshots").json() == {"cycles": []}
    kept = snapshots(recorded([(0, 4, 100), (0, 2, 50), (10, 4, 5)], "asrpt"))
    world.snapshots = {each.cycle: each for each in kept}
    cycles = client.get("/v1/snapshots").json()["cycles"]
    assert cycles == sorted(world.snapshots, reverse=True)
    document = client.get(f"/v1/cycles/{cycles[0]}/snapshot").json()
    assert document["schema"] == "sooner.cycle/2"
    again = read_cycle(document)
    assert (again.cycle, again.policy, again.actions) == (cycles[0], "asrpt", list(kept[0].actions))


def test_a_cycle_that_was_not_kept_says_which_are(client: Client) -> None:
    detail = assert_problem(client.get("/v1/cycles/3/snapshot"), "not-found")["detail"]
    assert "newest 20 cycles" in detail
    assert "snapshot_jobs_max" in detail


def test_the_present_is_a_cycle_without_a_decision(client: Client, world: World) -> None:
    detail = assert_problem(client.get("/v1/snapshots/now"), "conflict")["detail"]
    assert "forecast_jobs_max" in detail
    (kept, *_) = snapshots(recorded([(0, 4, 100), (0, 2, 50), (10, 4, 5)], "asrpt"))
    world.present = replace(kept, changes=(), actions=())
    again = read_cycle(client.get("/v1/snapshots/now").json())
    assert (again.cycle, again.changes, again.actions) == (kept.cycle, [], [])
    assert again.world == kept.world


def test_arrays_limits_and_reservations_are_read_back(client: Client, world: World) -> None:
    kept = with_array({"note": "sweep"})
    window = ServerReservation(1, (ServerIndex(0),), 10.0, 20.0, "ada")
    limits = {LimitOwner(Scope.PROJECT, "nlp"): OwnerLimit(4), QUEUE: OwnerLimit(paused=True, pause_reason="disks")}
    kept = replace(kept, world=replace(kept.world, limits=limits, windows=(window,)))
    world.snapshots, world.present = {kept.cycle: kept}, kept
    for path in (f"/v1/cycles/{kept.cycle}/snapshot", "/v1/snapshots/now"):
        again = read_cycle(client.get(path).json()).world
        assert [job.spec for job in again.jobs] == [replace(job.spec, command=(), env={}) for job in kept.world.jobs]
        assert (again.limits, again.windows) == (limits, (window,))
