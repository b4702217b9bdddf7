"""The history store and the features are causal."""

import math
import re
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.estimate import Unit
from predictor import features
from predictor.baselines import BASELINES
from predictor.baselines import NAMES as BASELINE_NAMES
from predictor.dataset import UNITS, Example, Knowledge, replay
from predictor.feature_schema import schema, schema_of
from predictor.history import CLUSTER_LABELS_KEPT, ClusterLabels, Group, OpenJobs
from predictor.intervals import LEVELS
from predictor.recurrence import bucket_of
from predictor.rows import EndedRow, Submission, ended_row
from tests.unit.predictor.predictor_history import ended, recurring_history


def _row(job: int, submitted_at_s: float, service_s: float, **of: object) -> EndedRow:
    values = {"user": "ada", "project": "p", "name": "train", "gpus": 2, **of}
    submission = Submission(job=job, submitted_at_s=submitted_at_s, **values)  # type: ignore[arg-type]
    return EndedRow(submission, submitted_at_s + service_s, None, service_s, "succeeded")


def _examples(rows: list[EndedRow]) -> dict[int, Example]:
    return {row.submission.job: found[Unit.SERVICE_S] for row, found in replay(rows, Knowledge())}


def test_a_group_sums_up_its_newest_labels() -> None:
    group = Group()
    for seconds, failed in ((100.0, False), (300.0, True), (200.0, False)):
        group.add(math.log(seconds), 1.0, 5.0, failed)
    assert group.count == 3
    assert math.exp(group.median) == pytest.approx(200.0)
    assert math.exp(group.last) == pytest.approx(200.0)
    assert math.exp(group.previous) == pytest.approx(300.0)
    assert math.exp(group.last2) == pytest.approx(250.0)
    assert math.exp(group.mean) == pytest.approx(200.0)
    assert group.failed_ratio == pytest.approx(1 / 3)
    # 0.7 (0.7 log 100 + 0.3 log 300) + 0.3 log 200
    assert group.ewma == pytest.approx(0.49 * math.log(100) + 0.21 * math.log(300) + 0.3 * math.log(200))


def test_jobs_of_nobody_are_known_by_what_they_ask_for() -> None:
    """Neither user nor name: what was asked for in the same project tells of the next; a model, where it is named, of all."""
    nobody: dict[str, object] = {"user": "", "name": ""}
    rows = [
        _row(1, 0.0, 100.0, **nobody),
        _row(2, 1_000.0, 7.0, **nobody, gpus=4),
        _row(3, 2_000.0, 7.0, **nobody, walltime_s=60.0),
        _row(4, 3_000.0, 7.0, user="", name="", project="q"),
        _row(5, 4_000.0, 100.0, **nobody),
        _row(6, 5_000.0, 300.0, **nobody, model="bert", gpus=8),
        _row(7, 6_000.0, 300.0, user="", name="", project="q", model="bert", gpus=8),
    ]
    found = _examples(rows)
    median = features.NAMES.index("model.median")
    assert math.exp(found[5].features[median]) == pytest.approx(100.0)
    assert math.exp(found[7].features[median]) == pytest.approx(300.0)
    assert [found[job].features[median] for job in (1, 2, 3, 4, 6)] == [features.MISSING] * 5
    assert [found[job].bucket for job in found] == [0] * 7, "it is no recurrence"


