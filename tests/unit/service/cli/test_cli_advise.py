"""``sooner advise`` beside programs that answer as Slurm's commands do and note how they were called."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.slurm.accounting import FIELDS

ANSWERS = Path(__file__).parents[1] / "slurm" / "answers"
READS = {"squeue", "sinfo", "sacct", "sacctmgr"}


class Programs:
    """A folder for PATH. ``calls`` are the calls so far, as lists of words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls"
        self._log.touch()
        self.install("squeue", f"cat {folder}/squeue.json")
        self.install("sinfo", f"cat {folder}/sinfo.json")
        self.install("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
        self.install("sacctmgr", "exit 1")
        self.install("scontrol", f'test "$1" = update || cat {folder}/config.txt')
        (folder / "config.txt").write_text((ANSWERS / "config-22.05.8.txt").read_text())
        (folder / "sinfo.json").write_text((ANSWERS / "sinfo-22.05.8.json").read_text())
        self.queue(_as_of_now(json.loads((ANSWERS / "squeue-22.05.8.json").read_text())["jobs"]))

    def install(self, name: str, script: str) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self._log}\n{script}\n')
        program.chmod(0o755)

    def queue(self, jobs: list[dict[str, Any]]) -> None:
        draft = self.folder / "draft"
        draft.write_text(json.dumps({"jobs": jobs, "errors": []}))
        draft.replace(self.folder / "squeue.json")

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self._log.read_text().splitlines()]

    @property
    def writes(self) -> list[list[str]]:
        return [call for call in self.calls if call[0] not in READS and call[1:3] != ["show", "config"]]

    @property
    def nice(self) -> dict[int, int]:
        """The nice value of each job."""
        jobs = json.loads((self.folder / "squeue.json").read_text())["jobs"]
        return {job["job_id"]: job["nice"] or 0 for job in jobs}

    def run(self, *arguments: str) -> Any:
        environ = {"PATH": f"{self.folder}:/usr/bin:/bin"}
        return CliRunner().invoke(app, ["advise", *arguments, "--state", str(self.folder / "state")], env=environ)


