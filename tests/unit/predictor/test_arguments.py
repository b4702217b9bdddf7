"""The same program started with other arguments."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.estimate import EndedJob, Unit
from predictor.arguments import PARTS_MAX, ArgumentRuns, described, parsed, usual_exponent
from predictor.dataset import Knowledge, replay
from predictor.features import NAMES
from predictor.recurrence import Level
from predictor.rows import ended_row, read_jsonl, row_to_dict, rows_to_jsonl
from predictor.serving import LivePredictor
from tests.unit.predictor.predictor_history import ended, request


def _numbers(*command: str) -> dict[str, float]:
    return {name: round(math.exp(value), 9) for name, value in parsed(described(command)).numbers.items()}


def test_numbers_are_found_in_every_usual_spelling() -> None:
    assert _numbers("python", "t.py", "--epochs", "10", "--lr=3e-4", "-n", "2") == {
        "epochs": 10.0,
        "lr": 3e-4,
        "n": 2.0,
    }
    assert _numbers("t.py", "trainer.max_epochs=5", "--Num-Train-Epochs", ".5") == {
        "trainer.max_epochs": 5.0,
        "num_train_epochs": 0.5,
    }
    assert _numbers("bash", "-c", "exec python t.py --steps 7 && echo") == {"steps": 7.0}
    # The number of a positional argument is its name.
    assert _numbers("train", "30", "--fast", "--quiet") == {"2": 30.0}
    # What is no positive amount is a word.
    assert _numbers("t", "--a", "-1", "--b=0", "--c", "1e999", "--d=nan", "--e=1_0") == {}


def test_words_tell_only_whether_two_runs_were_started_alike() -> None:
    one, same, other = (parsed(described(["t.py", *rest])) for rest in (["--arch=a"], ["--arch", "a"], ["--arch", "b"]))
    assert one == same
    assert len(one.words ^ other.words) == 2
    assert described(["t.py", "--x", "--y"]) == described(["t.py", "--y", "--x"])
    assert "arch" not in described(["t.py", "--arch=a"])
    assert described([]) == ""
    assert len(described([f"--o{number}={number}" for number in range(1, 500)]).split()) == PARTS_MAX


@pytest.mark.parametrize(
    "told",
    [
        ("--api-key", "4242"),
        ("--password=4242",),
        ("DB_PASSWORD=4242",),
        ("--auth.token", "4242"),
        ("--wandb_key=4242",),
        ("--note", "4242-x"),
    ],
)
def test_values_of_secrets_are_left_out(told: tuple[str, ...]) -> None:
    """By the name of the option, and by the value of a secret variable of the job's environment."""
    without = described(["t.py", "--max-tokens", "9"])
    assert described(["t.py", "--max-tokens", "9", *told], ["4242"]) == without
    if told[0] != "--note":
        assert described(["t.py", "--max-tokens", "9", *told]) == without, "the name alone tells that it is a secret"
    spec = replace(ended(1).spec, command=("t.py", *told), env={"KEY": "4242"}, secret_env=("KEY",))
    row = ended_row(replace(ended(1), spec=spec))
    assert "4242" not in json.dumps(row_to_dict(row))
    assert row.submission.arguments == described(["t.py"])


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_command_is_described_in_one_line_and_read_again(command: list[str]) -> None:
    text = described(command)
    found = parsed(text)
    assert len(text.splitlines()) <= 1
    assert len(found.numbers) + len(found.words) == len(text.split())
    assert all(math.isfinite(value) for value in found.numbers.values())


@pytest.mark.parametrize(
    "name", ["epochs", "n_epochs", "max_steps", "trainer.max_epochs", "num_iters", "total_timesteps"]
)
def test_lengths_are_known_by_name(name: str) -> None:
    assert usual_exponent(name) == 1.0


@pytest.mark.parametrize(
    "name",
    ["lr", "seed", "warmup_steps", "save_steps", "gradient_accumulation_steps", "steps_per_epoch", "stepsize", "2"],
)
def test_other_numbers_do_not_scale_until_that_is_learnt(name: str) -> None:
    assert usual_exponent(name) == 0.0


