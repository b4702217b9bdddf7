"""A running job reports its total, or its loss: the estimate changes, the policy ranks anew, and both stores keep it."""

from collections.abc import Callable, Sequence

import pytest

from policies.lifecycle import JobState
from policies.model.decision import Change, ChangeKind
from policies.model.estimate import (
    Attained,
    EndedJob,
    Estimate,
    LossCurve,
    Prediction,
    PredictionRequest,
    Reported,
    Unit,
)
from policies.model.ids import JobId
from predictor.serving import LivePredictor
from service.db.history import ended_jobs
from service.db.prediction_log import first_predictions
from service.db.session import Database
from service.engine.events import Report, ReportKind
from tests.parity.test_engine_story import in_both
from tests.scenarios.dsl import Story, cluster, policy
from tests.unit.predictor.predictor_history import ended


def progress(story: Story, name: str, iteration: float, total: float | None) -> Story:
    """The job reports how far it is, and its total."""
    at_s = story.clock.now_s()
    return story.says(
        Report(ReportKind.PROGRESS, at_s, story.attempt(name), iteration=iteration, total_iterations=total)
    )


def test_a_job_that_names_a_larger_total_makes_way(story: Story) -> None:
    story.job("long", runs_s=5_000, predicted=100.0).job("short", runs_s=60, at_s=50.0).until(60)
    assert story.state("short") is JobState.QUEUED, "60 s are no reason to stop what had 50 s left"
    story.told.revised[story.ids["long"]] = (5_000.0,)
    told: list[Change] = []
    story.log.cycle = lambda batch: told.extend(batch.changes)  # type: ignore[method-assign]
    progress(story, "long", 50.0, 5_000.0).until(62)
    assert story.record("long").estimate == Estimate((5_000.0,), Unit.SERVICE_S, "told", seconds_per_unit=1.0)
    assert Change(ChangeKind.ESTIMATED, story.ids["long"]) in told
    story.until(70)
    assert story.state("short") is JobState.RUNNING
    story.to_the_end()
    assert story.told.learnt[-1].reported_iterations == 5_000.0


def test_what_it_named_is_kept_over_a_restart(story: Story) -> None:
    story.job("a", runs_s=5_000, predicted=100.0).until(50)
    story.told.revised[story.ids["a"]] = (900.0, 1_100.0)
    progress(story, "a", 50.0, 1_000.0).until(51)
    progress(story, "a", 60.0, 3_000.0).until(60)
    story.restart().until(61)
    record = story.record("a")
    assert record.estimate is not None
    assert record.estimate.points == (900.0, 1_100.0)
    assert record.reported_iterations == 1_000.0, "the least total that it has named"
    progress(story, "a", 70.0, 2_000.0).until(70)
    story.to_the_end()
    assert [label.reported_iterations for label in story.told.learnt] == [1_000.0]


def test_its_losses_are_kept_over_a_restart(story: Story) -> None:
    story.job("a", runs_s=100, predicted=100.0).until(10)
    for at_s, iteration, loss in ((10, 1.0, 4.0), (20, 2.0, 3.0)):
        story.says(Report(ReportKind.PROGRESS, at_s, story.attempt("a"), iteration=iteration, loss=loss)).until(
            at_s
        ).restart().until(at_s + 1)
    assert story.record("a").loss_curve == LossCurve((1.0, 2.0), (4.0, 3.0))
    story.to_the_end()
    assert [label.loss_curve for label in story.told.learnt] == [LossCurve((1.0, 2.0), (4.0, 3.0))]


def test_a_predictor_that_breaks_over_a_report_breaks_nothing_else(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.job("a", runs_s=100, predicted=100.0).until(50)
    monkeypatch.setattr(story.told, "revise", lambda now_s, reported: 1 / 0)
    progress(story, "a", 50.0, 1_000.0).until(50)
    assert story.engine.counters["prediction_failures"] == 1
    assert story.record("a").iterations == 50.0
    story.until(100).finishes("a")


@pytest.mark.parametrize("total", [None, 0.0])
def test_no_total_no_question(story: Story, total: float | None) -> None:
    story.job("a", runs_s=100, predicted=100.0, declared_iterations=60).until(50)
    story.told.revised[story.ids["a"]] = (900.0,)
    progress(story, "a", 50.0, total).until(50)
    assert story.told.revised, "nothing was asked"
    progress(story, "a", 61.0, total).until(61)
    assert not story.told.revised, "it has outlived what it declared"


class _Learns:
    """The live predictor as a scenario's."""

    def __init__(self) -> None:
        self.live = LivePredictor()
        self.live.warm([ended(-job, None, submitted_at_s=-1e4 * job, service_s=95.0 + job) for job in range(1, 30)])
        self.learnt: list[EndedJob] = []

    def predict(self, now_s: float, requests: Sequence[PredictionRequest]) -> Sequence[Prediction | None]:
        return self.live.predict(now_s, requests)

    def watch(self, attained: Callable[[JobId, float], Attained | None]) -> None:
        pass

    def revise(self, now_s: float, reported: Sequence[Reported]) -> Sequence[Prediction | None]:
        return self.live.revise(now_s, reported)

    def ended(self, label: EndedJob) -> Sequence[JobId]:
        self.learnt.append(label)
        return self.live.ended(label)


def test_the_live_predictor_weighs_what_a_job_names_and_the_tables_keep_both_answers(database: Database) -> None:
    story = cluster("1x1", policy("asrpt"))
    in_both(story, database)
    live = _Learns()
    story.told = live  # type: ignore[assignment]
    live.points = {}  # type: ignore[attr-defined]
    story.engine = story._engine()
    job = {"user": "ada", "project": "vision", "runs_s": 2_000.0}
    story.job("resnet", **job).until(20)
    before = story.record("resnet").estimate
    assert before is not None
    assert before.source.startswith("recurrence on other GPU counts: 29 past runs")
    progress(story, "resnet", 10.0, 1_000.0).until(40)
    assert story.record("resnet").estimate == before, "its speed is not known yet"
    progress(story, "resnet", 20.0, 1_000.0).until(40)
    after = story.record("resnet").estimate
    assert after is not None
    assert after.source == f"{before.source}; it reports 1,000 iterations in all, which weighs 50%"
    # 10 iterations took 20 s, so 980 more take 1,960 s.
    assert max(after.points) > 1_900.0
    assert sum(point > 1_000.0 for point in after.points) == 16
    ((_, first),) = first_predictions(database, 10)
    assert first.estimate == before, "what is scored is what was said first"
    story.to_the_end()
    (label,) = ended_jobs(database)
    assert label.reported_iterations == live.learnt[0].reported_iterations == 1_000.0
