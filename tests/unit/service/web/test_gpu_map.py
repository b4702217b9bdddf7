"""The map of GPUs: what each cell says, and how large clusters are folded."""

from typing import Any

from service.web.gpu_map import FOLDED_FROM, map_of


def gpu(index: int, state: str = "free", job: int | None = None, stage: int | None = None) -> dict[str, Any]:
    return {"index": index, "state": state, "attempt": None, "job_id": job, "stage": stage, "replica": None}


def server(name: str, *gpus: dict[str, Any], rack: str = "r1", reservation: int | None = None) -> dict[str, Any]:
    return {"server": name, "rack": rack, "gpu_type": "", "state": "up", "reservation": reservation, "gpus": list(gpus)}


def test_a_cell_says_its_state_and_its_job() -> None:
    found = map_of([server("a", gpu(0, "held", 7, 1), gpu(1, "held"), gpu(2), gpu(3, "unusable"))], partial=False)
    (each,) = found["racks"][0]["servers"]
    assert [(cell["kind"], cell["title"]) for cell in each["cells"]] == [
        ("held", "GPU 0: held by job 7, stage 1"),
        ("held", "GPU 1: held"),
        ("free", "GPU 2: free"),
        ("unusable", "GPU 3: unusable"),
    ]
    assert (each["free"], each["jobs"], each["more"]) == (1, [7], 0)


def test_free_gpus_of_a_reserved_server_differ() -> None:
    (each,) = map_of([server("a", gpu(0), gpu(1, "held", 3), reservation=2)], partial=False)["racks"][0]["servers"]
    assert [cell["kind"] for cell in each["cells"]] == ["reserved", "held"]
    assert each["cells"][0]["title"] == "GPU 0: free, reserved"


def test_many_jobs_of_a_server_are_counted() -> None:
    (each,) = map_of([server("a", *(gpu(index, "held", 1 + index // 2) for index in range(12)))], partial=False)[
        "racks"
    ][0]["servers"]
    assert (each["jobs"], each["more"]) == ([1, 2, 3, 4], 2)


def test_servers_are_grouped_by_rack_and_folded_when_there_are_many() -> None:
    few = map_of(
        [server("a", gpu(0)), server("b", gpu(0, "held"), rack="r2"), server("c", gpu(0, "unusable"))], partial=False
    )
    assert [(rack["name"], rack["gpus"], rack["free"], rack["whole"]) for rack in few["racks"]] == [
        ("r1", 2, 1, 1),
        ("r2", 1, 0, 0),
    ]
    assert not few["folded"]
    assert not map_of([server(f"s{number}", gpu(0)) for number in range(FOLDED_FROM - 1)], partial=False)["folded"]
    assert map_of([server(f"s{number}", gpu(0)) for number in range(FOLDED_FROM)], partial=False)["folded"]