def _runs(*runs: tuple[str, float], gpus: int = 1) -> ArgumentRuns:
    found = ArgumentRuns()
    for text, total in runs:
        found.add(gpus, text, math.log(total))
    return found


def test_one_run_is_enough_to_scale_by_epochs() -> None:
    runs = _runs(("epochs=10.0 lr=0.1", 600.0))
    assert math.exp(runs.point(1, "epochs=50.0 lr=0.5")) == pytest.approx(3_000.0)
    assert math.exp(runs.point(1, "lr=0.5")) == pytest.approx(600.0)
    assert math.isnan(ArgumentRuns().point(1, "epochs=50.0"))


def test_what_scales_is_learnt_from_runs_that_differ() -> None:
    """An unusual name that scales, a usual one that does not (it stops early), one by which the total is divided, and a seed."""
    draw = random.Random(1)
    drawn = [[draw.choice((1, 2, 5, 10, 20)) for _ in range(4)] for _ in range(20)]
    runs = _runs(
        *(
            (f"batch={batch}.0 epochs={epochs}.0 kimg={kimg}.0 seed={seed}.0", 1_000.0 * kimg / batch)
            for batch, epochs, kimg, seed in drawn
        )
    )
    assert runs.exponents == {"batch": -1.0, "epochs": 0.0, "kimg": 1.0, "seed": 0.0}
    assert math.exp(runs.point(1, "batch=8.0 epochs=900.0 kimg=64.0 seed=2.0")) == pytest.approx(8_000.0)


def test_the_most_alike_runs_count() -> None:
    runs = _runs(*(("epochs=1.0 #a", 100.0),) * 4, *(("epochs=1.0 #b", 700.0),) * 4, *(("epochs=1.0 #c", 900.0),) * 4)
    assert math.exp(runs.point(1, "epochs=2.0 #b")) == pytest.approx(1_400.0)
    # A variant that never ran: all of them.
    assert math.exp(runs.point(1, "epochs=1.0 #d")) == pytest.approx(700.0)
    for _ in range(3):
        runs.add(2, "epochs=1.0 #b", math.log(350.0))
    assert math.exp(runs.point(2, "epochs=1.0 #b")) == pytest.approx(350.0)
    assert math.exp(runs.point(1, "epochs=1.0 #b")) == pytest.approx(700.0)


def _sweep(first: int = 0) -> list[EndedJob]:
    """One program with 1, 2, 5 and 50 epochs in turn, of 60 s each, one after the other."""
    return [
        ended(
            job,
            None,
            submitted_at_s=10_000.0 * job,
            service_s=60.0 * epochs,
            command=("python", "train.py", f"--epochs={epochs}"),
        )
        for job, epochs in enumerate([1, 2, 5, 50] * 5, first)
    ]


def test_the_models_learn_from_what_alike_runs_say() -> None:
    base = NAMES.index("base")
    found = [examples[Unit.SERVICE_S] for _, examples in replay(map(ended_row, _sweep()), Knowledge())]
    for example in found[1:]:
        assert example.base == example.features[base] == pytest.approx(example.label)
    plain = [replace(ended_row(job), submission=replace(ended_row(job).submission, arguments="")) for job in _sweep()]
    last = [examples[Unit.SERVICE_S] for _, examples in replay(plain, Knowledge())][-1]
    assert math.exp(last.base) == pytest.approx(120.0)


def test_no_name_or_hash_becomes_a_number() -> None:
    """Another script, other options and other values of words: the same features and points."""

    def seen(script: str, option: str, variant: str) -> list[tuple[object, ...]]:
        rows = [
            ended_row(
                replace(
                    job,
                    spec=replace(
                        job.spec, command=(script, option, job.spec.command[-1][9:], f"--v={variant}{at % 2}")
                    ),
                )
            )
            for at, job in enumerate(_sweep())
        ]
        return [
            (each.features, repr(each.baselines))
            for _, examples in replay(rows, Knowledge())
            for each in examples.values()
        ]

    assert seen("a.py", "--epochs", "x") == seen("zzz", "--max-steps", "other")


