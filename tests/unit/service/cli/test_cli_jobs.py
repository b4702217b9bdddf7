"""Commands about jobs, against the real API."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from policies.model.cluster import Server
from policies.model.ids import JobId
from policies.model.reasons import Explanation, Reason
from service.cli import jobs, output
from service.client import LogChunk, Unreachable
from service.client.jobs import Jobs
from service.db.tables import JOBS
from service.wire.jobs import AcceptedDocument, ExplanationDocument, JobDocument
from tests.api.client import client_of
from tests.api.conftest import app_of
from tests.api.helpers import graph_job
from tests.api.test_details import STAGES_PLACEMENT, TWO_STAGES, started
from tests.api.test_predictions import end, said, take_in
from tests.api.timelines import put
from tests.unit.predictor.predictor_history import small_model
from tests.unit.service.cli.cli_world import CliWorld, cli_world


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def set_job(cli: CliWorld, job_id: int, **values: Any) -> None:
    """Let a job have got somewhere, as the engine would write it."""
    with cli.world.database.writing() as session:
        session.connection().execute(JOBS.update().where(JOBS.c.id == job_id).values(**values))


def jobs_of(text: str) -> list[Mapping[str, Any]]:
    """The jobs of a ``sooner.jobs/1`` document, each checked against the API's own shape."""
    document = json.loads(text)
    assert set(document) == {"schema", "jobs"}
    assert document["schema"] == "sooner.jobs/1"
    for job in document["jobs"]:
        TypeAdapter(JobDocument).validate_python(job)
        assert JobDocument.__required_keys__ <= set(job) <= set(JobDocument.__annotations__)
    found: list[Mapping[str, Any]] = document["jobs"]
    return found


def test_q_shows_unfinished_jobs_in_order_and_says_why_there_is_no_eta(cli: CliWorld) -> None:
    first, second, third = cli.submit(), cli.submit(name="other", user="ben", gpus=1), cli.submit()
    set_job(cli, first, state="succeeded", finished_at_s=1.0)
    result = cli.run("q")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["JOB", "NAME", "USER", "STATE", "REASON", "GPUS", "ITER", "ETA", "SERVERS"]
    assert [line.split() for line in lines[1:]] == [
        [str(second), "other", "ben", "queued", "new", "1", "-/-"],
        [str(third), "digits", "ada", "queued", "new", "2", "-/-"],
    ]
    assert result.stderr == "ETA: No unfinished job has a prediction yet.\n"


def test_q_narrows_by_user_and_prints_ids_or_columns(cli: CliWorld) -> None:
    cli.submit()
    ben = cli.submit(user="ben")
    assert cli.run("q", "--user", "ben", "--quiet").stdout == f"{ben}\n"
    assert cli.run("q", "-o", "user,job").stdout.split() == ["USER", "JOB", "ada", "1", "ben", "2"]
    wrong = cli.run("q", "-o", "user,colour")
    assert wrong.exit_code == 2
    assert "no column 'COLOUR'" in wrong.stderr
    assert "SERVERS" in wrong.stderr