def _as_of_now(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorded jobs, submitted a minute ago: what the command learns depends on how long they have waited."""
    later_s = int(time.time()) - 60 - max(job["submit_time"] for job in jobs)
    times = ("submit_time", "eligible_time", "accrue_time", "start_time", "end_time")
    return [job | {name: job[name] + later_s for name in times if job[name]} for job in jobs]


@pytest.fixture
def slurm(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_the_table_and_what_stands_around_it(slurm: Programs) -> None:
    done = slurm.run("--slurm")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "GPUs free" in lines[0]
    assert any(line.split()[:2] == ["JOB", "NAME"] for line in lines)
    assert any(line.split()[:1] == ["9_1"] for line in lines)
    assert "Mean time to completion of" in done.stdout and "2 is a waiting heterogeneous job" in done.stdout
    assert "note: sacct: Slurm accounting storage is disabled" in done.stderr


def test_nothing_is_written_without_set(slurm: Programs) -> None:
    assert slurm.run("--slurm", "--json").exit_code == 0
    assert slurm.calls and slurm.writes == []


def test_the_document(slurm: Programs) -> None:
    document = json.loads(slurm.run("--slurm", "--json").stdout)
    assert document["schema"] == "sooner.advice/1"
    assert (document["gpus"], document["gpus_free"]) == (16, 6)
    jobs = {job["job"]: job for job in document["jobs"]}
    assert jobs["1"]["state"] == "running" and jobs["1"]["start_at"] is None
    assert jobs["10"]["state"] == "held" and "held" in jobs["10"]["reason"]
    places = sorted(job["asrpt_place"] for job in document["jobs"] if job["asrpt_place"] is not None)
    assert jobs["10"]["asrpt_place"] is None and places == list(range(1, len(places) + 1))
    waiting = jobs["5"]
    assert waiting["run_s"]["p90"] <= 60.0 and "time limit" in waiting["source"]
    assert waiting["start_at"].keys() == {"p10", "p50", "p90"} and waiting["place"] < jobs["9_1"]["place"]
    assert document["mean_time_to_completion"]["schedules"].keys() == {"slurm", "slurm_by_asrpt", "asrpt"}
    assert document["left_out"]["waits with Slurm's reason DependencyNeverSatisfied"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--slurm"),
        (("--slurm", "--set", "priority"), "the only thing that can be set is nice"),
        (("--slurm", "--set", "nice"), "--set needs --every"),
        (("--slurm", "--listen", "8092"), "--listen needs --every"),
        (("--slurm", "--undo", "--every", "60"), "--undo cannot be combined"),
        (("--slurm", "--every", "1"), "at least 5 s"),
        (("--slurm", "--output", "JOBID"), "there is no column 'JOBID'"),
    ],
)
def test_wrong_usage(slurm: Programs, arguments: tuple[str, ...], message: str) -> None:
    done = slurm.run(*arguments)
    assert done.exit_code == 2 and message in done.stderr
    assert slurm.calls == []


def test_without_slurm(slurm: Programs) -> None:
    done = CliRunner().invoke(
        app, ["advise", "--slurm", "--state", str(slurm.folder / "state")], env={"PATH": str(slurm.folder / "state")}
    )
    assert done.exit_code == 1
    assert done.stderr.strip() == "error: sinfo is not installed on this machine, or is not in PATH"


def test_a_controller_that_does_not_answer(slurm: Programs) -> None:
    slurm.install("sinfo", "echo 'sinfo: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    done = slurm.run("--slurm")
    assert done.exit_code == 1 and "Unable to contact slurm controller" in done.stderr


def test_a_cluster_without_gpus(slurm: Programs) -> None:
    nodes = json.loads((slurm.folder / "sinfo.json").read_text())
    for node in nodes["nodes"]:
        node["gres"] = ""
    (slurm.folder / "sinfo.json").write_text(json.dumps(nodes))
    done = slurm.run("--slurm")
    assert done.exit_code == 1 and "no node of this Slurm has GPUs" in done.stderr


def test_a_past_that_is_not_there_is_wrong_input(slurm: Programs) -> None:
    done = slurm.run("--slurm", "--history", "absent.txt")
    assert (done.exit_code, done.stderr) == (2, "error: absent.txt: No such file or directory\n")


def test_an_empty_queue(slurm: Programs) -> None:
    slurm.queue([])
    done = slurm.run("--slurm")
    assert done.exit_code == 0 and "jobs with GPUs: none" in done.stdout


def test_the_past_of_accounting_is_learnt_and_calibrates(slurm: Programs) -> None:
    """Jobs of one name that ran about fifty minutes: the next one is predicted by them, not by its limit."""
    now_s = int(time.time())
    rows = [
        f"{number}|root||main|COMPLETED|{at}|{at}|{at + 5}|{at + 3005 + number % 7}|{3000 + number % 7}|1440|"
        f"billing=1,gres/gpu=1,node=1|billing=1,gres/gpu=1,node=1|1|node1|{1000 - number}|job.sh"
        for number in range(1, 61)
        for at in (now_s - 80_000 + 1200 * number,)
    ]
    (slurm.folder / "sacct.txt").write_text("\n".join(["|".join(FIELDS), *rows]) + "\n")
    slurm.install("sacct", f"cat {slurm.folder}/sacct.txt")
    document = json.loads(slurm.run("--slurm", "--json").stdout)
    assert document["history"]["ended_jobs"] == 60
    assert document["history"]["checked_forecasts"]["end_running"] > 0
    (running,) = (job for job in document["jobs"] if job["job"] == "1")
    assert running["name"] == "gang"
    job = next(job for job in document["jobs"] if job["name"] == "fail.sh")
    assert "no history" not in job["source"]


def test_the_order_is_set_while_it_runs_and_undone_by_sigterm(slurm: Programs) -> None:
    _keep_nice(slurm)
    before = slurm.nice
    process = _start(slurm, "--set", "nice", "--every", "60s")
    try:
        _wait_for(lambda: len(slurm.writes) >= 2 and slurm.nice != before)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert slurm.nice == before
    assert json.loads((slurm.folder / "state" / "nice.json").read_text())["jobs"] == {}


def test_after_kill_the_order_is_undone_on_request(slurm: Programs) -> None:
    _keep_nice(slurm)
    nice = slurm.nice
    process = _start(slurm, "--set", "nice", "--every", "60s")
    try:
        _wait_for(lambda: len(slurm.writes) >= 2 and slurm.nice != nice)
    finally:
        process.kill()
        process.wait()
    before = len(slurm.writes)
    noted = slurm.run("--slurm")
    assert "--undo" in noted.stderr and len(slurm.writes) == before
    done = slurm.run("--slurm", "--undo")
    assert done.exit_code == 0, done.output
    assert slurm.nice == nice and "restored the nice value of" in done.stderr
    assert "--undo" not in slurm.run("--slurm").stderr


def test_an_undo_that_slurm_refuses_fails_and_is_tried_again(slurm: Programs) -> None:
    _keep_nice(slurm)
    (job,) = (job for job in json.loads((slurm.folder / "squeue.json").read_text())["jobs"] if job["job_id"] == 5)
    kept = {"submitted_at_s": job["submit_time"], "before": 3, "written": [0]}
    (slurm.folder / "state").mkdir()
    (slurm.folder / "state" / "nice.json").write_text(
        json.dumps({"schema": "sooner.advice.nice/1", "jobs": {"5": kept}})
    )
    scontrol = (slurm.folder / "scontrol").read_text()
    refused = "echo 'slurm_update error: Access/permission denied' >&2; exit 1"
    slurm.install("scontrol", f'test "$1" != update && cat {slurm.folder}/config.txt && exit; {refused}')
    done = slurm.run("--slurm", "--undo")
    assert done.exit_code == 1 and "Slurm refused 1 job" in done.stderr and "--undo` later" in done.stderr
    (slurm.folder / "scontrol").write_text(scontrol)
    assert slurm.run("--slurm", "--undo").exit_code == 0
    assert slurm.nice[5] == 3


def _keep_nice(slurm: Programs) -> None:
    """``scontrol update`` changes the file that squeue prints, as Slurm would."""
    slurm.install(
        "scontrol",
        f"""if test "$1" != update; then cat {slurm.folder}/config.txt; exit; fi
{sys.executable} - "$2" "$3" <<'END'
import json, pathlib, sys
number, nice = (int(word.partition("=")[2]) for word in sys.argv[1:])
file = pathlib.Path("{slurm.folder}/squeue.json")
answer = json.loads(file.read_text())
for job in answer["jobs"]:
    if job["job_id"] == number:
        job["priority"] += (job["nice"] or 0) - nice
        job["nice"] = nice
draft = file.with_suffix(".draft")
draft.write_text(json.dumps(answer))
draft.replace(file)
END""",
    )


def _start(slurm: Programs, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "service.cli.main",
            "advise",
            "--slurm",
            "--state",
            str(slurm.folder / "state"),
            *arguments,
        ],
        env={**os.environ, "PATH": f"{slurm.folder}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait_for(condition: Any) -> None:
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, "not within a minute"
        time.sleep(0.05)
