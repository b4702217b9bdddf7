"""``sooner job submit``: what is sent, what is refused before it is, arrays."""

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import JobId
from service.client.jobs import Jobs
from service.db.tables import JOBS
from service.wire.jobs import JobDocument
from tests.unit.service.cli.cli_world import CliWorld, cli_world
from tests.unit.service.cli.test_cli_jobs import jobs_of, set_job


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliWorld]:
    with cli_world(tmp_path, monkeypatch) as made:
        yield made


def submitted(cli: CliWorld) -> dict[str, Any]:
    """The newest job's specification as the database holds it."""
    with cli.world.database.reading() as session:
        row = session.connection().execute(JOBS.select().order_by(JOBS.c.id.desc())).first()
    assert row is not None
    return dict(row.spec)


def test_a_command_is_submitted_with_the_login_name_and_runs_here(
    cli: CliWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "grace")
    result = cli.run(
        "job",
        "submit",
        "--name",
        "train",
        "--gpus",
        "2",
        "--env",
        "LR=0.1",
        "--quiet",
        "--",
        "python",
        "t.py",
        "--fast",
    )
    assert (result.exit_code, result.stdout) == (0, "1\n")
    spec = submitted(cli)
    assert (spec["user"], spec["command"], spec["gpus"], spec["env"]) == (
        "grace",
        ["python", "t.py", "--fast"],
        2,
        {"LR": "0.1"},
    )
    assert spec["working_dir"] == str(Path.cwd())


def test_a_command_may_be_one_text(cli: CliWorld) -> None:
    result = cli.run("job", "submit", "--name", "train", "--command", "python -c 'print(1)'", "--user", "ada")
    assert result.exit_code == 0
    assert submitted(cli)["command"] == ["python", "-c", "print(1)"]