def test_what_was_submitted_lately_with_the_same_request_and_in_the_cluster() -> None:
    """By hand. The newest to end is not the one that was submitted last."""
    nobody: dict[str, object] = {"user": "", "name": ""}
    rows = [
        _row(1, 0.0, 100.0, **nobody),
        _row(2, 40.0, 20.0, **nobody),
        _row(3, 50.0, 5_000.0, **nobody),
        _row(4, 60.0, 5_000.0, **nobody, gpus=4),
        _row(5, 150.0, 10.0, **nobody),
        _row(6, 170.0, 10.0, **nobody, gpus=16),
    ]
    found = _examples(rows)

    def of(job: int, group: str) -> list[float]:
        names = (
            "since_submission_log_s",
            "open",
            "open_log_age_s",
            "open_newest_log_age_s",
            "last_submitted",
            "last_submitted_log_age_s",
        )
        values = [found[job].features[features.NAMES.index(f"{group}_{name}")] for name in names]
        since_s, count, *ages_s, last, last_s = values
        return [
            count,
            *(value if value == features.MISSING else math.expm1(value) for value in (since_s, *ages_s, last_s)),
            last if last == features.MISSING else math.exp(last + found[job].base),
        ]

    missing = features.MISSING
    assert of(1, "cluster") == [0.0, *[missing] * 5]
    assert of(2, "cluster")[:4] == pytest.approx([1.0, 40.0, 40.0, 40.0])
    # Jobs 1 and 2 have ended, at 100 and at 60; job 3 is open, and in the cluster also job 4.
    assert of(5, "request") == pytest.approx([1.0, 100.0, 100.0, 100.0, 110.0, 20.0])
    assert of(5, "cluster") == pytest.approx([2.0, 90.0, 100.0, 90.0, 110.0, 20.0])
    assert of(6, "request") == [0.0, *[missing] * 5]
    assert of(6, "cluster") == pytest.approx([2.0, 20.0, 120.0, 110.0, 20.0, 10.0])


def test_a_group_forgets_beyond_twenty_labels_but_counts_all() -> None:
    group = Group()
    for label in range(25):
        group.add(float(label), 0.0, 0.0, False)
    assert group.count == 25
    assert group.median == pytest.approx(14.5)


def test_cluster_labels_keep_the_newest_in_order_of_size() -> None:
    labels = ClusterLabels()
    for label in range(CLUSTER_LABELS_KEPT + 10):
        labels.add(float(-label))
    assert len(labels) == CLUSTER_LABELS_KEPT
    # Labels -10 .. -2009 remain.
    assert labels.median == pytest.approx(-(10 + 2009) / 2)
    # Of the newest fifty, -1960 .. -2009, each has a fiftieth of the mass.
    quantiles = labels.quantiles
    assert quantiles is not None
    assert quantiles[0] == -2009.0
    assert quantiles[LEVELS.tolist().index(0.05)] == pytest.approx(-2009.0 + 2.0)
    assert quantiles[-1] == -1960.0
    labels.add(5.0)
    assert labels.quantiles[-1] == 5.0


@pytest.mark.parametrize(("count", "bucket"), [(0, 0), (1, 1), (4, 1), (5, 2), (19, 2), (20, 3), (10**6, 3)])
def test_history_buckets(count: int, bucket: int) -> None:
    assert bucket_of(count) == bucket


def test_open_jobs_count_only_earlier_ones_of_the_group() -> None:
    open_jobs = OpenJobs()
    for job, at_s in ((1, 10.0), (2, 20.0), (3, 20.0)):
        open_jobs.add(job, at_s, ("k",))
        open_jobs.add(job, at_s, ("k",))
    assert open_jobs.before("k", 20.0, 2) == (1, 10.0, 10.0)
    assert open_jobs.before("k", 20.0, 3) == (2, 10.0, 0.0)
    assert open_jobs.before("other", 20.0, 3) == (0, 0.0, 0.0)
    open_jobs.remove(1)
    open_jobs.remove(1)
    assert open_jobs.before("k", 30.0, 9) == (2, 10.0, 10.0)


