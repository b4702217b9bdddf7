"""``sooner worth``: from a file, from Slurm's commands, and what it refuses."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.slurm.accounting import AccountedJob
from tests.unit.service.advice.past_jobs import past_jobs, sacct_text

RUNNER = CliRunner()
CLUSTER = "schema: sooner.cluster/1\nservers: [{count: 2, gpus: 4, gpu_type: A100-80GB}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worth")
    text = sacct_text(past_jobs(300))
    (path / "past.txt").write_text(text + "901.batch|" + "|" * 15 + "\nhalf a row\n")
    (path / "other.txt").write_text(text.replace("a100", "h100"))
    (path / "cluster.yaml").write_text(CLUSTER)
    return path


def worth(folder: Path, *options: str, file: str = "past.txt") -> tuple[int, str, str]:
    arguments = ["worth", str(folder / file), "--cluster", str(folder / "cluster.yaml"), *options]
    done = RUNNER.invoke(app, arguments)
    return done.exit_code, done.stdout, done.stderr


def test_the_text_names_the_period_the_fidelity_and_the_limits(folder: Path) -> None:
    code, out, err = worth(folder, "--gpu-type", "a100=A100-80GB")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("225 jobs of 8 users, submitted from 2026-")
    assert "left out 1 job: a step of a job" in lines
    assert "left out 1 job: the row has not as many cells as the header (a job's name may hold a bar)" in lines
    assert any(line.startswith("The replay of Slurm waits ") and "rank correlation" in line for line in lines)
    assert any(line.split()[:4] == ["preemptions", "0", "0", "0"] for line in lines)
    assert any(line.startswith("mean wait, 1 GPU (") for line in lines)
    assert sum("against the replay of Slurm" in line for line in lines) == 2
    assert lines[-1].startswith("Not known to any replay: partitions")
    assert "predict each job from those that had ended before it ..." in err


def test_the_document(folder: Path) -> None:
    code, out, _ = worth(folder, "--gpu-type", "a100=A100-80GB", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "sooner.advice.worth/1"
    assert set(document["schedules"]) == {"real", "slurm", "asrpt never", "asrpt"}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--gpu-type", "a100"), 2, "--gpu-type: 'a100' is not SLURM=CLUSTER, such as a100=A100-80GB"),
        (("--gpu-type", "a100=B200"), 2, "GPU type a100=B200: the cluster's types are A100-80GB"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, options: tuple[str, ...], code: int, message: str) -> None:
    found, _, err = worth(folder, *options)
    assert (found, message in err) == (code, True)


def test_a_type_that_the_cluster_lacks_is_left_out_and_another_spelling_is_not(folder: Path) -> None:
    found, _, err = worth(folder, file="other.txt")
    assert found == 1
    assert "0 jobs with GPUs ran and ended; at least 200 are needed" in err
    assert "left out 300 jobs: GPU type 'h100' is not in the cluster file" in err
    assert worth(folder)[0] == 0, "a100 is the cluster's A100-80GB"


def test_the_past_of_slurms_commands_is_the_same_at_each_reading(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The later reading asks only for what is new. The rows that it leaves out are not all there are, so none are counted."""
    program = tmp_path / "sacct"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/answer.txt\n")
    program.chmod(0o755)
    (tmp_path / "answer.txt").write_text(sacct_text(_recent(past_jobs(300))) + "901.batch|" + "|" * 15 + "\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    arguments = ["worth", "--cluster", str(folder / "cluster.yaml"), "--gpu-type", "a100=A100-80GB", "--json"]
    first, second = (json.loads(RUNNER.invoke(app, arguments).stdout) for _ in range(2))
    assert first == second and first["left_out"] == {}


def _recent(jobs: Sequence[AccountedJob]) -> list[AccountedJob]:
    """The jobs moved in time, so that the last one ended a minute ago."""
    by_s = int(time.time() - 60.0 - max(job.end_s or 0.0 for job in jobs))
    return [
        replace(job, submit_s=job.submit_s + by_s, start_s=(job.start_s or 0.0) + by_s, end_s=(job.end_s or 0.0) + by_s)
        for job in jobs
    ]


def test_files_that_are_not_there(folder: Path) -> None:
    code, _, err = worth(folder, file="absent.txt")
    assert (code, "absent.txt" in err) == (2, True)
    done = RUNNER.invoke(app, ["worth", str(folder / "past.txt"), "--cluster", str(folder / "no.yaml")])
    assert (done.exit_code, "no.yaml" in done.stderr) == (2, True)


def test_a_wrong_file_is_told_before_slurm_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = RUNNER.invoke(app, ["worth", str(folder / "absent.txt")])
    assert (done.exit_code, done.stderr) == (2, f"error: {folder / 'absent.txt'}: No such file or directory\n")


def test_without_slurms_commands_the_error_names_the_option(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = RUNNER.invoke(app, ["worth", str(folder / "past.txt")])
    assert done.exit_code == 1
    assert "sinfo is not installed" in done.stderr
    assert "--cluster FILE gives the servers without Slurm" in done.stderr
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = RUNNER.invoke(app, ["worth", "--cluster", str(folder / "cluster.yaml")])
    assert (done.exit_code, "sacct is not installed" in done.stderr) == (1, True)
