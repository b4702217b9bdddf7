"""What the answers of an engine say about the submissions of one attempt."""

from policies.model.ids import AttemptId
from service.executors.cluster.driver import EngineEnd, EngineJob, EngineJobState
from service.executors.cluster.submissions import FORGOTTEN_S, Submissions

ATTEMPT = AttemptId("1.1")


def job(
    engine_id: str = "7", state: EngineJobState = EngineJobState.RUNNING, end: EngineEnd | None = None
) -> EngineJob:
    return EngineJob(engine_id, ATTEMPT, state, ("a", "b"), {"a": (1,), "b": (0, 2)}, end)


def test_an_answer_asked_before_an_uncertain_submit_says_nothing_about_it() -> None:
    made = Submissions()
    seen = [made.certain]
    made.note_uncertain(10.0)
    made.observe([], 9.0)
    seen.append(made.certain)
    assert made.observe([], 11.0), "that it is certain now is a change"
    assert [*seen, made.certain] == [True, False, True]


def test_a_submission_is_forgotten_after_some_time_without_it() -> None:
    made = Submissions()
    made.add("7", 10.0)
    made.observe([], 9.0)
    made.observe([], 11.0)
    made.observe([], 11.0 + FORGOTTEN_S - 0.1)
    assert (made.alive, made.forgotten) == (["7"], False)
    made.observe([], 11.0 + FORGOTTEN_S)
    assert (made.alive, made.forgotten, made.ids) == ([], True, ["7"])


def test_one_incomplete_answer_forgets_nothing() -> None:
    made = Submissions()
    made.observe([job()], 10.0)
    made.observe([], 11.0)
    made.observe([job()], 12.0)
    made.observe([], 11.0 + FORGOTTEN_S)
    assert made.alive == ["7"]


def test_an_end_is_final_and_outlives_the_engines_memory() -> None:
    made = Submissions()
    made.observe([job(state=EngineJobState.ENDED, end=EngineEnd.COMPLETED)], 10.0)
    assert not made.observe([job()], 11.0), "an answer that was on its way"
    made.observe([], 100.0)
    made.observe([], 200.0)
    assert (made.alive, made.forgotten) == ([], False)
    end = made.end(set())
    assert end is not None
    assert end.end is EngineEnd.COMPLETED


def test_the_end_that_tells_most_counts_and_not_that_of_a_cancelled_duplicate() -> None:
    made = Submissions()
    made.observe(
        [
            job("7", EngineJobState.ENDED, EngineEnd.COMPLETED),
            job("8", EngineJobState.ENDED, EngineEnd.CANCELLED),
            job("9", EngineJobState.ENDED, EngineEnd.NODE_FAILED),
        ],
        10.0,
    )
    assert [made.end(cancelled).id for cancelled in (set(), {"9"}, {"8", "9"})] == ["9", "8", "7"]  # type: ignore[union-attr]
    assert made.end({"7", "8", "9"}) is None


def test_gpus_are_those_of_a_submission_that_names_them_for_all_servers() -> None:
    made = Submissions()
    made.add("7", 1.0)
    assert made.gpu_ids(["a", "b"]) is None
    made.observe([job()], 2.0)
    assert made.gpu_ids(["b", "a"]) == ((0, 2), (1,))
    assert made.gpu_ids(["a", "c"]) is None


def test_it_waits_since_its_state_has_changed() -> None:
    made = Submissions()
    made.add("7", 1.0)
    assert made.waits_since_s() == float("inf")
    made.observe([job(state=EngineJobState.PENDING)], 2.0)
    made.observe([job(state=EngineJobState.PENDING)], 5.0)
    assert (made.waits_since_s(), made.pending) == (2.0, ["7"])
    made.observe([job()], 6.0)
    assert (made.waits_since_s(), made.pending) == (6.0, [])