def test_a_file_may_write_values_as_options_do(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    head = "name: a\ngpus: 2\nuser: ada\n"
    file.write_text(head + "command: python t.py --lr 0.1\nworking_dir: runs\ntopology: rack?\ngpu_type: V100, H100\n")
    result = cli.run("job", "submit", str(file), "--gpu-type", "V100")
    assert result.exit_code == 0, result.stderr
    spec = submitted(cli)
    assert spec["command"] == ["python", "t.py", "--lr", "0.1"] and spec["working_dir"] == str(tmp_path / "runs")
    assert spec["topology"] == {"level": "rack", "required": False}
    assert spec["gpu_type"] == "V100"
    file.write_text(f"{head}command: [python, t.py]\nafter: 1\nimage: i\nvolumes: [/data, '/x:/y:ro']\n")
    assert cli.run("job", "submit", str(file)).exit_code == 0
    spec = submitted(cli)
    assert "after:\n- 1\n" in cli.run("job", "spec", "2").stdout
    assert [each["target"] for each in spec["volumes"]] == ["/data", "/y"]
    file.write_text(f"{head}command: 't.py'\narray: 3,5%1\n")
    assert cli.run("job", "submit", str(file), "-q").stdout.split() == ["3", "4"]


def test_an_option_changes_one_part_of_a_files_preemption(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: t.py\ngpus: 1\nuser: ada\npreemption: {signal: SIGUSR2, grace_s: 90}\n")
    assert cli.run("job", "submit", str(file), "--grace-s", "10").exit_code == 0
    spec = submitted(cli)
    assert (spec["preemption"]["signal"], spec["preemption"]["grace_s"]) == ("SIGUSR2", 10.0)


def test_an_option_replaces_the_types_of_a_file(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for written in ("gpu_types: [H100, V100]", "gpu_type: H100", "gpu_type: H100,V100"):
        file.write_text(f"name: a\ncommand: ['true']\ngpus: 1\nuser: ada\n{written}\n")
        result = cli.run("job", "submit", str(file), "--gpu-type", "V100")
        assert result.exit_code == 0, result.stderr
        assert submitted(cli)["gpu_type"] == "V100" and not submitted(cli).get("gpu_type_fallbacks")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("command: cd x && python t.py", "command: '&' needs a shell"),
        ("array: 3-0", "array: '3-0': the range ends before it begins"),
        ("array: 0-99999999", "array: '0-99999999': a range names at most 10,000 jobs"),
        ("array: 1,5-7,6", "array: '1,5-7,6': index 6 occurs twice"),
        ("volumes: ['/a:/b:c']", "volumes: '/a:/b:c' is not SOURCE"),
    ],
)
def test_a_value_of_a_file_that_cannot_be_read_is_named(
    cli: CliWorld, tmp_path: Path, written: str, message: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\ngpus: 1\n{written}\n")
    result = cli.run("job", "submit", str(file))
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("yaml", "name: a\ncommand: [python, t.py]\ngpus: 2\nenv: {A: '1', B: '2'}\nuser: ada\n"),
        ("json", '{"name": "a", "command": ["python", "t.py"], "gpus": 2, "env": {"A": "1", "B": "2"}, "user": "ada"}'),
    ],
)
def test_a_file_is_yaml_or_json_and_options_win(cli: CliWorld, tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"job.{suffix}"
    file.write_text(text)
    result = cli.run(
        "job", "submit", str(file), "--gpus", "1", "--env", "B=3", "--hold", "--preemption-signal", "SIGUSR2"
    )
    assert result.exit_code == 0, result.stderr
    spec = submitted(cli)
    assert (spec["gpus"], spec["env"], spec["user"], spec["hold"]) == (1, {"A": "1", "B": "3"}, "ada", True)
    assert spec["preemption"]["signal"] == "SIGUSR2"
    assert "working_dir" not in spec


def test_standard_input_may_hold_many_jobs(cli: CliWorld) -> None:
    text = json.dumps([{"name": name, "command": ["true"], "gpus": 1} for name in "abc"])
    result = cli.run("job", "submit", "-", "--quiet", text=text)
    assert result.stdout.split() == ["1", "2", "3"]
    assert submitted(cli)["user"] == getpass.getuser()


def test_after_takes_selectors(cli: CliWorld) -> None:
    cli.submit()
    cli.submit()
    assert cli.run("job", "submit", "--name", "x", "--after", "1,last", "--", "true").exit_code == 0
    assert submitted(cli)["after"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a job file"),
        (["--command", "true"], "needs a name"),
        (["--name", "x", "--command", "a 'b"], "--command: No closing quotation"),
        (["--name", "x", "--command", "a", "--", "b"], "not both"),
        (["--name", "x", "--env", "LR", "--", "b"], "--env 'LR' is not NAME=VALUE"),
        (["/nowhere/job.yaml"], "No such file"),
        (["--", "my train.sh"], "add a name: --name NAME -- 'my train.sh'"),
        (["job.yaml", "other.yaml"], "give a job file"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: CliWorld, arguments: list[str], message: str) -> None:
    result = cli.run("job", "submit", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: [", "is not YAML"),
        ("5", "expected a job"),
        ("name: .nan", "cannot be read"),
        ("name: !!set {a}", "not JSON serializable"),
        ("\x00", "is not YAML"),
        ("name: a\ngpus: 1\ngpus: 8", "job.yaml: line 3: gpus: occurs twice"),
        ('{"name": "a", "gpus": 1, "gpus": 8}', "job.yaml: gpus: occurs twice"),
    ],
)
def test_a_file_that_is_no_job_is_one_line(cli: CliWorld, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = cli.run("job", "submit", str(file))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_fault_of_a_job_is_named_with_its_pointer(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ncommand: [true]\ngpus: 1000\ncolour: red\n")
    result = cli.run("job", "submit", str(file))
    assert result.exit_code == 2
    assert "  /command/0: " in result.stderr
    assert "  /colour: is unknown" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: command.0: must be a text (got true); and 1 more fault")
    assert cli.run("job", "list", "--quiet").stdout == ""


def test_names_cannot_steer_the_terminal(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.submit()
    shown: JobDocument = cli.client.jobs.show(1)
    shown["name"] = "a\x1b[31mb\nc"
    monkeypatch.setattr(Jobs, "list", lambda self, **filters: [shown])
    assert "a?[31mb?c" in cli.run("q").stdout


def submit_array(cli: CliWorld) -> list[int]:
    done = cli.run("job", "submit", "--name", "a", "--array", "0-2,9", "--quiet", "--", "python", "a.py")
    assert done.exit_code == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_an_array_is_submitted_named_by_elements_and_acted_on_in_one_request(cli: CliWorld) -> None:
    cli.submit()
    ids = submit_array(cli)
    assert ids == [2, 3, 4, 5]
    assert cli.run("q", "-o", "job,array").stdout.split()[2:] == [
        "1",
        "2",
        "2[0]",
        "3",
        "2[1]",
        "4",
        "2[2]",
        "5",
        "2[9]",
    ]
    assert cli.run("q", "--array", "2", "-q").stdout.split() == ["2", "3", "4", "5"]
    assert cli.run("job", "list", "--array", "2", "-q", "--limit", "3").stdout.split() == ["5", "4", "3"]
    assert cli.run("job", "show", "2[9,1]", "-q").stdout.split() == ["5", "3"]
    assert cli.run("job", "show", "2[*]", "-q").stdout.split() == ["2", "3", "4", "5"]
    set_job(cli, 3, state="failed", finished_at_s=1.0)
    done = cli.run("job", "cancel", "2[*],1,1")
    assert done.stdout == "array 2: cancel accepted for 3 jobs\njob 1: cancel accepted\n"
    done = cli.run("job", "priority", "2[0,2]", "--set", "4", "--json")
    assert [each["job_id"] for each in json.loads(done.stdout)["accepted"]] == [2, 4]
    kinds = [(request.kind.value, request.job) for request in cli.world.store.pending_requests(100)][5:]
    assert kinds == [*(("cancel", number) for number in (2, 4, 5, 1)), ("priority", 2), ("priority", 4)]


@pytest.mark.parametrize(
    ("selector", "words"), [("2[3]", "no element 3"), ("1[*]", "no job array 1"), ("2[", "is not a job")]
)
def test_an_element_that_is_not_there_is_said(cli: CliWorld, selector: str, words: str) -> None:
    cli.submit()
    submit_array(cli)
    for command in ("show", "explain"):
        failed = cli.run("job", command, selector)
        assert failed.exit_code in (1, 2)
        assert words in failed.stderr


@pytest.mark.parametrize("indices", ["a-b", "0-9%", "0-9%x", "%3"])
def test_indices_that_are_none_are_refused_before_anything_is_sent(cli: CliWorld, indices: str) -> None:
    refused = cli.run("job", "submit", "--name", "a", "--array", indices, "--", "true")
    assert refused.exit_code == 2
    assert f"--array: '{indices}' is not a list of indices" in refused.stderr


def test_so_many_elements_at_a_time_are_asked_for_as_in_slurm(cli: CliWorld) -> None:
    done = cli.run("job", "submit", "--name", "a", "--array", "3,5%1", "--quiet", "--", "true")
    specs = [job.own_spec for job in cli.world.store.jobs([JobId(int(line)) for line in done.stdout.split()])]
    assert [(spec.array.index, spec.array.max_running) for spec in specs if spec.array is not None] == [(3, 1), (5, 1)]


def test_after_and_after_any_say_which_end_is_waited_for(cli: CliWorld) -> None:
    cli.submit()
    cli.submit()
    done = cli.run(
        "job", "submit", "--name", "a", "--after", "1", "--after-any", "1-2", "--json", "--", "python", "a.py"
    )
    spec = cli.world.store.jobs([JobId(jobs_of(done.stdout)[0]["id"])])[0].spec
    assert (spec.after, spec.after_any) == ((1,), (2,))


def test_a_job_after_one_that_has_failed_is_submitted_with_a_warning(cli: CliWorld, tmp_path: Path) -> None:
    for state in ("failed", "succeeded", "cancelled"):
        set_job(cli, cli.submit(), state=state)
    line = "warning: after: job {} has not succeeded ({}); a job after it is cancelled\n"
    done = cli.run("job", "submit", "--name", "a", "--after", "1,2", "--after-any", "3", "--quiet", "--", "true")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "4\n", line.format(1, "failed"))
    file = tmp_path / "jobs.yaml"
    head = "command: [x], gpus: 1"
    file.write_text(f"jobs: [{{name: a, {head}, after: 2}}, {{name: b, {head}, after: [{{job: 3}}, 4]}}]")
    done = cli.run("job", "submit", str(file), "--quiet")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "5\n6\n", line.format(3, "cancelled"))


def test_what_job_spec_prints_of_several_jobs_is_a_job_file(cli: CliWorld, tmp_path: Path) -> None:
    cli.submit(name="first", env={"LR": "0.1"})
    cli.submit(name="second", gpus=1, walltime_s=7200)
    printed = cli.run("job", "spec", "1,2").stdout
    (tmp_path / "jobs.yaml").write_text(printed)
    result = cli.run("job", "submit", str(tmp_path / "jobs.yaml"), "--quiet")
    assert (result.exit_code, result.stdout) == (0, "3\n4\n"), result.stderr
    again = cli.run("job", "spec", "3,4").stdout
    assert again == printed.replace("# job 1", "# job 3").replace("# job 2", "# job 4")


def test_documents_of_a_job_file_are_jobs_each_with_its_own_text(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "---\nname: a\ncommand: [run, 1e3]\ngpus: 1\n---\nname: b\ncommand: [run, 007]\ngpus: 1\nwalltime_s: 2h\n---\n"
    )
    assert cli.run("job", "submit", str(file), "--quiet").stdout == "1\n2\n"
    specs = [cli.client.jobs.spec(number) for number in (1, 2)]
    assert [(spec["name"], spec["command"][1], spec["walltime_s"]) for spec in specs] == [
        ("a", "1e3", None),
        ("b", "007", 7200.0),
    ]
    for text in ("---\n---\n", ""):
        file.write_text(text)
        result = cli.run("job", "submit", str(file))
        assert (result.exit_code, "expected a job" in result.stderr) == (2, True)


def test_durations_and_text_in_a_job_file(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: digits\ngpus: 1\ncommand: [python, train.py, --lr, 0.10, --layers, 007]\n"
        "env: {LR: 0.1, STEPS: 1_000, PLAIN: text}\n"
        "walltime_s: 02:30:00\nmin_run_s: 10min\npreemption: {signal: SIGUSR1, grace_s: 1m}\n"
    )
    result = cli.run("job", "submit", str(file), "--json")
    assert result.exit_code == 0, result.stderr
    spec = cli.client.jobs.spec(json.loads(result.stdout)["jobs"][0]["id"])
    assert spec["command"] == ["python", "train.py", "--lr", "0.10", "--layers", "007"]
    assert spec["env"] == {"LR": "0.1", "STEPS": "1_000", "PLAIN": "text"}
    assert (spec["walltime_s"], spec["min_run_s"], spec["preemption"]["grace_s"]) == (9000.0, 600.0, 60.0)
    file.write_text('{"jobs": [{"name": "a", "gpus": 1, "command": ["x", 1.50], "env": {"N": 7}, "walltime_s": "2h"}]}')
    [job] = json.loads(cli.run("job", "submit", str(file), "--json").stdout)["jobs"]
    spec = cli.client.jobs.spec(job["id"])
    assert (spec["command"], spec["env"], spec["walltime_s"]) == (["x", "1.50"], {"N": "7"}, 7200.0)
    file.write_text("name: a\ngpus: 1\ncommand: [x]\nwalltime_s: soon\n")
    assert "walltime_s: 'soon' is not a duration" in cli.run("job", "submit", str(file)).stderr


def test_a_job_file_may_name_the_file_of_its_graph(cli: CliWorld, tmp_path: Path) -> None:
    file, graph = tmp_path / "job.yaml", tmp_path / "graph.json"
    layers = [
        {"name": name, "forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 8, "activation_bytes": 4}
        for name in "ab"
    ]
    graph.write_text(json.dumps({"layers": layers, "edges": [["a", "b"]]}))
    file.write_text(
        "jobs:\n- {name: one, gpus: 1, command: [x], graph: graph.json}\n- {name: two, gpus: 1, command: [x]}\n"
    )
    result = cli.run("job", "submit", str(file), "--json")
    assert result.exit_code == 0, result.stderr
    one, two = (cli.client.jobs.spec(job["id"]) for job in json.loads(result.stdout)["jobs"])
    assert [stage["parameter_bytes"] for stage in one["graph"]["stages"]] == [16]
    assert two.get("graph") is None
    graph.write_text("{")
    assert f"error: graph: {graph}: Expecting property name" in cli.run("job", "submit", str(file)).stderr
    graph.unlink()
    assert f"error: graph: {graph}: No such file or directory" in cli.run("job", "submit", str(file)).stderr


def test_an_unknown_key_names_the_nearest_one(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: a\ngpus: 1\ncommand: [x]\nwalltime: 5\npreemption: {sgnal: SIGUSR1}\n")
    result = cli.run("job", "submit", str(file))
    assert result.exit_code == 2
    assert "/walltime: is unknown; did you mean 'walltime_s'?" in result.stderr
    assert "/preemption/sgnal: is unknown; did you mean 'signal'?" in result.stderr


def test_needs_beside_gpus(cli: CliWorld) -> None:
    needs = ["--cpus", "8", "--memory-gib", "32.5", "--gpu-memory-gib", "40", "--image", "docker.io/library/a:1"]
    volumes = ["--volume", "/data:/in:ro", "--volume", "/out", "--volume", "/a:/b"]
    cli.run("job", "submit", "--name", "train", *needs, *volumes, "--quiet", "--", "python")
    spec = submitted(cli)
    assert (spec["cpus"], spec["memory_gib"], spec["gpu_memory_gib"]) == (8, 32.5, 40.0)
    assert spec["image"] == "docker.io/library/a:1"
    assert spec["volumes"] == [
        {"source": "/data", "target": "/in", "read_only": True},
        {"source": "/out", "target": "/out", "read_only": False},
        {"source": "/a", "target": "/b", "read_only": False},
    ]


@pytest.mark.parametrize("volume", [":/b", "/a:/b:rx", "/a:/b:"])
def test_a_volume_of_another_form_is_refused(cli: CliWorld, volume: str) -> None:
    result = cli.run("job", "submit", "--name", "train", "--volume", volume, "--", "python")
    assert (result.exit_code, "SOURCE:TARGET:ro" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["job", "submit", "--name", "x", "-o", "JOBID", "--", "true"], "the columns are JOB, NAME, "),
        (
            ["job", "submit", "--name", "x", "--wait", "--timeout-s", "0", "-o", "JOBID", "--", "true"],
            "the columns are JOB, NAME, ",
        ),
        (["job", "submit", "--name", "x", "--dry-run", "-o", "JOBID", "--", "true"], "the columns are NAME, GPUS, "),
        (["job", "wait", "1", "--timeout-s", "0", "-o", "JOBID"], "the columns are JOB, NAME, "),
    ],
)
def test_a_misspelt_column_is_refused_before_any_request(cli: CliWorld, arguments: list[str], known: str) -> None:
    cli.submit()
    result = cli.run(*arguments)
    assert result.exit_code == 2 and "--output: there is no column 'JOBID'" in result.stderr
    assert known in result.stderr
    assert [job["id"] for job in cli.client.jobs.list()] == [1]


def test_a_date_in_a_job_file_is_its_text(cli: CliWorld, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    dates = "command: [echo, --day, 2026-01-01]\nlabels: {w: 2026-01-01}\nenv: {DAY: 2026-01-01 10:00:00}\n"
    file.write_text(f"name: 2026-01-01\ngpus: 1\nuser: ada\n{dates}")
    result = cli.run("job", "submit", str(file))
    assert result.exit_code == 0, result.stderr
    spec = submitted(cli)
    assert (spec["name"], spec["command"]) == ("2026-01-01", ["echo", "--day", "2026-01-01"])
    assert (spec["labels"], spec["env"]) == ({"w": "2026-01-01"}, {"DAY": "2026-01-01 10:00:00"})


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "submit", "--name", "x", "--memory-gib", "0", "--", "true"],
        ["cluster", "add", "d", "--gpus", "1", "--gpu-speed", "0"],
    ],
)
def test_what_must_be_above_zero_is_refused_with_its_option(cli: CliWorld, arguments: list[str]) -> None:
    result = cli.run(*arguments)
    assert result.exit_code == 2
    assert "must be above 0, not 0" in result.stderr and arguments[arguments.index("0") - 1] in result.stderr


@pytest.mark.parametrize("option", ["--walltime-s", "--checkpoint-period-s"])
def test_a_time_below_a_second_is_refused_with_its_option(cli: CliWorld, option: str) -> None:
    result = cli.run("job", "submit", "--name", "x", option, "1e-5", "--", "true")
    assert result.exit_code == 2
    assert "must be at least 0.1 s, not 1e-5" in result.stderr and option in result.stderr
    assert cli.run("job", "submit", "--name", "x", "--user", "ada", option, "1s", "--", "true").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "changes"], "error: --topic: 'changes' is not 'jobs', 'job:NUMBER', 'servers' or 'cycle'\n"),
        (["--topic", "job:x"], "error: --topic: 'job:x' is not 'jobs', 'job:NUMBER', 'servers' or 'cycle'\n"),
        (["--since", "abc"], "error: --since: 'abc' is not the id of an event\n"),
    ],
)
def test_events_that_cannot_be_followed_are_one_line(cli: CliWorld, arguments: list[str], message: str) -> None:
    result = cli.run("events", *arguments)
    assert (result.exit_code, result.stderr) == (2, message)


def test_a_cancellation_of_all_says_that_there_is_nothing_to_cancel(cli: CliWorld) -> None:
    result = cli.run("job", "cancel", "all")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no job is unfinished\n")
    cli.submit()
    assert cli.run("job", "cancel", "all").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("job", "submit", "--name", "x", "--gpus", "1", "--env", "A=\udcff", "--", "true"), "env.A: must be UTF-8"),
        (("cluster", "drain", "a\udcff"), r"'a\udcff' is not UTF-8"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_one_line(cli: CliWorld, arguments: tuple[str, ...], message: str) -> None:
    result = cli.run(*arguments)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_an_address_that_is_not_utf_8_is_one_line(cli: CliWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_URL", "http://a/\udcff")
    result = cli.run("q")
    assert result.exit_code == 2
    assert r"SOONER_URL: 'http://a/\udcff' is not an address" in result.stderr
