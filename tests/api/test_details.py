"""What belongs to a job once the loop has worked on it, written by the real store."""

from typing import Any

import pytest
from httpx import Client
from sqlalchemy import insert, select

from policies.lifecycle import AttemptState, Cause, JobState
from policies.model.decision import Change, ChangeKind, Preempt, Start
from policies.model.estimate import Estimate, Prediction, Unit
from policies.model.ids import AttemptId, JobId, ServerIndex
from policies.model.placement import Placement, ServerShare, place
from policies.model.reasons import PROMISED_END, Explanation, Reason
from service.db.tables import ATTEMPTS, EVENTS, PROGRESS
from service.engine.events import JobEvent
from service.engine.ports import CycleBatch, JobWrite
from service.engine.record import AttemptRecord
from tests.api.conftest import NOW_S, World
from tests.api.helpers import admit, assert_problem, graph_job, plain_job

PLACEMENT: Placement = place([ServerShare(ServerIndex(0), 2), ServerShare(ServerIndex(1), 1)])


TWO_STAGES = {"parallelism": {"stages": 2, "replicas": [2, 1], "tensor": [1, 1]}}
STAGES_PLACEMENT = place([ServerShare(ServerIndex(0), 2, (1, 1)), ServerShare(ServerIndex(1), 1, (1, 0))])


def started(
    client: Client,
    world: World,
    number_of_cycle: int = 1,
    body: dict[str, Any] | None = None,
    placement: Placement = PLACEMENT,
) -> int:
    """A job that was submitted, predicted and started in one cycle."""
    job_id = JobId(client.post("/v1/jobs", json=body or plain_job(gpus=3)).json()["id"])
    job = world.store.jobs([job_id])[0]
    attempt = AttemptRecord(
        AttemptId(f"{job_id}.1"), job_id, 1, AttemptState.LAUNCHING, placement, ((0, 1), (3,)), NOW_S + 1
    )
    job.attempt, job.attempts, job.state, job.reason = attempt, 1, JobState.STARTING, Reason.STARTED
    job.version += 1
    points = tuple(float(100 + i) for i in range(10))
    write = JobWrite(
        job,
        job.version - 1,
        events=[
            JobEvent(job_id, NOW_S, None, JobState.QUEUED, Cause.SUBMITTED, Reason.NEW, 1),
            JobEvent(
                job_id,
                NOW_S + 1,
                JobState.QUEUED,
                JobState.STARTING,
                Cause.START_DECIDED,
                Reason.STARTED,
                1,
                attempt.id,
            ),
        ],
        attempts=[attempt],
        requests=[request.id for request in world.store.pending_requests(100) if request.job == job_id],
        prediction=Prediction(Estimate(points, Unit.ITERATIONS, "recurrence: 14 past runs", "m7", 0.5)),
    )
    batch = CycleBatch(
        number_of_cycle,
        NOW_S + 1,
        changes=[Change(ChangeKind.ARRIVED, job_id)],
        actions=[Start(job_id, PLACEMENT), Preempt(JobId(99), job_id)],
        refusals=[(JobId(99), Reason.REFUSED)],
        writes={job_id: write},
        wake_at_s=NOW_S + 60,
        dump={"timers": [1, 2]},
        duration_s={"decide": 0.25},
    )
    assert world.store.commit(batch) == frozenset()
    return job_id


def test_a_started_job_shows_its_prediction_and_servers(client: Client, world: World) -> None:
    job_id = started(client, world)
    body = client.get(f"/v1/jobs/{job_id}").json()
    assert (body["state"], body["reason"], body["attempts"], body["servers"]) == ("starting", "started", 1, ["a", "b"])
    prediction = body["prediction"]
    expected = {
        "job_id": job_id,
        "p10": 101.0,
        "p50": 105.0,
        "p90": 109.0,
        "unit": "iterations",
        "source": "recurrence: 14 past runs",
        "model_version": "m7",
        "seconds_per_unit": 0.5,
        "made_at": "2026-01-01T00:00:01Z",
        "actual": None,
        "scored_at": None,
        "log_error": None,
    }
    assert {key: prediction[key] for key in expected} == expected
    details = client.get(f"/v1/jobs/{job_id}/prediction").json()
    assert {key: details[key] for key in prediction} == prediction
    assert body.pop("plan") is None, "it has none; lists leave it out"
    assert client.get("/v1/jobs").json()["items"] == [body]
    assert client.get("/v1/predictions").json()["items"] == [prediction]
    assert client.get("/v1/predictions", params={"job": job_id + 1}).json() == {"items": [], "next": None}