def test_q_shows_the_first_jobs_of_a_long_queue_and_counts_the_rest(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [cli.submit() for _ in range(5)]
    monkeypatch.setattr(jobs, "QUEUE_LIMIT", 3)
    shown = cli.run("q")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [str(job) for job in ids[:3]]
    assert "The first 3 of 5 unfinished jobs are shown; --limit 0 shows all." in shown.stderr
    assert "The first 3 unfinished jobs" in cli.run("q", "--user", "ada").stderr
    for everything in (("q", "--limit", "0"), ("q", "--quiet")):
        result = cli.run(*everything)
        assert len(re.findall(r"^ *\d+", result.stdout, re.MULTILINE)) == 5
        assert "are shown" not in result.stderr
    assert len(jobs_of(cli.run("q", "--json").stdout)) == 5
    assert cli.run("q", "--quiet", "--limit", "2").stdout.split() == [str(job) for job in ids[:2]]


def test_job_list_sorts_and_begins_at_a_time(cli: CliWorld) -> None:
    one, two, three = cli.submit(gpus=2, name="b"), cli.submit(gpus=4, name="a"), cli.submit(gpus=1, name="c")
    set_job(cli, one, submitted_at_s=1_000_000_000.0)

    def ids(*options: str) -> list[int]:
        return [int(word) for word in cli.run("job", "list", "--quiet", *options).stdout.split()]

    assert ids() == [three, two, one]
    assert ids("--sort", "gpus") == [three, one, two]
    assert ids("--sort", "-gpus", "--limit", "1") == [two]
    assert ids("--sort", "name") == [two, one, three]
    set_job(cli, two, finished_at_s=2_000_000_000.0)
    assert ids("--sort", "finished")[0] == two
    assert ids("--since", "2001-01-01") == [three, two, one]
    assert one not in ids("--since", "2020-01-01")
    wrong = cli.run("job", "list", "--sort", "gpu")
    assert wrong.exit_code == 2
    assert "--sort: 'gpu' is not one of" in wrong.stderr
    assert "did you mean 'gpus'?" in wrong.stderr
    assert "did you mean 'queued'?" in cli.run("job", "list", "--state", "queue").stderr


def test_json_is_one_document_and_alone_on_standard_output(cli: CliWorld) -> None:
    job_id = cli.submit()
    result = cli.run("q", "--json")
    assert [job["id"] for job in jobs_of(result.stdout)] == [job_id]
    assert result.stderr == ""
    both = cli.run("q", "--json", "--quiet")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def test_watch_with_json_is_a_document_a_line_until_interrupted(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []

    def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        cli.submit()

    monkeypatch.setattr(output, "pause", pause)
    cli.submit()
    result = cli.run("q", "--watch", "--json")
    assert result.exit_code == 0
    assert [len(jobs_of(line)) for line in result.stdout.splitlines()] == [1, 2]


def test_list_shows_all_states_newest_first(cli: CliWorld) -> None:
    ids = [cli.submit() for _ in range(3)]
    set_job(cli, ids[0], state="failed", finished_at_s=1.0)
    assert cli.run("job", "list", "--quiet").stdout.split() == ["3", "2", "1"]
    assert cli.run("job", "list", "--quiet", "--state", "failed").stdout.split() == ["1"]
    assert cli.run("job", "list", "--quiet", "--limit", "2").stdout.split() == ["3", "2"]
    wrong = cli.run("job", "list", "--state", "sleeping")
    assert wrong.exit_code == 2
    assert "'sleeping' is not one of" in wrong.stderr


def test_a_list_by_number_or_submission_reads_no_more_than_it_shows(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 63,000 jobs it read all of them, to show 50."""
    ids = [str(cli.submit()) for _ in range(5)]
    read: list[int] = []
    list_jobs = Jobs.list

    def spied(noun: Jobs[Any], **filters: Any) -> Any:
        found = list_jobs.__get__(noun, Jobs)(**filters)
        read.append(len(found))
        return found

    monkeypatch.setattr(Jobs, "list", spied)
    for sort, shown in (("job", ids[:2]), ("submitted", ids[:2]), ("-job", ids[:2:-1]), ("-submitted", ids[:2:-1])):
        assert cli.run("job", "list", "--sort", sort, "--limit", "2", "-q").stdout.split() == shown
    assert read == [3, 3, 3, 3]
    note = cli.run("job", "list", "--sort", "job", "--limit", "2").stderr
    assert note.startswith("The first 2 jobs are shown; --limit 0 shows all.")
    since = ("--since", "2020-01-01")
    assert cli.run("job", "list", "--sort", "job", *since, "--limit", "2", "-q").stdout.split() == ids[:2]


def test_list_says_that_it_is_cut_and_gives_programs_all(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LIST_LIMIT", 2)
    ids = [str(cli.submit()) for _ in range(3)]
    cut = cli.run("job", "list")
    assert [line.split()[0] for line in cut.stdout.splitlines()[1:]] == ids[:0:-1]
    assert "The newest 2 jobs are shown; --limit 0 shows all.\n" in cut.stderr
    assert "The first 2 of 3 jobs are shown; --limit 0" in cli.run("job", "list", "--sort", "gpus").stderr
    for arguments, note in {
        ("job", "list"): "The newest job is shown; --limit 0 shows all.\n",
        ("job", "list", "--sort", "gpus"): "The first 1 of 3 jobs is shown; --limit 0 shows all.\n",
        ("q",): "The first 1 of 3 unfinished jobs is shown; --limit 0 shows all.\n",
        ("q", "--user", "ada"): "The first unfinished job is shown; --limit 0 shows all.\n",
    }.items():
        assert note in cli.run(*arguments, "--limit", "1").stderr
    assert "shown" not in cli.run("job", "list", "--limit", "3").stderr
    assert cli.run("job", "list", "--quiet").stdout.split() == ids[::-1]
    assert cli.run("job", "list", "--quiet", "--sort", "job").stdout.split() == ids
    assert len(jobs_of(cli.run("job", "list", "--json").stdout)) == 3
    assert len(jobs_of(cli.run("job", "list", "--json", "--limit", "1").stdout)) == 1


def test_show_is_a_card_for_one_job_and_a_table_for_several(cli: CliWorld) -> None:
    cli.submit()
    cli.submit(name="other")
    card = cli.run("job", "show", "last").stdout
    assert "name" in card.splitlines()[1]
    assert "other" in card
    assert cli.run("job", "show", "last", "--quiet").stdout == "2\n"
    assert cli.run("job", "show", "1-2").stdout.splitlines()[0].startswith("JOB")
    assert [job["id"] for job in jobs_of(cli.run("job", "show", "2,1", "--json").stdout)] == [2, 1]
    missing = cli.run("job", "show", "9")
    assert missing.exit_code == 1
    assert "There is no job 9." in missing.stderr


def test_show_names_the_stage_of_each_gpu(cli: CliWorld) -> None:
    client = client_of(app_of(cli.world, "test"), cli.world.token)
    job_id = started(client, cli.world, body=graph_job(**TWO_STAGES), placement=STAGES_PLACEMENT)
    lines = [line.split(maxsplit=1) for line in cli.run("job", "show", str(job_id)).stdout.splitlines()]
    assert [line[1] for line in lines if line[0] == "stages"] == [
        "a: stage 0 replica 1 on 0, stage 1 replica 0 on 1",
        "b: stage 0 replica 0 on 3",
    ]
    plain = started(client, cli.world, 2)
    assert "stages" not in cli.run("job", "show", str(plain)).stdout


def test_submit_and_show_print_the_plan_of_a_job(cli: CliWorld, tmp_path: Path) -> None:
    cli.world.servers = [Server("a", 8, gpu_type="H100", intra_bytes_s=450e9, nic_bytes_s=400e9)]
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: llama\ncommand: [python, t.py]\nplan:\n  model: llama3-8b\n  megatron: >-\n"
        "    torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --bf16 --seq-length 4096\n"
        "    --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 32 --mtp-num-layers 1\n  recompute: full\n"
    )
    submitted = cli.run("job", "submit", str(file))
    assert submitted.exit_code == 0, submitted.stderr
    plan = "llama3-8b on 8 H100: data 2, tensor 4, micro-batch 1, ZeRO-1, full recomputation"
    assert f"job 1: plan: {plan}\n" in submitted.stderr
    assert "job 1: warning: --mtp-num-layers" in submitted.stderr
    shown = cli.run("job", "show", "1").stdout
    assert re.search(rf"^plan +{plan}$", shown, re.MULTILINE)
    assert re.search(r"^iteration +[\d.]+ s, [\d,]+ tokens/s, limited by matrix products$", shown, re.MULTILINE)
    assert re.search(r"^gpu memory +[\d.]+ GiB of 80.0 GiB$", shown, re.MULTILINE)


def test_explain_prints_the_numbers_that_the_loop_gives(cli: CliWorld) -> None:
    job_id = cli.submit(gpus=4)
    cli.world.explanations[JobId(job_id)] = Explanation(
        Reason.FRAGMENTED, 4, 5, 3, servers_wanted=1, jobs_ahead=2, numbers={"rank_s": 1.5}
    )
    result = cli.run("job", "explain", str(job_id))
    assert "Needs 4 GPUs on <=1 server; 5 free on 3 servers; 2 jobs precede it." in result.stdout
    document = json.loads(cli.run("job", "explain", "all", "--json").stdout)
    assert document["schema"] == "sooner.explanations/1"
    assert set(document["explanations"][0]) == set(ExplanationDocument.__annotations__)
    assert document["explanations"][0]["numbers"] == {"rank_s": 1.5}


def test_explain_of_one_job_says_why_it_is_predicted_so(cli: CliWorld) -> None:
    model = small_model()
    cli.world.models[model.version] = model
    past, job_id, other = cli.submit(), cli.submit(), cli.submit()
    end(cli.world, [past])
    take_in(cli.world, job_id, said("recurrence: 14 past runs, median 150 s", f"{model.version}/blend"))
    lines = cli.run("job", "explain", str(job_id)).stdout.splitlines()
    assert "Predicted 3 min 20 s [1 min 40 s-3 min 20 s]: recurrence: 14 past runs, median 150 s." in lines
    assert "It is ranked by the model's distribution." in lines
    assert "14 past runs with as many GPUs; intervals are calibrated on jobs with 5-19 past runs." in lines
    start = lines.index(next(line for line in lines if line.startswith("Factors from")))
    words = f"Factors from what past runs say, 2 min 30 s, to the median of {model.version}/xgboost, "
    assert lines[start].startswith(words)
    assert all(re.match(r"  x\d+\.\d\d  \w", line) for line in lines[start + 1 : start + 9])
    assert lines[start + 9 :] == ["Similar jobs:", f"  job {past}: digits, 2 GPUs, 1 min, succeeded"]
    assert "Predicted" not in cli.run("job", "explain", f"{job_id},{other}").stdout
    assert cli.run("job", "explain", str(other)).stdout.endswith(
        "There is no prediction: no cycle has processed the job yet, or no job has ended and the job has said no total.\n"
    )
    document = json.loads(cli.run("job", "explain", f"{job_id},{other}", "--json").stdout)
    assert document["predictions"] == [cli.client.jobs.prediction(job_id), None]


def test_explain_says_why_no_model_moved_a_prediction(cli: CliWorld) -> None:
    job_id = cli.submit()
    take_in(cli.world, job_id, said(trusted=False))
    text = cli.run("job", "explain", str(job_id)).stdout
    assert "It is not trusted: ranked by attained service.\n" in text
    assert "No model took part in the prediction.\nNo similar job has ended.\n" in text


def test_attempts_and_events_are_versioned_documents(cli: CliWorld) -> None:
    job_id = cli.submit()
    assert json.loads(cli.run("job", "attempts", "last", "--json").stdout) == {
        "schema": "sooner.attempts/1",
        "job_id": job_id,
        "attempts": [],
    }
    events = json.loads(cli.run("job", "events", str(job_id), "--json").stdout)
    assert events["schema"] == "sooner.events/1"
    assert [event["target"] for event in events["events"]] == ["queued"]
    several = cli.run("job", "events", "1,2")
    assert several.exit_code == 2
    assert "takes one" in several.stderr


def test_logs_are_printed_byte_by_byte(cli: CliWorld) -> None:
    job_id = cli.submit()
    put(cli.world, job_id, 0.0, number=2)
    cli.world.logs[job_id, 2] = "Müsli\n".encode() + b"\xff\n"
    result = cli.run("job", "logs", "last")
    assert result.stdout_bytes == "Müsli\n".encode() + b"\xff\n"


def test_a_log_without_a_byte_is_told_as_such(cli: CliWorld) -> None:
    job_id = cli.submit()
    empty = cli.run("job", "logs", "last")
    told = f"there is no output of job {job_id}, which is queued: The next cycle considers the job.\n"
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", told)
    put(cli.world, job_id, 0.0, number=2)
    empty = cli.run("job", "logs", "last", "--attempt", "2")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == f"there is no output of attempt 2 of job {job_id}\n"
    cli.world.logs[job_id, 2] = b"x"
    assert cli.run("job", "logs", "last").stderr == ""


def test_logs_of_another_server(cli: CliWorld) -> None:
    put(cli.world, cli.submit(), 0.0, held=((0, (0,)), (1, (0,))), number=2)
    cli.world.node_logs[1] = b"second\n"
    assert cli.run("job", "logs", "last", "--node", "1").stdout == "second\n"


def test_following_goes_from_attempt_to_attempt_until_the_job_ends(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = cli.submit()
    texts = {1: b"", 2: b""}

    def first() -> None:
        texts[1] += b"one "
        set_job(cli, job_id, attempts=1)

    def second() -> None:
        texts[1] += b"more "
        texts[2] += b"two"
        set_job(cli, job_id, attempts=2)

    def end() -> None:
        texts[2] += b"!"
        set_job(cli, job_id, state="succeeded", finished_at_s=5.0)

    def logs(noun: Jobs[Any], job: int, attempt: int | None, offset: int, node: int) -> LogChunk:
        assert (attempt is not None, node) == (True, 0)
        return LogChunk(texts[attempt][offset:], len(texts[attempt]), 0)

    steps = iter([first, second, end])
    monkeypatch.setattr(jobs, "pause", lambda seconds: next(steps)())
    monkeypatch.setattr(Jobs, "logs", logs)
    result = cli.run("job", "logs", str(job_id), "--follow")
    assert (result.exit_code, result.stdout) == (0, "one more two!")


def test_following_outlasts_an_outage_and_goes_on_where_it_stopped(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = cli.submit()
    set_job(cli, job_id, state="running", attempts=1)
    away = iter([False, False, True, True, False, False, False, True])
    text = b"one two three"

    def logs(noun: Jobs[Any], job: int, attempt: int | None, offset: int, node: int) -> LogChunk:
        if next(away, False):
            raise Unreachable("http://127.0.0.1:8765", "connection refused")
        following = min(offset + 4, len(text))
        return LogChunk(text[offset:following], following, 0)

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            set_job(cli, job_id, state="succeeded", finished_at_s=5.0)

    monkeypatch.setattr(jobs, "pause", pause)
    monkeypatch.setattr(Jobs, "logs", logs)
    result = cli.run("job", "logs", str(job_id), "-f")
    assert (result.exit_code, result.stdout) == (0, "one two three")
    line = "cannot reach Sooner at http://127.0.0.1:8765 (connection refused); waiting until it answers again\n"
    assert result.stderr == 2 * line, "a line for each outage"


@pytest.mark.parametrize("after", [{"attempts": 2}, {"state": "queued"}, {"state": "failed", "finished_at_s": 5.0}])
def test_following_one_attempt_ends_with_it(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch, after: dict[str, Any]
) -> None:
    job_id = cli.submit()
    set_job(cli, job_id, state="running", attempts=1)
    texts = {1: b"one ", 2: b"two"}

    def logs(noun: Jobs[Any], job: int, attempt: int, offset: int, node: int) -> LogChunk:
        return LogChunk(texts[attempt][offset:], len(texts[attempt]), 0)

    def more() -> None:
        texts[1] += b"more "

    def end() -> None:
        texts[1] += b"last"
        set_job(cli, job_id, **after)

    steps = iter([more, end])
    monkeypatch.setattr(jobs, "pause", lambda seconds: next(steps)())
    monkeypatch.setattr(Jobs, "logs", logs)
    result = cli.run("job", "logs", str(job_id), "-f", "--attempt", "1")
    assert (result.exit_code, result.stdout) == (0, "one more last")


def test_acting_on_jobs_says_what_was_accepted(cli: CliWorld) -> None:
    done, one, two = cli.submit(), cli.submit(), cli.submit()
    set_job(cli, done, state="succeeded", finished_at_s=1.0)
    result = cli.run("job", "cancel", "all")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"job {one}: cancel accepted", f"job {two}: cancel accepted"]
    document = json.loads(cli.run("job", "hold", "2-3", "--preempt", "--json").stdout)
    assert document["schema"] == "sooner.accepted/1"
    for each in document["accepted"]:
        assert AcceptedDocument.__required_keys__ <= set(each) <= set(AcceptedDocument.__annotations__)
    assert [each["job_id"] for each in document["accepted"]] == [one, two]
    assert "release accepted" in cli.run("job", "release", "last").stdout
    assert "priority accepted" in cli.run("job", "priority", "2", "--set", "-5").stdout


def test_a_job_that_has_ended_does_not_keep_the_others_from_being_cancelled(cli: CliWorld) -> None:
    one, done, two = cli.submit(), cli.submit(), cli.submit()
    set_job(cli, done, state="failed", finished_at_s=1.0)
    result = cli.run("job", "cancel", str(one), str(done), str(two), "99")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [f"job {one}: cancel accepted", f"job {two}: cancel accepted"]
    assert result.stderr.splitlines() == [
        f"error: job {done}: Job {done} has ended (failed).",
        "error: job 99: There is no job 99.",
    ]
    document = json.loads(cli.run("job", "cancel", f"{one}-{two}", "--json").stdout)
    assert [each["job_id"] for each in document["accepted"]] == [one, two]
    assert document["refused"] == [{"job_id": done, "error": f"Job {done} has ended (failed)."}]


def test_a_job_that_ends_after_all_was_looked_up_is_no_error(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, one = cli.submit(), cli.submit()
    listed = Jobs.list

    def jobs_then_end(noun: Jobs[Any], **filters: Any) -> Any:
        found = listed.__get__(noun, Jobs)(**filters)
        set_job(cli, gone, state="succeeded", finished_at_s=1.0)
        return found

    monkeypatch.setattr(Jobs, "list", jobs_then_end)
    result = cli.run("job", "cancel", "all")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"job {one}: cancel accepted\n", "")
    set_job(cli, gone, state="queued", finished_at_s=None)
    assert cli.run("job", "cancel", "all", str(gone)).exit_code == 1


def test_last_without_any_job_is_one_line(cli: CliWorld) -> None:
    result = cli.run("job", "show", "last")
    assert (result.exit_code, result.stderr) == (1, "error: there are no jobs yet\n")
