"""The shadow policy over HTTP."""

from httpx import Client

from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from service.shadow.agreement import Difference, Tally, Totals
from service.shadow.live import Disagreement, JobOpinion, ShadowReport, Want
from service.shadow.shadow import ShadowState, Status
from tests.api.conftest import NOW_S, World
from tests.api.helpers import assert_problem, plain_job

STATE = ShadowState("sjf", {"preemption": "never"}, "fifo", Status.WATCHING, "", 1, 0, 2)
TOTALS = Totals(
    passes=12,
    skipped=3,
    starts=Tally(6, 2, 2, 3600.0, 7200.0, 360.0),
    preemptions=Tally(0, 1, 0, 0.0, 400.0, 0.0),
    granted_later=1,
    granted_later_s=90.0,
    same_placement=3,
    fewer_servers=2,
    more_servers=1,
    other_servers=0,
)
FIRST = Explanation(Reason.RESOURCES, 4, 2, 1, jobs_ahead=1)
WISH = Disagreement(
    JobId(7), "train", 4, NOW_S - 60.0, Want.START, [("a", 3), ("b", 1)], None, FIRST, "It would start now on a:3 b:1."
)
REPORT = ShadowReport(
    STATE,
    {"tau": "2"},
    NOW_S - 3600.0,
    NOW_S,
    TOTALS,
    [WISH],
    101,
    (Difference(5, NOW_S - 60.0, 1, (JobId(3),), (JobId(7),), 0, (), (JobId(2),)),),
)


def test_the_whole_report(client: Client, world: World) -> None:
    world.shadow = REPORT
    found = client.get("/v1/shadow").json()
    assert (found["policy"], found["options"], found["first_policy"]) == ("sjf", {"preemption": "never"}, "fifo")
    assert found["first_options"] == {"tau": "2"}
    assert (found["status"], found["status_reason"]) == ("watching", None)
    assert (found["since"], found["at"]) == ("2025-12-31T23:00:00Z", "2026-01-01T00:00:00Z")
    assert (found["passes"], found["skipped"], found["overruns"], found["failures"], found["rejected"]) == (
        12,
        3,
        1,
        0,
        2,
    )
    assert found["starts"] == {
        "both": 6,
        "first_only": 2,
        "shadow_only": 2,
        "agreement_ratio": 0.6,
        "both_gpu_s": 3600.0,
        "first_only_gpu_s": 7200.0,
        "shadow_only_gpu_s": 360.0,
        "granted_later": 1,
        "granted_later_s": 90.0,
        "same_placement": 3,
        "fewer_servers": 2,
        "more_servers": 1,
        "other_servers": 0,
    }
    assert found["preemptions"] == {
        "both": 0,
        "first_only": 1,
        "shadow_only": 0,
        "agreement_ratio": 0.0,
        "both_lost_gpu_s": 0.0,
        "first_only_lost_gpu_s": 400.0,
        "shadow_only_lost_gpu_s": 0.0,
    }
    assert found["disagreements"] == [
        {
            "job_id": 7,
            "name": "train",
            "gpus": 4,
            "since": "2025-12-31T23:59:00Z",
            "shadow_wants": "start",
            "servers": [{"server": "a", "gpus": 3}, {"server": "b", "gpus": 1}],
            "for_job_id": None,
            "first_reason": "resources",
            "first_sentence": FIRST.sentence,
            "shadow_sentence": "It would start now on a:3 b:1.",
        }
    ]
    assert found["disagreements_total"] == 101
    assert found["cycles"] == [
        {
            "cycle": 5,
            "at": "2025-12-31T23:59:00Z",
            "starts_both": 1,
            "starts_first_only": [3],
            "starts_shadow_only": [7],
            "preemptions_both": 0,
            "preemptions_first_only": [],
            "preemptions_shadow_only": [2],
        }
    ]


def test_without_a_second_policy_there_is_nothing_to_tell(client: Client) -> None:
    assert "SOONER_SHADOW_POLICY" in assert_problem(client.get("/v1/shadow"), "not-found")["detail"]


def test_an_explanation_tells_what_the_shadow_thinks(client: Client, world: World) -> None:
    client.post("/v1/jobs", json=plain_job())
    assert client.get("/v1/jobs/1/explanation").json()["shadow"] is None
    world.explanations[JobId(1)] = FIRST
    for wants in (Want.START, None):
        world.opinions[JobId(1)] = JobOpinion("sjf", wants, "It would start now on a:4.")
        told = client.get("/v1/jobs/1/explanation").json()
        assert told["shadow"] == {"policy": "sjf", "wants": wants, "sentence": "It would start now on a:4."}
        assert told["sentence"] == FIRST.sentence