def test_a_change_of_the_job_changes_its_tag(client: Client, world: World) -> None:
    number = client.post("/v1/jobs", json=plain_job()).json()["id"]
    before = client.get(f"/v1/jobs/{number}").headers["etag"]
    job = world.store.jobs([JobId(number)])[0]
    job.priority, job.version = 4, job.version + 1
    world.store.commit(CycleBatch(1, NOW_S, [], [], writes={job.id: JobWrite(job, job.version - 1)}))
    answer = client.get(f"/v1/jobs/{number}", headers={"If-None-Match": before})
    assert (answer.status_code, answer.json()["priority"]) == (200, 4)
    assert answer.headers["etag"] != before


def test_the_newest_prediction_counts(client: Client, world: World) -> None:
    job_id = started(client, world)
    job = world.store.jobs([JobId(job_id)])[0]
    job.version += 1
    later = Prediction(Estimate((7.0,), Unit.SERVICE_S, "cold start: cluster median"))
    write = JobWrite(job, job.version - 1, prediction=later)
    world.store.commit(CycleBatch(2, NOW_S + 5, [], [], writes={job.id: write}))
    shown = client.get(f"/v1/jobs/{job_id}").json()["prediction"]
    assert (shown["p50"], shown["unit"], shown["model_version"]) == (7.0, "service_s", None)
    sources = [item["source"] for item in client.get("/v1/predictions", params={"job": job_id}).json()["items"]]
    assert sources == ["cold start: cluster median", "recurrence: 14 past runs"]


def test_attempts_show_what_each_gpu_computes(client: Client, world: World) -> None:
    """Stage 0 on both servers, stage 1 on the first: server b is the first node, because it holds stage 0 alone."""
    for cycle, (mode, ranks) in enumerate((("gpu", [1, 2, 0]), ("server", [1, 2, 0])), 1):
        job_id = started(client, world, cycle, body=graph_job(**TWO_STAGES, launch=mode), placement=STAGES_PLACEMENT)
        [attempt] = client.get(f"/v1/jobs/{job_id}/attempts").json()["items"]
        seats = [seat for share in attempt["placement"] for seat in share["seats"]]
        assert [(seat["gpu_id"], seat["stage"], seat["replica"], seat["tensor"]) for seat in seats] == [
            (0, 0, 1, 0),
            (1, 1, 0, 0),
            (3, 0, 0, 0),
        ]
        assert [seat["rank"] for seat in seats] == ranks, mode


def test_attempts_name_servers_and_gpus(client: Client, world: World) -> None:
    job_id = started(client, world)
    [attempt] = client.get(f"/v1/jobs/{job_id}/attempts").json()["items"]
    assert attempt == {
        "id": f"{job_id}.1",
        "job_id": job_id,
        "number": 1,
        "state": "launching",
        "reason": None,
        "reason_sentence": None,
        "placement": [
            {"server": "a", "gpus": 2, "gpu_ids": [0, 1], "seats": []},
            {"server": "b", "gpus": 1, "gpu_ids": [3], "seats": []},
        ],
        "opened_at": "2026-01-01T00:00:01Z",
        "started_at": None,
        "stop_requested_at": None,
        "ended_at": None,
        "exit_code": None,
        "resume_iteration": 0.0,
        "last_iteration": None,
    }


def test_events_tell_the_story_in_order(client: Client, world: World) -> None:
    job_id = started(client, world)
    first = client.get(f"/v1/jobs/{job_id}/events", params={"limit": 1}).json()
    rest = client.get(f"/v1/jobs/{job_id}/events", params={"limit": 1, "after": first["next"]}).json()
    assert rest["next"] is None
    story = [(e["source"], e["target"], e["cause"], e["cycle"]) for e in first["items"] + rest["items"]]
    assert story == [(None, "queued", "submitted", 1), ("queued", "starting", "start_decided", 1)]
    assert rest["items"][0]["attempt_id"] == f"{job_id}.1"