def test_a_job_that_is_asked_about_again_does_not_count_itself() -> None:
    open_jobs = OpenJobs()
    for job, at_s in ((1, 10.0), (2, 20.0), (3, 30.0)):
        open_jobs.add(job, at_s, ("k",))
    assert [open_jobs.before("k", 100.0, job) for job in (1, 2, 3, 9)] == [
        (2, 80.0, 70.0),
        (2, 90.0, 70.0),
        (2, 90.0, 80.0),
        (3, 90.0, 70.0),
    ]
    assert open_jobs.ages_s("k", 100.0, 2, 9) == (70.0, 90.0)
    open_jobs.remove(1)
    open_jobs.remove(3)
    assert open_jobs.before("k", 100.0, 2) == (0, 0.0, 0.0)
    assert open_jobs.ages_s("k", 100.0, 2, 9) == ()


def test_a_job_whose_end_was_lost_is_not_open_for_ever() -> None:
    open_jobs = OpenJobs()
    open_jobs.add(1, 0.0, ("k",))
    assert open_jobs.before("k", 15 * 86_400.0, 2) == (0, 0.0, 0.0)
    open_jobs.add(2, 15 * 86_400.0, ("k",))
    open_jobs.remove(1)
    assert open_jobs.before("k", 15 * 86_400.0, 3) == (1, 0.0, 0.0)


def test_recurrence_baselines_back_off_level_by_level() -> None:
    rows = [
        _row(1, 0.0, 100.0, user="bob", name="other"),
        _row(2, 1_000.0, 400.0),
        _row(3, 2_000.0, 900.0, gpus=8),
        _row(4, 10_000.0, 1.0),  # same request as job 2
        _row(5, 10_000.0, 1.0, gpus=4),  # same program on other GPUs: jobs 2 and 3
        _row(6, 10_000.0, 1.0, name="new"),  # same user
        _row(7, 10_000.0, 1.0, user="eve", name="new"),  # nobody: the cluster's median
    ]
    found = _examples(rows)
    points = {job: math.exp(found[job].base) for job in (4, 5, 6, 7)}
    assert points == pytest.approx({4: 400.0, 5: 600.0, 6: 600.0, 7: 400.0})
    assert [found[job].runs for job in (4, 5, 6, 7)] == [1, 0, 0, 0]
    last = BASELINE_NAMES.index("recurrence_last")
    assert math.exp(found[6].baselines[last]) == pytest.approx(900.0)
    assert math.exp(found[7].baselines[BASELINE_NAMES.index("user_last2")]) == pytest.approx(400.0)
    assert math.isnan(found[1].base)
    assert len(found[4].baselines) == len(BASELINES)


def test_unnamed_jobs_recur_by_user_and_nobodys_jobs_do_not() -> None:
    rows = [
        _row(1, 0.0, 100.0, name=""),
        _row(2, 0.0, 700.0, name="", user=""),
        _row(3, 0.0, 900.0, name="", user=""),
        _row(4, 5_000.0, 1.0, name=""),
        _row(5, 5_000.0, 1.0, name="", user=""),
    ]
    found = _examples(rows)
    assert (found[4].runs, round(math.exp(found[4].base))) == (1, 100)
    assert (found[5].runs, round(math.exp(found[5].base))) == (0, 700)


def test_a_label_counts_from_the_end_and_not_before() -> None:
    rows = [_row(1, 0.0, 100.0), _row(2, 99.0, 50.0), _row(3, 100.0, 50.0)]
    found = _examples(rows)
    assert math.isnan(found[2].base)
    assert math.exp(found[3].base) == pytest.approx(100.0)


_GAPS = st.floats(min_value=0.0, max_value=500.0)
_DURATIONS = st.floats(min_value=1.0, max_value=5_000.0)
_ENDS = st.tuples(_DURATIONS, st.none() | st.floats(1.0, 1e6), st.sampled_from(["succeeded", "failed", "killed"]))
"""What nobody can know before a job's end: how long it ran, its iterations and its final state."""
_OPTIONAL = st.none() | st.floats(min_value=1.0, max_value=1e5)
_REQUESTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["ada", "bob", ""]),
        "project": st.sampled_from(["p", "q", ""]),
        "name": st.sampled_from(["a", "b", ""]),
        "gpus": st.integers(1, 3),
        "model": st.sampled_from(["resnet", ""]),
        "walltime_s": _OPTIONAL,
        "declared_iterations": _OPTIONAL,
        "arguments": st.sampled_from(["", "epochs=1.0 #a", "epochs=5.0 lr=0.1 #a", "epochs=50.0 lr=0.2 #b"]),
    }
)
_JOBS = st.lists(st.tuples(_GAPS, _ENDS, _REQUESTS), min_size=2, max_size=25)


