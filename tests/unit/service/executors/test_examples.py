"""The example programs do what they tell users to do: report, checkpoint, obey signals, resume, and agree."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.job import Launch as LaunchMode
from policies.model.job import PreemptionSignal
from policies.model.parallelism import ParallelismConfig
from service.engine.events import ReportKind
from service.executors.launch_plan import free_port
from tests.local_executor import DEADLINE_S, House, house, launch, wait_for

__all__ = ["house"]

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
MLP = EXAMPLES / "train_mlp_numpy.py"
DIGITS = EXAMPLES / "train_digits.py"
DDP = EXAMPLES / "train_ddp_sockets.py"


def load(name: str) -> ModuleType:
    """A fresh copy of an example's module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sandbox:
    """A checkpoint folder and a progress file, as an attempt has."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.progress = folder / "progress.jsonl"

    @property
    def environment(self) -> dict[str, str]:
        names = {"SOONER_CHECKPOINT_DIR": str(self.checkpoints), "SOONER_PROGRESS_FILE": str(self.progress)}
        return {"PATH": os.environ["PATH"]} | names

    def start(self, program: Path, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(program), *arguments]
        return subprocess.Popen(command, env=self.environment | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, program: Path, *arguments: str) -> int:
        with self.start(program, *arguments) as process:
            output, _ = process.communicate(timeout=DEADLINE_S)
        assert b"Traceback" not in output, output.decode()
        return process.returncode

    def lines(self) -> list[dict[str, Any]]:
        """Complete progress lines so far."""
        text = self.progress.read_text() if self.progress.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def saved(self) -> dict[str, Any]:
        """What the checkpoint holds."""
        with np.load(self.checkpoints / "checkpoint.npz") as saved:
            return {name: saved[name] for name in saved.files}


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """One attempt's surroundings."""
    return Sandbox(tmp_path / "attempt")


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two checkpoints hold the same bits."""
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


class TestPrograms:
    def test_runs_reports_and_checkpoints(self, sandbox: Sandbox) -> None:
        assert sandbox.run(MLP, "--iterations", "60", "--checkpoint-every", "25") == 0
        last = sandbox.lines()[-1]
        assert (last["iteration"], last["total_iterations"], last["checkpoint_iteration"]) == (60, 60, 60)
        assert int(sandbox.saved()["iteration"]) == 60
        assert {25, 50} <= {line.get("checkpoint_iteration") for line in sandbox.lines()}
        assert [path.name for path in sandbox.checkpoints.iterdir()] == ["checkpoint.npz"], "no temporary file is left"

    def test_it_learns(self, sandbox: Sandbox) -> None:
        sandbox.run(MLP, "--iterations", "300", "--data", "digits", "--step-seconds-min", "0")
        lines = sandbox.lines()
        assert lines[0]["loss"] > 1.5
        assert lines[-1]["loss"] < 0.3

    @pytest.mark.parametrize("program", [MLP, pytest.param(DIGITS, marks=pytest.mark.slow)])
    def test_stopped_and_resumed_equals_unbroken(self, tmp_path: Path, program: Path) -> None:
        unbroken, broken = Sandbox(tmp_path / "unbroken"), Sandbox(tmp_path / "broken")
        assert unbroken.run(program, "--iterations", "40") == 0
        with broken.start(program, "--iterations", "40", "--step-seconds-min", "0.05") as process:
            wait_for(lambda: broken.lines() or process.poll() is not None, "the first report")
            process.send_signal(signal.SIGUSR1)
            process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 75
        stopped_at = broken.lines()[-1]
        assert (
            0 < stopped_at["iteration"] == stopped_at["checkpoint_iteration"] == int(broken.saved()["iteration"]) < 40
        )
        assert broken.run(program, "--iterations", "40") == 0
        resumed = broken.lines()[-1]
        assert resumed["iteration"] == 40
        assert same(unbroken.saved(), broken.saved())

    def test_sigterm_ends_it_without_a_checkpoint(self, sandbox: Sandbox) -> None:
        with sandbox.start(MLP, "--step-seconds-min", "30", "--checkpoint-every", "1") as process:
            wait_for(lambda: process.stdout is not None and process.stdout.readline(), "its first line")
            wait_for(lambda: _catches_sigterm(process.pid), "its signal handlers")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 143
        assert list(sandbox.checkpoints.iterdir()) == []

    def test_a_finished_job_that_is_started_again_has_nothing_to_do(self, sandbox: Sandbox) -> None:
        assert [sandbox.run(MLP, "--iterations", "5") for _ in range(2)] == [0, 0]
        assert sandbox.lines()[-1]["iteration"] == 5

    def test_outside_sooner_it_just_trains(self, tmp_path: Path) -> None:
        environment = {"PATH": os.environ["PATH"]}
        done = subprocess.run(
            [sys.executable, str(MLP), "--iterations", "5"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        assert (done.returncode, list(tmp_path.iterdir())) == (0, [])


def _catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


class TestGang:
    @staticmethod
    def order(job: int, ranks: tuple[int, ...], *arguments: str, number: int = 1) -> Any:
        command = (sys.executable, str(DDP), *arguments)
        wish = PreemptionSignal("SIGUSR1", 30.0)
        return launch(command, job=job, number=number, gpus=ranks, mode=LaunchMode.GPU, preemption=wish)

    @staticmethod
    def saved(house: House, job: int) -> dict[str, Any]:
        with np.load(house.data_dir / f"checkpoints/{job}/checkpoint.npz") as saved:
            return {name: saved[name] for name in saved.files}

    def test_three_ranks_train_what_one_trains(self, house: House) -> None:
        for job, ranks in ((1, (1,)), (2, (2, 1))):
            house.executor.send([self.order(job, ranks, "--iterations", "30", "--checkpoint-every", "10")])
        for job in (1, 2):
            end = house.wait_end(f"{job}.1")
            assert end.exit_code == 0, house.output(job)
            assert (end.iteration, end.checkpoint_iteration) == (30.0, 30.0)
        one, three = self.saved(house, 1), self.saved(house, 2)
        np.testing.assert_allclose(one["weights"], three["weights"], rtol=1e-9, atol=1e-12)

    @pytest.mark.slow
    def test_stopped_together_and_resumed_equals_unbroken(self, house: House) -> None:
        house.executor.send([self.order(1, (2, 1), "--iterations", "30")])
        assert house.wait_end("1.1").exit_code == 0, house.output()
        paced = ("--iterations", "30", "--step-seconds-min", "0.05")
        house.executor.send([self.order(2, (2, 1), *paced)])
        house.wait_report(ReportKind.PROGRESS, attempt="2.1")
        house.stop("2.1", warning="SIGUSR1", grace_s=60.0)
        end = house.wait_end("2.1")
        assert end.exit_code == 75, house.output(2)
        assert end.iteration == end.checkpoint_iteration == float(self.saved(house, 2)["iteration"])
        house.executor.send([self.order(2, (1, 2), "--iterations", "30", number=2)])
        assert house.wait_end("2.2").exit_code == 0, house.output(2)
        assert same(self.saved(house, 1), self.saved(house, 2))

    def test_a_rank_that_dies_takes_the_gang_with_it(self, house: House) -> None:
        house.executor.send([self.order(1, (3,), "--iterations", "100000", "--step-seconds-min", "0.02")])
        house.wait_report(ReportKind.PROGRESS)
        ranks = json.loads((house.folder() / "ranks.json").read_text())["ranks"]
        os.kill(ranks[1][0], signal.SIGKILL)
        end = house.wait_end()
        assert end.exit_code == 137, house.output()
        assert not end.stop_signalled


EXAMPLES_DRAWN = itertools.count()


@given(
    ranks=st.integers(1, 4),
    length=st.integers(0, 9),
    values=st.lists(st.floats(-1e6, 1e6), min_size=36, max_size=36),
)
@settings(max_examples=15, deadline=None)
def test_a_ring_sums_to_the_same_bits_everywhere(ranks: int, length: int, values: list[float]) -> None:
    ring = load("ring")
    # Not one that the kernel gives to others as well: somebody could have it before rank 0 listens.
    port = free_port((), first=os.getpid() + next(EXAMPLES_DRAWN))
    vectors = np.array(values).reshape(4, 9)[:ranks, :length]
    sums: dict[int, Any] = {}

    def work(rank: int) -> None:
        place = ring.Ring(rank, ranks, "127.0.0.1", port)
        sums[rank] = (place.sum(vectors[rank]), place.gather(float(rank)))
        place.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=DEADLINE_S)
    assert sorted(sums) == list(range(ranks))
    for total, numbers in sums.values():
        assert np.array_equal(total, sums[0][0])
        assert numbers.tolist() == list(range(ranks))
    np.testing.assert_allclose(sums[0][0], vectors.sum(axis=0), rtol=1e-9, atol=1e-6)


class Listener(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    received: list[tuple[str, str | None, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """A server on a free port."""
    Listener.received = []
    with HTTPServer(("127.0.0.1", 0), Listener) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


class TestProgressHelper:
    def test_lines_in_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOONER_PROGRESS_FILE", str(tmp_path / "progress"))
        report = load("sooner_progress").report
        assert report(10, 100, loss=0.5)
        assert not report(11, 100), "too fast"
        assert report(12, 100, checkpoint_iteration=12), "a new checkpoint is always told"
        assert not report(13, 100, checkpoint_iteration=12)
        assert report(100, 100, checkpoint_iteration=12), "and so is the last iteration"
        assert [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()] == [
            {"iteration": 10, "total_iterations": 100, "loss": 0.5},
            {"iteration": 12, "total_iterations": 100, "checkpoint_iteration": 12},
            {"iteration": 100, "total_iterations": 100, "checkpoint_iteration": 12},
        ]

    def test_over_http(self, server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SOONER_PROGRESS_FILE", raising=False)
        monkeypatch.setenv("SOONER_PROGRESS_URL", f"http://127.0.0.1:{server.server_port}/here")
        monkeypatch.setenv("SOONER_PROGRESS_TOKEN", "t0ken")
        assert load("sooner_progress").report(3)
        assert Listener.received == [("/here", "Bearer t0ken", {"iteration": 3})]

    def test_a_scheduler_that_does_not_listen_stops_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SOONER_PROGRESS_FILE", str(tmp_path / "no" / "folder"))
        assert not load("sooner_progress").report(1)
        monkeypatch.delenv("SOONER_PROGRESS_FILE")
        assert not load("sooner_progress").report(1)
        monkeypatch.setenv("SOONER_PROGRESS_URL", "http://127.0.0.1:1/")
        assert not load("sooner_progress").report(1)

    def test_it_needs_nothing_but_the_standard_library(self) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(EXAMPLES / "sooner_progress.py")], capture_output=True, timeout=DEADLINE_S
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_the_rank_map_of_an_attempt_shows_what_each_gpu_computes(house: House) -> None:
    """A pipeline of two stages, the first with a tensor group, on two servers of the local executor."""
    program = (sys.executable, str(EXAMPLES / "rank_map.py"))
    spread: dict[str, Any] = {"replicas": ((0, 2), (1, 0)), "parallelism": ParallelismConfig((1, 2), (2, 1))}
    assert house.run(program, gpus=(2, 2), mode=LaunchMode.GPU, **spread).exit_code == 0
    lines = [line.split("] ", 1) for line in sorted(house.output().splitlines())]
    assert [(mark, line) for mark, line in lines] == [
        ("[0", "rank 0 of 4: server 0, GPU 4: stage 0 replica 0 tensor 0"),
        ("[1", "rank 1 of 4: server 0, GPU 5: stage 0 replica 0 tensor 1"),
        ("[2", "rank 2 of 4: server 1, GPU 0: stage 1 replica 0 tensor 0"),
        ("[3", "rank 3 of 4: server 1, GPU 1: stage 1 replica 1 tensor 0"),
    ]
    assert house.run(program, job=2, gpus=(1, 2)).exit_code == 0
    assert sorted(house.output(2).splitlines()) == ["[0] server 0: rank - of 3", "[1] server 1: rank - of 3"]
