"""Boxes and lines of the drawing of a job's stages."""

from typing import Any

from service.web.stage_drawing import BOXES_MAX, drawing_of


def placed(stages: int, replicas: int, servers: int = 2, names: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    """Stage s is on server s modulo the number of servers."""
    return {
        "servers": [{"server": name} for name in names],
        "stages": [
            {
                "stage": stage,
                "replicas": [
                    {"replica": replica, "gpus": [{"server": stage % servers, "gpu_id": replica, "rank": 0}]}
                    for replica in range(replicas)
                ],
            }
            for stage in range(stages)
        ],
        "edges": [
            {"kind": "activations", "source": stage, "target": stage + 1, "total_bytes": 10.0 ** (6 + stage)}
            for stage in range(stages - 1)
        ]
        + [{"kind": "all_reduce", "source": 0, "target": 0, "total_bytes": 1.0}],
    }


def test_no_boxes_overlap_and_all_are_inside() -> None:
    found = drawing_of(placed(3, 4))
    assert found is not None
    assert len(found["boxes"]) == 12
    for box in found["boxes"]:
        assert 0 <= box["x"] <= found["width"] - box["w"]
        assert 0 <= box["y"] <= found["height"] - box["h"]
        for other in found["boxes"]:
            apart_x = abs(box["x"] - other["x"]) >= box["w"]
            apart_y = abs(box["y"] - other["y"]) >= box["h"]
            assert other is box or apart_x or apart_y


def test_lines_join_neighbours_and_are_dashed_between_servers() -> None:
    found = drawing_of(placed(3, 2))
    assert found is not None
    assert len(found["lines"]) == 4, "two edges, two replicas; the all-reduce is no line"
    assert all(line["dashed"] for line in found["lines"])
    assert found["lines"][0]["thick"] < found["lines"][-1]["thick"]
    same = drawing_of(placed(3, 2, servers=1))
    assert same is not None
    assert not any(line["dashed"] for line in same["lines"])


def test_a_server_has_one_colour_and_its_name_in_the_box() -> None:
    found = drawing_of(placed(4, 1))
    assert found is not None
    colours = [box["colour"] for box in found["boxes"]]
    assert colours[0] == colours[2] != colours[1] == colours[3]
    assert [box["where"][0] for box in found["boxes"]] == ["a", "b", "a", "b"]


def test_names_are_shown_as_text() -> None:
    found = drawing_of(placed(2, 1, names=("\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 80, "b")))
    assert found is not None
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in found["boxes"][0]["title"]
    assert len(found["boxes"][0]["where"]) < 40


def test_without_stages_and_with_too_many_there_is_no_drawing() -> None:
    assert drawing_of(None) is None
    assert drawing_of({"servers": [], "stages": [], "edges": []}) is None
    assert drawing_of(placed(BOXES_MAX, 1)) is not None
    assert drawing_of(placed(BOXES_MAX + 1, 1)) is None