@pytest.mark.parametrize(("hold", "reason"), [(False, "new"), (True, "held")])
def test_the_events_of_a_job_begin_with_its_submission_before_and_after_a_cycle_admits_it(
    client: Client, world: World, hold: bool, reason: str
) -> None:
    job_id = client.post("/v1/jobs", json=plain_job(hold=hold)).json()["id"]
    shown: dict[str, Any] = {"at": "2026-01-01T00:00:00Z", "source": None, "target": "queued", "cause": "submitted"}
    shown |= {"reason": reason, "reason_sentence": Reason(reason).sentence, "attempt_id": None, "detail": ""}
    for number, cycle in ((0, 0), (1, 1)):
        page = client.get(f"/v1/jobs/{job_id}/events").json()
        assert page == {"items": [shown | {"id": number, "cycle": cycle}], "next": None}
        world.now_s += 5.0
        admit(world)


def test_cycles_show_what_was_decided(client: Client, world: World) -> None:
    job_id = started(client, world)
    [summary] = client.get("/v1/cycles").json()["items"]
    assert summary == {
        "number": 1,
        "at": "2026-01-01T00:00:01Z",
        "changes": 1,
        "actions": 2,
        "refusals": 1,
        "wake_at": "2026-01-01T00:01:00Z",
        "duration_s": {"decide": 0.25},
    }
    cycle = client.get("/v1/cycles/1").json()
    assert [action["action"] for action in cycle["actions"]] == ["start", "preempt"]
    assert cycle["actions"][0]["job"] == job_id
    assert cycle["changes"][0]["kind"] == "arrived"
    assert cycle["dump"] == {"timers": [1, 2]}
    assert_problem(client.get("/v1/cycles/2"), "not-found")


def test_an_explanation_has_its_numbers(client: Client, world: World) -> None:
    job_id = JobId(client.post("/v1/jobs", json=plain_job()).json()["id"])
    without = client.get(f"/v1/jobs/{job_id}/explanation").json()
    assert (without["reason"], without["sentence"], without["gpus_free"]) == (
        "new",
        "The next cycle considers the job.",
        None,
    )
    world.explanations[job_id] = Explanation(
        Reason.FRAGMENTED, 8, 9, 5, servers_wanted=2, jobs_ahead=3, waiting_for=(JobId(1),), numbers={"alpha": 1.5}
    )
    answer = client.get(f"/v1/jobs/{job_id}/explanation").json()
    assert answer["sentence"].startswith("Needs 8 GPUs on <=2 servers; 9 free on 5 servers; 3 jobs precede it.")
    numbers = ("gpus_needed", "gpus_free", "servers_with_free_gpus", "servers_wanted", "jobs_ahead")
    assert [answer[key] for key in numbers] == [8, 9, 5, 2, 3]
    assert (answer["reason"], answer["state"], answer["waiting_for"], answer["numbers"]) == (
        "fragmented",
        "queued",
        [1],
        {"alpha": 1.5},
    )
    assert [answer[key] for key in ("will_preempt", "will_be_preempted_by", "preemption_at")] == [[], None, None]


def test_an_explanation_says_when_the_job_was_promised_to_end(client: Client, world: World) -> None:
    job_id = JobId(client.post("/v1/jobs", json=plain_job()).json()["id"])
    world.explanations[job_id] = Explanation(Reason.RESOURCES, 8, 0, 0, numbers={PROMISED_END: 1_800_000_000.0})
    answer = client.get(f"/v1/jobs/{job_id}/explanation").json()
    assert answer["sentence"].endswith(" Promised to end by 2027-01-15T08:00:00Z.")
    assert answer["numbers"] == {"promised_end_s": 1_800_000_000.0}


def test_an_explanation_says_beforehand_which_job_is_preempted_and_when(client: Client, world: World) -> None:
    waits, runs = (JobId(client.post("/v1/jobs", json=plain_job()).json()["id"]) for _ in range(2))
    world.explanations[waits] = Explanation(
        Reason.RESOURCES, 4, 0, 0, will_preempt=(runs, JobId(9)), preemption_at_s=1_800_000_000.25
    )
    world.explanations[runs] = Explanation(
        Reason.STARTED, 4, 0, 0, will_be_preempted_by=waits, preemption_at_s=1_800_000_000.25
    )
    first, second = (client.get(f"/v1/jobs/{job}/explanation").json() for job in (waits, runs))
    assert first["sentence"].endswith(
        f"Will preempt jobs {runs}, 9 at 2027-01-15T08:00:01Z, if nothing changes before."
    )
    assert (first["will_preempt"], first["will_be_preempted_by"]) == ([runs, 9], None)
    assert second["sentence"].endswith(
        f"Job {waits} will preempt it at 2027-01-15T08:00:01Z, if nothing changes before."
    )
    assert (second["will_preempt"], second["will_be_preempted_by"]) == ([], waits)
    assert first["preemption_at"] == second["preemption_at"] == "2027-01-15T08:00:00.250000Z"


