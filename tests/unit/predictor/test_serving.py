"""Serving with a model: weights, and the effect of swapping, drifting or failing models."""

import gc
import math
import pickle
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.model.estimate import EndedJob, Prediction, PredictionRequest, Unit
from policies.model.ids import JobId
from policies.model.job import ArrayPlace
from predictor import features, serving
from predictor.aggregation import LEARNT
from predictor.dataset import FIRST_ENDS, TELLING_RUNS, Knowledge, replay
from predictor.experts import BASIC
from predictor.feature_schema import schema
from predictor.forest import QuantileForest
from predictor.retraining import RetrainingPredictor
from predictor.rows import ended_row
from predictor.serving import LivePredictor
from predictor.training import ESTIMATORS, TrainedModel
from tests.unit.predictor.predictor_history import ended, recurring_history, request, small_model


def _warm() -> LivePredictor:
    predictor = LivePredictor()
    predictor.warm(recurring_history(240, reports=False))
    return predictor


def _ask(job: int = 5_000) -> PredictionRequest:
    return request(job, name="program3", user="user3", gpus=2)


def _run(job: int, service_s: float) -> EndedJob:
    return ended(job, None, submitted_at_s=1e6 + job, service_s=service_s, name="program3", user="user3", gpus=2)


def test_importing_the_live_predictor_loads_no_learning_library() -> None:
    code = (
        "import sys, predictor.serving;"
        "print([m for m in ('sklearn', 'xgboost', 'quantile_forest', 'scipy', 'skops') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_promoted_model_answers_and_says_so_and_every_expert_shadows() -> None:
    predictor, model = _warm(), small_model()
    (before,) = predictor.predict(0.0, [_ask()])
    predictor.use(model)
    (after,) = predictor.predict(0.0, [_ask()])
    assert before is not None
    assert after is not None
    assert before.estimate.model_version == ""
    assert after.estimate.model_version == f"{model.version}/aggregation"
    assert after.estimate.source.startswith(f"{before.estimate.source}; weights: ")
    assert after.estimate.points != before.estimate.points
    assert after.features == before.features
    assert after.feature_schema == schema()
    names = {shadow.model_version for shadow in after.shadows}
    models = {f"{model.version}/{kind}" for kind in (*ESTIMATORS, "aggregation")}
    asleep = {"first_runs", "recurrence_arguments"}  # a known program, started without a command line
    assert names == {*(f"baseline/{name}" for name in BASIC if name not in asleep), *models}
    for shadow in after.shadows:
        assert len(shadow.points) == len(LEARNT)
        assert (np.diff(shadow.points) >= 0.0).all()
    predictor.use(None)
    assert predictor.predict(0.0, [_ask()]) == [before]


def test_what_is_served_is_the_weighted_mixture_of_the_experts() -> None:
    predictor = _warm()
    predictor.use(small_model())
    (answer,) = predictor.predict(0.0, [_ask()])
    assert answer is not None
    said = {shadow.model_version.rpartition("/")[2]: np.log(shadow.points) for shadow in answer.shadows}
    (head,) = small_model().heads.values()
    weights = head.aggregation.weights(3)
    awake = [index for index, name in enumerate(head.aggregation.experts) if name in said]
    quantiles = np.array([said[head.aggregation.experts[index]] for index in awake])
    middle = LEARNT.tolist().index(0.5)
    share = weights[awake, middle] / weights[awake, middle].sum()
    # An expert that says one value for several levels is at the middle of them.
    below, upto = (
        share @ [LEARNT[np.searchsorted(each, said["aggregation"][middle] + off).clip(0, 8)] for each in quantiles]
        for off in (-0.05, 0.05)
    )
    assert below - 0.25 <= 0.5 <= upto + 0.25
    assert (said["aggregation"] >= quantiles.min(axis=0) - 1e-6).all()
    assert (said["aggregation"] <= quantiles.max(axis=0) + 1e-6).all()
    assert answer.estimate.point is not None
    assert np.log(answer.estimate.point) == pytest.approx(said["aggregation"][middle], abs=1e-6)


def test_the_weights_start_from_the_models_own_test_and_follow_the_jobs_that_end() -> None:
    """In service each run ends before the next one comes. The past is right every time and the model far off."""
    predictor = _warm()
    predictor.use(small_model())
    (head,) = small_model().heads.values()
    before = predictor.status().buckets[Unit.SERVICE_S][3]
    middle = LEARNT.tolist().index(0.5)
    assert list(before.weights.values()) == pytest.approx(head.aggregation.weights(3)[:, middle].tolist())
    assert before.jobs == head.aggregation.labels[3]
    rng = np.random.default_rng(0)
    for job in range(7_000, 7_200):
        at_s = 1e6 + 3_600.0 * (job - 7_000)
        predictor.predict(at_s, [replace(_ask(job), submitted_at_s=at_s)])
        run = _run(job, float(np.exp(4.0 + 0.01 * rng.normal())))
        predictor.ended(replace(run, submitted_at_s=at_s, ended_at_s=at_s + run.service_s))
    after = predictor.status().buckets[Unit.SERVICE_S][3]
    assert after.jobs > before.jobs + 100
    assert (
        sum(after.weights[kind] for kind in ESTIMATORS) < 0.02 < 0.1 < sum(before.weights[kind] for kind in ESTIMATORS)
    )


def test_a_batch_answers_as_single_questions_do() -> None:
    jobs = [request(6_000 + i, name=f"program{i % 12}", user=f"user{i % 6}", gpus=1 + i % 3) for i in range(40)]
    together, alone = _warm(), _warm()
    for predictor in (together, alone):
        predictor.use(small_model())
    batch = together.predict(0.0, jobs)
    singles = [alone.predict(0.0, [job])[0] for job in jobs]
    assert batch == singles


def test_a_model_that_breaks_sleeps_and_the_other_experts_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = _warm()
    predictor.use(small_model())

    def broken(self: QuantileForest, matrix: object) -> np.ndarray:
        raise MemoryError("no room")

    monkeypatch.setattr(QuantileForest, "predict_quantiles", broken)
    (answer,) = predictor.predict(0.0, [_ask()])
    assert answer is not None
    names = {shadow.model_version.rpartition("/")[2] for shadow in answer.shadows}
    assert "quantile_forest" not in names
    assert "xgboost" in names
    assert answer.estimate.model_version.endswith("/aggregation")
    assert "the other experts answer" in caplog.text


def _erring_from(predictor: LivePredictor, first: int, count: int, *, seconds_apart: float = 1.0) -> None:
    """Runs that take 60 s, of which from the 201st on every third takes a hundred times as long: no interval follows that."""
    for job in range(first, first + count):
        predictor.predict(0.0, [_ask(job)])
        service_s = 60.0 if job < first + 200 or job % 3 else 6_000.0
        at_s = 1e6 + (job - first) * seconds_apart
        predictor.ended(replace(_run(job, service_s), submitted_at_s=at_s, ended_at_s=at_s + 1.0))


def test_errors_that_have_grown_raise_an_alarm_of_which_a_new_champion_is_free() -> None:
    predictor = _warm()
    predictor.use(small_model())
    _erring_from(predictor, 7_000, 320, seconds_apart=3_600.0)
    assert predictor.status().drifting[Unit.SERVICE_S]
    assert predictor.status().drift_alarms == {Unit.SERVICE_S: 1, Unit.ITERATIONS: 0}
    predictor.use(small_model())
    assert predictor.status().drift_alarms[Unit.SERVICE_S] == 1
    assert not predictor.status().drifting[Unit.SERVICE_S], "a new champion is not blamed for the old one's errors"


def test_what_is_served_follows_the_jobs_that_end() -> None:
    """The whole family suddenly takes 5 times as long; the model is not retrained, but what is served moves there."""
    predictor = _warm()
    predictor.use(small_model())
    (before,) = predictor.predict(0.0, [_ask(8_000)])
    assert before is not None
    for job in range(8_001, 8_121):
        predictor.predict(0.0, [_ask(job)])
        predictor.ended(_run(job, 5.0 * before.estimate.median))
    (after,) = predictor.predict(0.0, [_ask(8_200)])
    assert after is not None
    assert after.estimate.median > 3.0 * before.estimate.median


def test_pending_predictions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PENDING_MAX", 3)
    predictor = _warm()
    predictor.predict(0.0, [_ask(job) for job in range(10)])
    assert predictor.status().pending == 3
    predictor.ended(ended(9, None, service_s=5.0))
    assert predictor.status().pending == 2


def test_a_preview_drops_no_pending_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PENDING_MAX", 3)
    predictor = _warm()
    predictor.predict(0.0, [_ask(job) for job in (1, 2, 3)])
    predictor.preview(0.0, [_ask(2**31), _ask(2**31 + 1)])
    assert list(predictor._pending) == [1, 2, 3]
    assert predictor._knowledge.open_jobs.all() == [1, 2, 3]


def test_nobody_waits_for_the_models_that_answer_a_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduling loop reports ends while a plan of a thousand jobs is predicted."""
    predictor = _warm()
    predictor.use(small_model())
    running, over = threading.Event(), threading.Event()

    def slow(model: TrainedModel, queries: Sequence[Any]) -> None:
        running.set()
        assert over.wait(60.0)

    monkeypatch.setattr(serving, "run_models", slow)
    thread = threading.Thread(target=predictor.preview, args=(0.0, [_ask(2**31)]))
    thread.start()
    try:
        assert running.wait(60.0)
        reporter = threading.Thread(target=predictor.ended, args=(_run(9_000, 50.0),), daemon=True)
        reporter.start()
        reporter.join(30.0)
        assert not reporter.is_alive()
    finally:
        over.set()
        thread.join(60.0)


def _elements(array: int, count: int) -> list[PredictionRequest]:
    places = [ArrayPlace(index, count, JobId(array)) for index in range(count)]
    asks = [_ask(array + place.index) for place in places]
    return [replace(ask, spec=replace(ask.spec, array=place)) for ask, place in zip(asks, places, strict=True)]


def test_the_elements_of_an_array_share_one_prediction_and_are_scored_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    run_models = serving.run_models

    def counted(model: TrainedModel, queries: Sequence[Any]) -> None:
        asked.append(len(queries))
        run_models(model, queries)

    monkeypatch.setattr(serving, "run_models", counted)
    predictor = _warm()
    predictor.use(small_model())
    first, second, single = _elements(6_000, 5), _elements(7_000, 3), _ask(8_000)
    answers = predictor.predict(0.0, [*first, single, *second])
    assert asked == [3]
    assert len({id(answer) for answer in answers[:5]}) == 1
    assert len({id(answer) for answer in answers[6:]}) == 1
    assert answers[0] == _predicted(first[0])
    assert predictor.status().pending == 9
    kept = [predictor._pending[request.job] for request in first]
    assert all(each.features is kept[0].features and each.shadow_logs is kept[0].shadow_logs for each in kept)
    for asked_again in first:
        predictor.ended(_run(int(asked_again.job), 100.0))
    assert predictor.status().pending == 4
    predictor.predict(0.0, [_ask(8_001)])
    assert predictor._pending[JobId(8_001)].names is kept[0].names, "also of another batch"


def _predicted(asked: PredictionRequest) -> Prediction | None:
    predictor = _warm()
    predictor.use(small_model())
    return predictor.predict(0.0, [asked])[0]


def test_restored_elements_share_what_is_kept_where_they_saw_the_same_past() -> None:
    past = recurring_history(240, reports=False)
    between = ended(400, None, submitted_at_s=5e6, service_s=50.0, name="program3", user="user3", gpus=2)
    waiting = [replace(_ask(job), submitted_at_s=at_s) for job, at_s in ((6_000, 4e6), (6_001, 4e6), (6_002, 6e6))]
    answer = _predicted(waiting[0])
    assert answer is not None
    restored, alone = LivePredictor(), LivePredictor()
    restored.warm([*past, between], waiting, [(each.job, answer) for each in waiting])
    alone.warm([*past, between], waiting, [(each.job, replace(answer)) for each in waiting])
    first, second, third = (restored._pending[each.job] for each in waiting)
    assert first is second
    assert first.shadow_logs is third.shadow_logs
    assert first.baselines != third.baselines
    for each in waiting:
        assert restored._pending[each.job].baselines == alone._pending[each.job].baselines


def test_one_stored_prediction_is_in_memory_at_a_time() -> None:
    waiting = [_ask(job) for job in range(6_000, 6_010)]
    answers = [answer for answer in _warm().predict(0.0, waiting) if answer is not None]
    assert len(answers) == len(waiting)
    stored = [(each.job, pickle.dumps(answer)) for each, answer in zip(waiting, answers, strict=True)]
    del answers
    alive: list[int] = []

    def read() -> Iterator[tuple[JobId, Prediction]]:
        for job, answer in stored:
            alive.append(sum(isinstance(each, Prediction) for each in gc.get_objects()))
            yield job, pickle.loads(answer)

    LivePredictor().warm(recurring_history(240, reports=False), waiting, read())
    assert max(alive) <= min(alive) + 2


def test_elements_whose_array_has_no_id_yet_are_predicted_alone() -> None:
    plans = [
        replace(ask, spec=replace(ask.spec, array=ArrayPlace(0, 1))) for ask in (_ask(1), request(2, name="other"))
    ]
    first, second = _warm().preview(0.0, plans)
    assert first is not None
    assert second is not None
    assert first.features != second.features


def test_warm_counts_open_jobs_and_labels() -> None:
    predictor = LivePredictor()
    predictor.warm(recurring_history(50), open_jobs=[request(900, submitted_at_s=1e5)])
    assert predictor.status().known_jobs == {Unit.ITERATIONS: 50, Unit.SERVICE_S: 50}
    (answer,) = predictor.predict(0.0, [request(901, submitted_at_s=2e5)])
    assert answer is not None
    assert [answer.features[features.NAMES.index(name)] for name in ("open_recurrence", "open_user")] == [1.0, 1.0]


def test_models_are_swapped_while_jobs_are_predicted() -> None:
    predictor = _warm()
    versions, errors, stop = set(), [], threading.Event()

    def swap() -> None:
        while not stop.is_set():
            predictor.use(small_model())
            predictor.use(None)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for job in range(60):
            for answer in predictor.predict(0.0, [_ask(9_000 + job), _ask(9_100 + job)]):
                if answer is None:
                    errors.append(job)
                else:
                    versions.add(answer.estimate.model_version)
            predictor.ended(_run(9_000 + job, 50.0))
    finally:
        stop.set()
        thread.join(timeout=120)
    assert not thread.is_alive()
    assert not errors
    assert versions <= {"", f"{small_model().version}/aggregation"}


def test_serving_builds_the_very_features_that_training_sees() -> None:
    """The same events, once replayed from rows and once lived through, give the same vectors: no skew."""
    rng = np.random.default_rng(4)
    labels = [
        ended(
            job,
            None,
            submitted_at_s=job * 100.0,
            service_s=float(rng.integers(10, 2_000)),
            name=f"program{rng.integers(4)}",
            user=f"user{rng.integers(3)}",
            gpus=int(rng.integers(1, 3)),
        )
        for job in range(80)
    ]
    trained = {
        row.submission.job: found[Unit.SERVICE_S].features
        for row, found in replay([ended_row(label) for label in labels], Knowledge())
    }
    live = LivePredictor()
    events = [(label.ended_at_s, 0, label.job, label) for label in labels]
    events += [(label.submitted_at_s, 1, label.job, label) for label in labels]
    for at_s, kind, _, label in sorted(events, key=lambda event: event[:3]):
        if kind == 0:
            live.ended(label)
            continue
        # A later job of the same cycle is known too, and must not count as one that was open before.
        later = PredictionRequest(JobId(10_000 + label.job), label.spec, at_s + 1.0)
        answer, _ = live.predict(at_s, [PredictionRequest(label.job, label.spec, at_s), later])
        live.ended(replace(label, job=later.job, service_s=0.0))
        if answer is not None:
            assert answer.features == trained[label.job]


def _sweep(number: int, runs: int, seconds: float) -> list[EndedJob]:
    """Runs of a new program that are submitted at once; the shorter ones end first."""
    at_s, first = 1e5 * (number + 1), 1_000 * (number + 1)
    of = {"name": f"sweep{number}", "user": f"user{number % 2}"}
    return [
        ended(first + run, None, submitted_at_s=at_s, service_s=seconds * (0.8 + 0.4 * run / runs), **of)
        for run in range(runs)
    ]


def test_the_first_ends_of_a_new_program_tell_about_its_other_runs() -> None:
    predictor = LivePredictor()
    predictor.warm(recurring_history(60, reports=False))
    factors: defaultdict[str, list[float]] = defaultdict(list)
    widths: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(12):
        runs = _sweep(number, 30, 300.0 * 7.0 ** (number % 3))
        asked = [PredictionRequest(run.job, run.spec, run.submitted_at_s) for run in runs]
        first = predictor.predict(runs[0].submitted_at_s, asked)[-1]
        told = {1: predictor.ended(runs[0])}
        early = predictor.predict(runs[0].ended_at_s, asked[-1:])[0]
        told |= {count: predictor.ended(run) for count, run in enumerate(runs[1:-1], 2)}
        assert {count for count, jobs in told.items() if jobs} == set(TELLING_RUNS)
        assert all(told[count] == [run.job for run in runs[count:]] for count in TELLING_RUNS)
        again = predictor.predict(runs[-2].ended_at_s, asked[-1:])[0]
        for name, answer in (("first", first), ("early", early), ("again", again)):
            assert answer is not None
            factors[name].append(abs(math.log(answer.estimate.median / runs[-1].service_s)))
            widths[name].append(math.log(answer.estimate.quantile(0.9) / answer.estimate.quantile(0.1)))
        predictor.ended(runs[-1])
    assert np.mean(factors["first"][6:]) > math.log(2.0), "nothing told new programs apart"
    assert np.mean(factors["again"][6:]) < math.log(1.4)
    # What is not told apart yet stays in the interval: a third of experts that learn nothing from one end are still believed.
    assert np.mean(factors["early"][6:]) < math.log(1.7)
    assert np.mean(widths["early"][6:]) < 0.4 * np.mean(widths["first"][6:])
    assert np.mean(widths["again"][6:]) < math.log(1.2)


def test_the_first_ends_of_all_tell_about_the_jobs_of_other_programs() -> None:
    predictor = LivePredictor()
    waiting = request(1_000, name="new")
    assert predictor.predict(0.0, [waiting]) == [None]
    told = {}
    for job in range(1, 25):
        if waiting.job in predictor.ended(ended(job, None, name=f"other{job}", user=f"user{job}")):
            (answer,) = predictor.predict(0.0, [waiting])
            assert answer is not None
            told[job] = answer.estimate.trusted
    assert told == dict.fromkeys(sorted(FIRST_ENDS), False)


def test_a_job_that_is_predicted_again_sees_the_runs_that_came_with_it() -> None:
    predictor = LivePredictor()
    predictor.warm(recurring_history(60, reports=False))
    runs = _sweep(0, 10, 300.0)
    asked = [PredictionRequest(run.job, run.spec, run.submitted_at_s) for run in runs]
    answers = [predictor.predict(runs[0].submitted_at_s, asked)[5]]
    for ended_run in runs[:2]:
        predictor.ended(ended_run)
        answers += predictor.predict(ended_run.ended_at_s, asked[5:6])
    open_runs = [answer and answer.features[features.NAMES.index("open_recurrence")] for answer in answers]
    assert open_runs == [5.0, 8.0, 7.0], "first those before it, later all that still run but itself"


def test_nobody_waits_for_the_ends_of_unnamed_jobs_or_of_one_that_never_ran() -> None:
    predictor = LivePredictor()
    predictor.warm(recurring_history(60, reports=False))
    runs = _sweep(0, 3, 100.0)
    predictor.predict(0.0, [PredictionRequest(run.job, run.spec, run.submitted_at_s) for run in runs])
    predictor.preview(0.0, [PredictionRequest(JobId(9), runs[0].spec, 1e5)])
    assert predictor.ended(replace(runs[0], service_s=0.0)) == []
    assert predictor.ended(runs[1]) == [runs[2].job]
    strangers = [ended(job, None, name="", user="", project="", service_s=60.0) for job in (50, 51)]
    predictor.predict(0.0, [PredictionRequest(each.job, each.spec, 0.0) for each in strangers])
    assert predictor.ended(strangers[0]) == []


def test_the_first_answer_is_the_one_that_is_scored() -> None:
    predictor = LivePredictor()
    predictor.warm([_run(job, 100.0) for job in range(3)])
    (first,) = predictor.predict(0.0, [_ask(50)])
    for job in range(3, 30):
        predictor.ended(_run(job, 900.0))
    (second,) = predictor.predict(0.0, [_ask(50)])
    assert first is not None
    assert second is not None
    assert second.estimate.median > 5.0 * first.estimate.median
    assert first.estimate.point is not None
    predictor.ended(_run(50, 800.0))
    scored = predictor.status().recent_log_error[Unit.SERVICE_S]
    assert scored == pytest.approx(abs(np.log(800.0 / first.estimate.point)))


@pytest.mark.parametrize("broken", ["basis_of", "points_in_units"])
def test_one_job_that_cannot_be_answered_takes_no_other_with_it(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = _warm()
    intact = getattr(serving, broken)
    calls = iter(range(10))

    def sometimes(*arguments: object) -> object:
        if next(calls) == 1:
            raise ArithmeticError("odd job")
        return intact(*arguments)

    monkeypatch.setattr(serving, broken, sometimes)
    answers = predictor.predict(0.0, [_ask(1), _ask(2), _ask(3)])
    assert [answer is None for answer in answers] == [False, True, False]


@pytest.mark.slow
def test_a_predictor_that_retrains_itself_promotes_what_passes_and_repeats_itself() -> None:
    def live_through() -> tuple[list[Prediction | None], RetrainingPredictor]:
        predictor = RetrainingPredictor(seed=1, first_rows=120, growth=10.0)
        for label in recurring_history(130, reports=False):
            predictor.predict(label.submitted_at_s, [PredictionRequest(label.job, label.spec, label.submitted_at_s)])
            predictor.ended(label)
        return predictor.predict(0.0, [_ask()]), predictor

    answers, predictor = live_through()
    assert predictor.trainings == 1
    assert answers == live_through()[0]
    (answer,) = answers
    assert answer is not None
    assert answer.estimate.model_version.endswith("/aggregation")


def test_a_batch_is_answered_as_its_jobs_are_one_by_one() -> None:
    # Of different programs, buckets and calibration: each gets its own numbers and nobody else's.
    asks = [request(5_000 + number, name=f"program{number % 12}", user=f"user{number % 5}") for number in range(40)]
    together, alone = _warm(), _warm()
    for predictor in (together, alone):
        predictor.use(small_model())
    answers = together.predict(0.0, asks)
    assert len({answer.features[0] for answer in answers if answer is not None}) > 2, "several buckets"
    alone.predict(0.0, asks)  # so that the same jobs are open
    assert [alone.predict(0.0, [ask])[0] for ask in asks] == answers


def test_a_history_that_cannot_be_read_leaves_what_is_known_and_keeps_nothing_for_it() -> None:
    predictor, twin = _warm(), _warm()
    meanwhile, later = _run(6_000, 7_000.0), _run(6_001, 9_000.0)

    def breaks() -> Iterator[EndedJob]:
        yield _run(6_002, 5.0)
        predictor.ended(meanwhile)
        raise OSError("the database does not answer")

    with pytest.raises(OSError, match="does not answer"):
        predictor.relearn(breaks)
    predictor.ended(later)
    for label in (meanwhile, later):
        twin.ended(label)
    assert predictor.predict(0.0, [_ask()]) == twin.predict(0.0, [_ask()]) != _warm().predict(0.0, [_ask()])
    assert predictor._ended_meanwhile is None, "later ends would pile up"


def test_an_end_that_is_told_after_it_was_read_counts_once() -> None:
    """The end of a job is stored before the predictor hears of it."""
    predictor, twin = _warm(), _warm()
    for each in (predictor, twin):
        each.predict(0.0, [request(6_000)])
    label = _run(6_000, 7_000.0)
    history = [*recurring_history(240, reports=False), label]
    predictor.relearn(lambda: history)
    predictor.ended(label)
    twin.ended(label)
    assert predictor.status().known_jobs == twin.status().known_jobs
    assert not predictor._known_before
