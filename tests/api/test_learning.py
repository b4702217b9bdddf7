"""Models, throughput and the requests to train and promote."""

from typing import Any

from httpx import Client
from sqlalchemy import insert

from policies.model.estimate import Unit
from predictor.serving import LivePredictor, PredictorStatus
from service.db.tables import MODELS, THROUGHPUT, TRAINING_RUNS
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem
from tests.unit.predictor.predictor_history import ended, recurring_history, request, small_model


def model_row(name: str, created_at_s: float, state: str = "candidate") -> dict[str, Any]:
    return {
        "id": name,
        "kind": "forest",
        "state": state,
        "trained_until_s": NOW_S,
        "rows": 412,
        "feature_schema": "f1",
        "libraries": {"scikit-learn": "1.7"},
        "metrics": {"mae_s": 12.5},
        "sha256": "0" * 64,
        "path": "/secret/place",
        "created_at_s": created_at_s,
    }


def add_rows(world: World, kind: Any, rows: list[dict[str, Any]]) -> None:
    with world.database.writing() as session:
        session.connection().execute(insert(kind), rows)


def with_fickle_jobs(world: World) -> PredictorStatus:
    """A model, and jobs of a program that no interval fits."""
    world.predictor = LivePredictor(small_model())
    world.predictor.warm(recurring_history(240, reports=False))
    for job in range(1_000, 1_060):
        # A program that takes 60 s, or 6,000 s, as it likes: nobody's intervals hold that.
        world.predictor.predict(0.0, [request(job, name="fickle", gpus=1)])
        service_s = 60.0 if job % 3 else 6_000.0 * (job - 999) ** 2
        world.predictor.ended(ended(job, None, submitted_at_s=1e6 + job, service_s=service_s, name="fickle", gpus=1))
    return world.predictor.status()


def test_what_predicts_and_with_what_weights(client: Client, world: World) -> None:
    status = with_fickle_jobs(world)
    shown = client.get("/v1/predictor").json()
    assert shown["model_version"] == small_model().version
    iterations, seconds = shown["heads"]
    assert (iterations["unit"], seconds["unit"]) == ("iterations", "service_s")
    assert seconds["known_jobs"] == 300
    for bucket, expected in zip(seconds["buckets"], status.buckets[Unit.SERVICE_S], strict=True):
        assert bucket["past_runs"] == expected.bucket
        assert bucket["weights"] == {name: share for name, share in expected.weights.items() if share >= 0.005}
        assert sum(bucket["weights"].values()) > 0.9
        assert (bucket["coverage_80"], bucket["jobs"]) == (expected.coverage, expected.jobs)
    assert [bucket["past_runs"] for bucket in seconds["buckets"]] == ["0", "1-4", "5-19", "20+"]


def test_models_are_listed_newest_first_and_shown(client: Client, world: World) -> None:
    add_rows(world, MODELS, [model_row("m1", 5.0, "champion"), model_row("m3", 7.0), model_row("m2", 7.0)])
    page = client.get("/v1/models", params={"limit": 2}).json()
    rest = client.get("/v1/models", params={"limit": 2, "after": page["next"]}).json()
    assert [model["id"] for model in page["items"] + rest["items"]] == ["m3", "m2", "m1"]
    assert rest["next"] is None
    shown = client.get("/v1/models/m1").json()
    assert shown == rest["items"][0]
    assert (shown["state"], shown["metrics"], shown["created_at"]) == (
        "champion",
        {"mae_s": 12.5},
        "1970-01-01T00:00:05Z",
    )
    assert "/secret/place" not in client.get("/v1/models").text
    assert_problem(client.get("/v1/models/m4"), "not-found")


def test_a_model_is_promoted_by_its_id(client: Client, world: World) -> None:
    add_rows(world, MODELS, [model_row("m1", 5.0)])
    answer = client.post("/v1/models/m1/promote")
    assert (answer.status_code, answer.json()) == (200, {"champion": "m1"})
    assert_problem(client.post("/v1/models/m2/promote"), "not-found")
    assert world.promoted == ["m1"]


def test_a_retraining_starts_or_says_why_not(client: Client, world: World) -> None:
    answer = client.post("/v1/models/train")
    assert (answer.status_code, answer.json()) == (202, {"training_run": 1})
    world.refusal = "A training is at work already."
    assert assert_problem(client.post("/v1/models/train"), "conflict")["detail"] == world.refusal
    add_rows(world, MODELS, [model_row("m1", 5.0)])
    assert assert_problem(client.post("/v1/models/m1/promote"), "conflict")["detail"] == world.refusal
    assert world.trainings == 1


def test_a_retraining_says_how_it_ended(client: Client, world: World) -> None:
    rows = [
        {"started_at_s": 5.0, "ended_at_s": 9.0, "outcome": "promoted", "detail": "m1", "pid": 3},
        {"started_at_s": 7.0, "ended_at_s": None, "outcome": None, "detail": "", "pid": None},
    ]
    add_rows(world, TRAINING_RUNS, rows)
    ended = client.get("/v1/training-runs/1").json()
    assert (ended["outcome"], ended["ended_at"], ended["detail"]) == ("promoted", "1970-01-01T00:00:09Z", "m1")
    assert client.get("/v1/training-runs/2").json()["outcome"] is None
    assert_problem(client.get("/v1/training-runs/3"), "not-found")


def test_the_throughput_table_is_paged_by_its_whole_key(client: Client, world: World) -> None:
    keys = [("ann", "nlp", "gpt", gpus, "A100", spanned) for gpus in (2, 16) for spanned in (1, 2, 10)]
    keys += [("", "", "x", 1, "T4", 1), ("zoë", "", "x", 1, "T4", 1)]
    add_rows(
        world,
        THROUGHPUT,
        [
            {
                "user": user,
                "project": project,
                "name": name,
                "gpus": gpus,
                "gpu_type": gpu_type,
                "servers_spanned": spanned,
                "samples": [0.5, 0.25],
                "median_s_per_iteration": 0.375,
                "count": 2,
                "updated_at_s": NOW_S,
            }
            for user, project, name, gpus, gpu_type, spanned in reversed(keys)
        ],
    )
    found: list[tuple[Any, ...]] = []
    after: str | None = None
    while True:
        page = client.get("/v1/throughput", params={"limit": 3} | ({"after": after} if after else {})).json()
        found += [
            tuple(row[k] for k in ("user", "project", "name", "gpus", "gpu_type", "servers_spanned"))
            for row in page["items"]
        ]
        after = page["next"]
        if after is None:
            break
    assert found == sorted(keys)
    assert (page["items"][0]["count"], page["items"][0]["median_s_per_iteration"]) == (2, 0.375)