def test_an_explanation_says_that_the_last_stop_was_without_a_warning(client: Client, world: World) -> None:
    job_id = started(client, world)
    stop: dict[str, Any] = {"job_id": job_id, "at_s": NOW_S, "source": "preempting", "target": "queued"}
    stop |= {"cause": "stopped", "reason": "preempted", "cycle": 1, "attempt_id": None}
    plain = client.get(f"/v1/jobs/{job_id}/explanation").json()["sentence"]
    for detail in ("Attempt 1 was stopped without a warning.", ""):
        with world.database.writing() as session:
            session.connection().execute(insert(EVENTS), [stop | {"detail": detail}])
        answer = client.get(f"/v1/jobs/{job_id}/explanation").json()
        assert answer["sentence"] == f"{plain} {detail}".rstrip()


def test_an_explanation_says_why_the_last_attempt_failed_until_something_else_happens(
    client: Client, world: World
) -> None:
    job_id = started(client, world)
    plain = client.get(f"/v1/jobs/{job_id}/explanation").json()["sentence"]
    event: dict[str, Any] = {"job_id": job_id, "at_s": NOW_S, "reason": "node_lost", "cycle": 1, "attempt_id": None}
    changes = [("retryable_failure", "the account has too many jobs"), ("start_decided", "")]
    for (cause, detail), more in zip(changes, (" Its last attempt: the account has too many jobs.", ""), strict=True):
        change = {"source": "starting", "target": "queued", "cause": cause, "detail": detail}
        with world.database.writing() as session:
            session.connection().execute(insert(EVENTS), [event | change])
        assert client.get(f"/v1/jobs/{job_id}/explanation").json()["sentence"] == plain + more


def test_logs_come_in_parts(client: Client, world: World) -> None:
    job_id = started(client, world)
    empty = client.get(f"/v1/jobs/{job_id}/logs")
    assert (empty.status_code, empty.content, empty.headers["sooner-next-offset"]) == (200, b"", "0")
    world.logs[job_id, 1] = b"<b>one</b>\n\xff\xfetwo\n"
    answer = client.get(f"/v1/jobs/{job_id}/logs", params={"limit": 11})
    assert answer.content == b"<b>one</b>\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    offset = answer.headers["sooner-next-offset"]
    rest = client.get(f"/v1/jobs/{job_id}/logs", params={"offset": offset, "attempt": 1})
    assert rest.content == b"\xff\xfetwo\n"
    assert rest.headers["sooner-log-bytes"] == "17"
    assert client.get(f"/v1/jobs/{job_id}/logs", params={"offset": -4}).content == b"two\n"
    assert_problem(client.get(f"/v1/jobs/{job_id}/logs", params={"attempt": 2}), "not-found")
    for query in ({"limit": 0}, {"limit": 2**21}, {"offset": "x"}, {"attempt": 0}, {"node": -1}):
        assert_problem(client.get(f"/v1/jobs/{job_id}/logs", params=query), "invalid-parameter")


def test_a_log_is_that_of_the_newest_attempt_unless_one_is_named(client: Client, world: World) -> None:
    job_id = started(client, world)
    world.logs = {(job_id, 1): b"first", (job_id, 2): b"second"}
    with world.database.writing() as session:
        connection = session.connection()
        first = dict(connection.execute(select(ATTEMPTS).where(ATTEMPTS.c.job_id == job_id)).mappings().one())
        connection.execute(insert(ATTEMPTS), [first | {"id": f"{job_id}.2", "number": 2}])
    read = [client.get(f"/v1/jobs/{job_id}/logs", params=params).content for params in ({}, {"attempt": 1})]
    assert read == [b"second", b"first"]


def test_each_server_may_have_a_log_of_its_own(client: Client, world: World) -> None:
    job_id = started(client, world)
    world.logs[job_id, 1] = b"first\n"
    world.node_logs[1] = b"second\n"
    read = [client.get(f"/v1/jobs/{job_id}/logs", params={"node": node}) for node in (0, 1, 2)]
    assert [answer.content for answer in read[:2]] == [b"first\n", b"second\n"]
    assert_problem(read[2], "not-found")
    assert read[2].json()["detail"] == f"The attempt of job {job_id} has 2 servers, from 0 on: none is 2."
    world.node_logs.clear()
    assert client.get(f"/v1/jobs/{job_id}/logs", params={"node": 1}).content == b""