def test_a_served_prediction_knows_the_arguments_also_after_a_restart() -> None:
    lived, restarted = LivePredictor(), LivePredictor()
    lived.warm([])
    for job in _sweep():
        lived.predict(
            job.submitted_at_s, [request(int(job.job), submitted_at_s=job.submitted_at_s, command=job.spec.command)]
        )
        lived.ended(job)
    restarted.warm(_sweep())
    new = [
        request(100 + epochs, command=("python", "train.py", "--epochs", str(epochs)), submitted_at_s=1e6)
        for epochs in (1, 50, 500)
    ]
    answers = [predictor.predict(1e6, asked) for predictor in (restarted, lived) for asked in (new, new[::-1])]
    for first, second in zip(answers[0], answers[1][::-1], strict=True):
        assert first is not None and second is not None
        assert first.estimate == second.estimate
        assert first.features == second.features
    sources = [answer.estimate.source for answer in answers[0] if answer is not None]
    assert sources[0] == "recurrence: 20 past runs, median 190 s, 60 s by those started alike"
    assert sources[2] == "recurrence: 20 past runs, median 190 s, 30,000 s by those started alike"
    for first, second in zip(answers[0], answers[2], strict=True):
        assert first is not None and second is not None
        assert first.features == second.features
    learnt = [answer.estimate.median for answer in answers[2] if answer is not None]
    assert 30.0 < learnt[0] < 120.0
    assert 1_500.0 < learnt[1] < 6_000.0


def test_the_same_command_in_another_folder_is_another_training() -> None:
    """Nothing else tells the runs apart: 100 s in one folder, 10,000 s in the other, one after the other."""
    predictor = LivePredictor()
    command, folders = ("bash", "train.sh"), ("/data/small", "/data/large")
    for n in range(40):
        started: dict[str, Any] = {"command": command, "working_dir": folders[n % 2]}
        predictor.predict(n * 1e5, [request(n, submitted_at_s=n * 1e5, **started)])
        predictor.ended(ended(n, None, submitted_at_s=n * 1e5, service_s=10.0 ** (2 + 2 * (n % 2)), **started))
    asked = [request(100, command=command, working_dir=folder, submitted_at_s=1e7) for folder in (*folders, None)]
    small, large, unknown = (answer.estimate for answer in predictor.predict(1e7, asked) if answer is not None)
    assert small.source.endswith(" 100 s by those started alike")
    assert large.source.endswith(" 10,000 s by those started alike")
    assert small.median < 300.0 and large.median > 3_000.0
    assert small.median < unknown.median < large.median


def test_a_folder_is_hashed_and_left_out_where_it_holds_a_secret() -> None:
    command = ["t.py"]
    assert "small" not in described(command, (), "/small")
    assert described(command, (), "/small") not in (described(command), described(command, (), "/large"))
    assert described(command, ["4242"], "/runs/4242") == described(command)
    assert described([], (), "/small") == ""


def test_programs_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.history.PROGRAMS_MAX", 2)
    knowledge = Knowledge()
    jobs = [ended(job, command=("t.py",), name=f"p{job}") for job in range(3)]
    for job in jobs:
        knowledge.end(ended_row(job))
    history = knowledge.history[Unit.SERVICE_S]
    points = [history.by_arguments(ended_row(job).submission) for job in jobs]
    assert [math.isnan(point) for point in points] == [True, False, False]
    assert history.group(Level.RECURRENCE, ended_row(jobs[0]).submission.recurrence) is not None


def test_arguments_reach_the_training(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows_to_jsonl(path, _sweep())
    assert list(read_jsonl(path)) == [ended_row(job) for job in _sweep()]
    assert '"arguments": "epochs=50.0 #' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("ran", "asked", "says"), [("1e-320", "10", "1,000,000,000,000 s"), ("1", "1e-320", "1 s")])
def test_a_total_beyond_all_limits_is_told_at_the_limit(ran: str, asked: str, says: str) -> None:
    predictor = LivePredictor()
    runs = [("t.py", "--epochs", ran)] * 3
    predictor.warm(ended(n, None, submitted_at_s=n * 1e4, service_s=100.0, command=run) for n, run in enumerate(runs))
    (answer,) = predictor.predict(1e6, [request(9, command=("t.py", "--epochs", asked))])
    assert answer is not None
    assert answer.estimate.source == f"recurrence: 3 past runs, median 100 s, {says} by those started alike"
