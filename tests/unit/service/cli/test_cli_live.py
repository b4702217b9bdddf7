"""``sooner`` as processes: the service started by ``sooner serve``, and commands that find it by themselves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
Process = subprocess.Popen[str]


class Installation:
    """One data folder, its service and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "cluster.yaml").write_text(
            "schema: sooner.cluster/1\nname: test\nvirtual: true\nservers:\n  - {count: 2, gpus: 2}\n"
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SOONER_")}
        self.environ = kept | {
            "SOONER_DATA_DIR": str(folder / "data"),
            "SOONER_POLL_PERIOD_S": "0.05",
            "SOONER_RESCHEDULE_PERIOD_S": "0.5",
            # `serve` is told better on its command line.
            "SOONER_EXECUTOR": "fake",
        }

    def spawn(self, *arguments: str) -> Process:
        """A command that is still running."""
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command, to its end."""
        process = self.spawn(*arguments)
        out, errors = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("cli"))
    serve = made.spawn("serve", "--port", "0", "--executor", "local", "--cluster", "cluster.yaml")
    assert serve.stderr is not None
    try:
        # The log comes the same way: one JSON object a line.
        line = next(line for line in serve.stderr if not line.startswith("{"))
        assert line.startswith("Sooner is listening on "), line
        made.environ["SOONER_URL"] = line.split()[4]
        others = next(line for line in serve.stderr if not line.startswith("{"))
        assert others.startswith(f"For other commands: export SOONER_URL={line.split()[4]} SOONER_DATA_DIR=/"), others
        yield made
    finally:
        serve.send_signal(signal.SIGTERM)
        out, errors = serve.communicate(timeout=DEADLINE_S)
    assert (serve.returncode, out) == (0, ""), errors


def test_a_command_runs_here_under_our_name_and_its_outcome_is_the_exit_code(installed: Installation) -> None:
    program = "import os; print(os.getcwd(), os.environ['LR'])"
    done = installed.run(
        "job", "submit", "--name", "hello", "--env", "LR=0.1", "--wait", "--json", "--", sys.executable, "-c", program
    )
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["jobs"][0]
    assert (job["state"], job["exit_code"]) == ("succeeded", 0)
    assert f"submitted job {job['id']}" in done.stderr
    assert installed.run("job", "logs", str(job["id"])).stdout == f"{installed.folder} 0.1\n"
    failed = installed.run(
        "job", "submit", "--name", "bad", "--max-retries", "0", "--wait", "--", sys.executable, "-c", "exit(3)"
    )
    assert failed.returncode == 1
    assert "failed with exit code 3" in failed.stderr


def test_a_held_job_waits_until_it_is_released_and_can_be_followed(installed: Installation) -> None:
    program = "print('one', flush=True); print('two', flush=True)"
    held = installed.run("job", "submit", "--name", "held", "--hold", "--quiet", "--", sys.executable, "-c", program)
    job_id = held.stdout.strip()
    explained = json.loads(installed.run("job", "explain", job_id, "--json").stdout)["explanations"][0]
    assert explained["state"] == "queued"
    follower = installed.spawn("job", "logs", job_id, "--follow")
    assert installed.run("job", "release", job_id).returncode == 0
    out, errors = follower.communicate(timeout=DEADLINE_S)
    assert (follower.returncode, out, errors) == (0, "one\ntwo\n", "")
    states = [
        event["target"] for event in json.loads(installed.run("job", "events", job_id, "--json").stdout)["events"]
    ]
    assert states == ["queued", "starting", "running", "succeeded"]


def test_watching_ends_with_ctrl_c_as_a_success(installed: Installation) -> None:
    long = installed.run(
        "job", "submit", "--name", "long", "--quiet", "--", sys.executable, "-c", "import time; time.sleep(60)"
    )
    watcher = installed.spawn("q", "--watch", "--json")
    assert watcher.stdout is not None
    first = json.loads(watcher.stdout.readline())
    assert [job["id"] for job in first["jobs"]] == [int(long.stdout)]
    assert installed.run("job", "cancel", "all").returncode == 0
    waited = installed.run("job", "wait", long.stdout.strip(), "--json")
    assert (waited.returncode, json.loads(waited.stdout)["jobs"][0]["state"]) == (1, "cancelled")
    assert json.loads(watcher.stdout.readline())["schema"] == "sooner.jobs/1"
    watcher.send_signal(signal.SIGINT)
    _, errors = watcher.communicate(timeout=DEADLINE_S)
    assert (watcher.returncode, errors) == (0, "")


def test_the_cluster_is_the_one_of_the_command_line(installed: Installation) -> None:
    document = json.loads(installed.run("info", "--json").stdout)
    assert [(server["name"], server["gpus"]) for server in document["cluster"]["servers"]] == [
        ("s0001", 2),
        ("s0002", 2),
    ]
    never = installed.run("job", "submit", "--name", "huge", "--gpus", "5", "--", "true")
    assert never.returncode == 2
    assert "needs 5 GPUs; the cluster has 4" in never.stderr


def test_a_second_service_is_refused_in_one_line(installed: Installation) -> None:
    second = installed.run("serve", "--port", "0")
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "running on" in second.stderr


def test_history_can_be_imported_while_the_service_runs(installed: Installation) -> None:
    table = installed.folder / "past.csv"
    table.write_text("job_id,submit_time_s,gpus,duration_s,user,name,iterations\na,0,1,5,ada,x,50\n")
    done = installed.run("history", "import", str(table), "--json")
    assert json.loads(done.stdout)["new"] == 1, done.stderr