def test_progress_is_read_back_in_order(client: Client, world: World) -> None:
    job_id = started(client, world)
    lines = [
        {
            "job_id": job_id,
            "attempt_id": f"{job_id}.1",
            "at_s": NOW_S + i,
            "iteration": 10.0 * i,
            "loss": 1 / i,
            "input_s": 0.5 * i,
        }
        for i in (1, 2, 4)
    ]
    with world.database.writing() as session:
        session.connection().execute(insert(PROGRESS), lines)
    page = client.get(f"/v1/jobs/{job_id}/progress", params={"limit": 2}).json()
    rest = client.get(f"/v1/jobs/{job_id}/progress", params={"limit": 2, "after": page["next"]}).json()
    assert [line["iteration"] for line in page["items"] + rest["items"]] == [10.0, 20.0, 40.0]
    last = rest["items"][0]
    assert (last["loss"], last["input_s"], last["at"]) == (0.25, 2.0, "2026-01-01T00:00:04Z")


def test_a_finished_job_takes_no_requests(client: Client, world: World) -> None:
    job_id = JobId(client.post("/v1/jobs", json=plain_job()).json()["id"])
    job = world.store.jobs([job_id])[0]
    job.state, job.reason, job.finished_at_s, job.version = JobState.CANCELLED, Reason.CANCELLED_BY_USER, NOW_S + 9, 1
    world.store.commit(CycleBatch(1, NOW_S, [], [], writes={job_id: JobWrite(job, 0)}))
    body = client.get(f"/v1/jobs/{job_id}").json()
    assert (body["state"], body["finished_at"], body["eta_reason"]) == ("cancelled", "2026-01-01T00:00:09Z", None)
    for action in ("cancel", "hold", "release"):
        detail = assert_problem(client.post(f"/v1/jobs/{job_id}/{action}"), "job-finished")["detail"]
        assert "cancelled" in detail


def attempt_post(client: Client, attempt: str, token: str | None, line: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {"Authorization": ""}
    return client.post(f"/v1/attempts/{attempt}/progress", json=line, headers=headers)


def test_an_attempts_token_opens_its_progress_and_nothing_else(client: Client, world: World) -> None:
    world.attempt_tokens.update({"1.1": "first", "2.1": "second"})
    line = {"iteration": 1200, "total_iterations": 5000, "checkpoint_iteration": 1000, "loss": 0.31, "accuracy": "high"}
    answer = attempt_post(client, "1.1", "first", line)
    assert (answer.status_code, answer.content) == (202, b"")
    taken = {"iteration": 1200.0, "total_iterations": 5000.0, "checkpoint_iteration": 1000.0, "loss": 0.31}
    assert world.progress == [("1.1", taken)]
    for attempt, token in (("1.1", "second"), ("1.1", world.token), ("3.1", "first"), ("1.1", None), ("1.1", "")):
        assert_problem(attempt_post(client, attempt, token, line), "unauthorized")
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/cluster"), ("GET", "/v1/jobs/1/logs")):
        answer = client.request(method, path, headers={"Authorization": "Bearer first"})
        assert_problem(answer, "unauthorized")
    assert len(world.progress) == 1


@pytest.mark.parametrize(
    ("line", "pointer"),
    [
        ({}, "/iteration"),
        ({"iteration": -1}, "/iteration"),
        ({"iteration": "7"}, "/iteration"),
        ({"iteration": None}, "/iteration"),
        ({"iteration": 1, "total_iterations": -1}, "/total_iterations"),
        ({"iteration": 1, "checkpoint_iteration": 2}, ""),
        ({"iteration": 1e13}, "/iteration"),
        ([1], ""),
    ],
)
def test_progress_that_says_nothing_is_refused(client: Client, world: World, line: Any, pointer: str) -> None:
    world.attempt_tokens["1.1"] = "first"
    assert_problem(attempt_post(client, "1.1", "first", line), "invalid-body", [pointer])
    assert not world.progress


@pytest.mark.parametrize("attempt", ["1", "x.1", "1.0", "1.1.1", "..%2f..", "01.1", "1.1%00"])
def test_an_attempts_id_is_two_numbers(client: Client, attempt: str) -> None:
    answer = client.post(f"/v1/attempts/{attempt}/progress", json={"iteration": 1})
    assert answer.status_code in (400, 401, 404, 422)
    kinds = {400: "bad-request", 401: "unauthorized", 404: "not-found", 422: "invalid-parameter"}
    assert_problem(answer, kinds[answer.status_code])