def _ending(row: EndedRow, end: tuple[float, float | None, str]) -> EndedRow:
    duration_s, iterations, final_state = end
    ended_at_s = row.submission.submitted_at_s + duration_s
    return replace(row, service_s=duration_s, ended_at_s=ended_at_s, iterations=iterations, final_state=final_state)


def _rows(jobs: list[tuple[float, tuple[float, float | None, str], dict[str, object]]]) -> list[EndedRow]:
    rows, now_s = [], 0.0
    for job, (gap_s, end, asked) in enumerate(jobs):
        now_s += gap_s
        rows.append(_ending(_row(job, now_s, 1.0, **asked), end))
    return rows


def _seen(rows: list[EndedRow]) -> dict[int, dict[Unit, tuple[object, ...]]]:
    """What a model is shown of each job in each unit; a row that has no label of its own is asked about all the same."""
    knowledge, found = Knowledge(), {}
    ends: list[tuple[float, int, EndedRow]] = []
    for row in rows:
        while ends and ends[0][0] <= row.submission.submitted_at_s:
            knowledge.end(heappop(ends)[2])
        examples = {unit: knowledge.example(row.submission, unit) for unit in UNITS}
        found[row.submission.job] = {
            unit: (each.features, each.runs, repr(each.baselines)) for unit, each in examples.items()
        }
        knowledge.submit(row.submission)
        heappush(ends, (row.ended_at_s, row.submission.job, row))
    return found


@settings(max_examples=100, deadline=None)
@given(jobs=_JOBS, end=_ENDS, data=st.data())
def test_how_a_job_ends_changes_no_feature_of_a_job_submitted_before(
    jobs: list[tuple[float, tuple[float, float | None, str], dict[str, object]]],
    end: tuple[float, float | None, str],
    data: st.DataObject,
) -> None:
    """Both heads; and the replay shows the same as an independent loop over the same rows."""
    rows = _rows(jobs)
    victim = data.draw(st.integers(0, len(rows) - 1))
    changed = [*rows[:victim], _ending(rows[victim], end), *rows[victim + 1 :]]
    until_s = min(rows[victim].ended_at_s, changed[victim].ended_at_s)
    before, after = _seen(rows), _seen(changed)
    for row in rows:
        if row.submission.submitted_at_s < until_s:
            assert before[row.submission.job] == after[row.submission.job]
    for row, examples in replay(rows, Knowledge()):
        for unit, each in examples.items():
            assert (each.features, each.runs, repr(each.baselines)) == before[row.submission.job][unit]


@settings(max_examples=50, deadline=None)
@given(jobs=_JOBS, data=st.data())
def test_jobs_that_come_later_change_no_feature(
    jobs: list[tuple[float, tuple[float, float | None, str], dict[str, object]]], data: st.DataObject
) -> None:
    rows = _rows(jobs)
    first = data.draw(st.integers(1, len(rows)))
    whole, part = _seen(rows), _seen(rows[:first])
    assert part == {job: whole[job] for job in part}


def test_features_are_finite_named_and_versioned() -> None:
    rows = [ended_row(label) for label in recurring_history(60)]
    for found in _examples(rows).values():
        assert len(found.features) == len(features.NAMES)
        assert all(math.isfinite(value) for value in found.features)
    assert len(set(features.NAMES)) == len(features.NAMES)
    assert re.fullmatch(r"features:[0-9a-f]{16}", schema())


def test_the_schema_follows_the_code_and_not_its_words() -> None:
    """Nobody has to think of a version number: a stored model of another vector is refused because its id is another."""
    source = Path(features.__file__).read_text(encoding="utf-8")
    same = source.replace("The features of a job at its submission.", "What a model is shown.") + "\n\n# a remark\n"
    assert same != source
    assert schema_of([same]) == schema_of([source])
    for meant, now in (
        ("declarations.weight > 0.0 else None", "declarations.weight >= 0.0 else None"),
        ("/ 3_600.0 % 24.0", "/ 3_600.0 % 12.0"),
        ('"log_count", "median", "last"', '"log_count", "last", "median"'),
    ):
        assert meant in source
        assert schema_of([source.replace(meant, now)]) != schema_of([source]), now
    assert schema_of([source, ""]) != schema_of(["", ""])


def test_rewritten_code_keeps_the_id_of_equal_features() -> None:
    """Models that were trained before the code was rewritten still load. Another id is right only where a feature changes."""
    assert schema() == "features:51934b5b48e8f77b"


def test_the_gpu_type_is_its_published_speed_in_any_spelling() -> None:
    rows = [ended_row(label) for label in recurring_history(20)]
    at = features.NAMES.index("log_gpu_speed")

    def seen(gpu_type: str) -> set[float]:
        typed = [replace(row, submission=replace(row.submission, gpu_type=gpu_type)) for row in rows]
        return {found.features[at] for found in _examples(typed).values()}

    assert seen("A100 80GB") == seen("nvidia_a100-sxm4-80gb") == {math.log(2.6)}
    assert seen("V100") == {0.0}
    # No type, and one of which nothing is published, are unknown, not slow.
    assert seen("") == seen("virtual") == {features.MISSING}


def test_names_are_never_numbers() -> None:
    """Renaming users and programs consistently changes no feature: no id enters as an ordinal."""
    rows = [ended_row(label) for label in recurring_history(60)]
    renamed = [
        replace(
            row, submission=replace(row.submission, user=f"zz{row.submission.user}", name=row.submission.name[::-1])
        )
        for row in rows
    ]
    assert [e.features for e in _examples(rows).values()] == [e.features for e in _examples(renamed).values()]


def test_ten_thousand_programs_and_one_never_seen() -> None:
    rows = [_row(job, job * 10.0, 5.0, name=f"program{job}", user=f"user{job % 700}") for job in range(10_000)]
    knowledge = Knowledge()
    for _ in replay(rows, knowledge):
        pass
    stranger = Submission(10**6, "nobody", "", "unheard-of", 3, 1e6, model="unknown", gpu_type="Z9")
    example = knowledge.example(stranger, Unit.SERVICE_S)
    assert example.runs == 0
    assert math.exp(example.base) == pytest.approx(5.0)
    cold = features.NAMES.index("cold_level")
    assert example.features[cold] == 3.0
    known = knowledge.example(replace(rows[77].submission, job=10**6 + 1, submitted_at_s=1e6), Unit.SERVICE_S)
    assert (known.runs, known.features[cold]) == (1, 0.0)


def test_a_job_that_never_ran_teaches_nothing_and_is_no_longer_open() -> None:
    knowledge = Knowledge()
    label = ended(1, None, service_s=0.0, final_state="cancelled")
    knowledge.submit(ended_row(label).submission)
    knowledge.end(ended_row(label))
    assert not len(knowledge.history[Unit.SERVICE_S].cluster)
    assert not len(knowledge.history[Unit.ITERATIONS].cluster)
    assert knowledge.example(replace(ended_row(label).submission, job=2), Unit.SERVICE_S).runs == 0
    position = features.NAMES.index("open_recurrence")
    later = replace(ended_row(label).submission, job=2, submitted_at_s=9.0)
    assert knowledge.example(later, Unit.SERVICE_S).features[position] == 0.0
