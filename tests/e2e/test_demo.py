"""``sooner demo`` as a user runs it: what it shows really happens, and nothing is left behind, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from service.demo import jobs as today
from service.demo.live import Watch
from service.demo.run import Demo, DemoFailed, run_demo
from service.demo.server import Place
from service.demo.summary import Measured, Resumption, replay, resumptions

DEMO_DEADLINE_S = 240.0
"""Three minutes are the promise on an idle machine; tests may share theirs."""
STEP_DEADLINE_S = 90.0


def start(folder: Path) -> "subprocess.Popen[str]":
    """The demo, with its temporary files in ``folder``. Ctrl-C is not ignored, as it is for a shell's background jobs."""
    with (folder / "out").open("w") as out, (folder / "err").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "demo"],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def left_behind(folder: Path) -> list[str]:
    """Folders and processes of the demo that still exist."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("sooner-demo-" in word and str(folder) in word for word in words):
            processes.append(" ".join(words))
    return [str(path) for path in folder.glob("sooner-demo-*")] + processes


def await_text(folder: Path, pattern: str, process: "subprocess.Popen[str]") -> None:
    """Wait until the demo has printed something."""
    deadline_s = time.monotonic() + STEP_DEADLINE_S
    while not re.search(pattern, (folder / "out").read_text()):
        assert process.poll() is None, (folder / "err").read_text()
        assert time.monotonic() < deadline_s, f"no {pattern!r} in: {(folder / 'out').read_text()}"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    process = start(tmp_path)
    code = process.wait(DEMO_DEADLINE_S)
    out, errors = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    assert (code, errors) == (0, ""), out + errors
    assert left_behind(tmp_path) == []
    assert "SYNTHETIC history" in out
    assert out.count(": succeeded: ") == 20
    assert re.search(r"preempted at iteration [1-9]", out)
    assert re.search(r"resumes at iteration [1-9]", out)
    assert "20 more jobs to learn from" in out
    means = [float(found) for found in re.findall(r"(?:measured|simulated|no schedule).* (\d+\.\d) s", out)]
    measured_s, fifo_s, srsf_s, bound_s = means
    assert bound_s <= srsf_s <= fifo_s
    assert bound_s <= measured_s
    again = re.findall(r"ran (\d+) iterations, +now +(\d+) ", out)
    assert len(again) == len(today.PROGRAMS)
    assert all(float(ran) / 3.0 < float(now) < 3.0 * float(ran) for ran, now in again)
    families = {program.family.name for program in today.PROGRAMS}
    assert {line.split()[0] for line in out.splitlines() if re.search(r"\dx +\d of \d$", line)} == families


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["First training", r"preempted at iteration"], ids=["training", "preempting"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    process = start(tmp_path)
    try:
        await_text(tmp_path, moment, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(STEP_DEADLINE_S) == 130
    finally:
        process.kill()
    assert (tmp_path / "err").read_text() == "interrupted; everything is cleaned up\n"
    assert left_behind(tmp_path) == []


def test_today_has_twenty_jobs_that_fit_and_draw_from_their_past() -> None:
    bodies = today.bodies()
    assert bodies == today.bodies()
    assert len(bodies) == 20
    assert sum(body["gpus"] for body in bodies[: len(today.FIRST_WAVE)]) == today.GPUS
    past = {(job.user, job.project, job.name, job.gpus, job.walltime_s) for job in today.synthetic_history().jobs}
    for body in bodies:
        key = (body["user"], body["project"], body["name"], body["gpus"], body["walltime_s"])
        assert key in past
        iterations = int(next(word for word in body["command"] if word.startswith("--iterations=")).partition("=")[2])
        assert iterations * today.ITERATION_S < body["walltime_s"] / 2
        assert Path(body["command"][1]).is_file()
    assert len({body["name"] for body in bodies}) == 4


def test_the_history_is_labelled_synthetic_and_always_the_same() -> None:
    history = today.synthetic_history()
    assert history == today.synthetic_history()
    assert history.labels["synthetic"] == "true"
    assert len(history.jobs) == today.HISTORY_JOBS


def test_a_replay_takes_submit_times_gpus_and_measured_service(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("schema: sooner.cluster/1\nname: one\nservers:\n  - {gpus: 1}\n")
    ran = [
        Measured(1, "long", 1, 1000.0, 1100.0, 10.0, 100.0, 10.0, 0.0, 0),
        Measured(2, "short", 1, 1001.0, 1100.0, 2.0, 20.0, 2.0, 0.0, 0),
    ]
    # First in, first out: 10 s, then 2 s: completion times 10 and 11.
    assert replay(ran, cluster, "fifo").mean_jct_s == pytest.approx(10.5)
    # The short one displaces the long one at 1 s: 2 s, and 1 + 2 + 1 (restart) + 9 = 13 s.
    assert replay(ran, cluster, "srsf").mean_jct_s == pytest.approx(7.5)


def test_resumptions_pair_a_preempted_attempt_with_the_next() -> None:
    def attempt(number: int, state: str, resume: float, last: float | None) -> dict[str, object]:
        return {"job_id": 7, "number": number, "state": state, "resume_iteration": resume, "last_iteration": last}

    story = [
        attempt(1, "preempted", 0.0, 30.0),
        attempt(2, "preempted", 20.0, None),
        attempt(3, "failed", 20.0, 40.0),
        attempt(4, "completed", 40.0, 100.0),
    ]
    found = resumptions(story)  # type: ignore[arg-type]
    assert found == [Resumption(7, 30.0, 20.0), Resumption(7, 20.0, 20.0)]
    assert [each.lost_iterations for each in found] == [10.0, 0.0]


class Story:
    """Jobs of which a client only knows the attempts."""

    def __init__(self, attempts: dict[int, list[dict[str, object]]]) -> None:
        self._attempts = attempts

    def attempts(self, job_id: int) -> list[dict[str, object]]:
        return self._attempts[job_id]


def attempts(resumed_at: float) -> list[dict[str, object]]:
    return [
        {"job_id": 1, "state": "preempted", "resume_iteration": 0.0, "last_iteration": 30.0},
        {"job_id": 1, "state": "completed", "resume_iteration": resumed_at, "last_iteration": 50.0},
    ]


@pytest.mark.parametrize(
    ("state", "resumed_at", "message"),
    [
        ("succeeded", 30.0, None),
        ("succeeded", 0.0, "no job was preempted and resumed"),
        ("failed", 30.0, "1 of 1 jobs did not succeed: job 1 failed: It crashed."),
    ],
)
def test_the_demo_fails_if_what_it_shows_did_not_happen(state: str, resumed_at: float, message: str | None) -> None:
    demo = Demo(Place(Path("/nowhere")), 0.0)
    jobs: Any = [{"id": 1, "state": state, "reason_sentence": "It crashed."}]
    client: Any = SimpleNamespace(jobs=Story({1: attempts(resumed_at)}))
    if message is None:
        demo.check(client, jobs)
    else:
        with pytest.raises(DemoFailed, match=message):
            demo.check(client, jobs)


def test_a_failed_demo_says_so_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(demo: Demo) -> None:
        demo.place.log.write_text("the cause\n")
        raise DemoFailed("nothing happened")

    monkeypatch.setattr(Demo, "run", fail)
    assert run_demo() == 1
    errors = capsys.readouterr().err
    assert "the cause" in errors
    assert errors.splitlines()[-1] == "error: the demo failed: nothing happened"


def test_the_live_lines_tell_predictions_reasons_preemptions_and_resumption() -> None:
    told: list[str] = []
    prediction = {"p10": 40.0, "p50": 50.0, "p90": 60.0, "unit": "iterations", "source": "recurrence: 9 past runs"}
    base: dict[str, Any] = {
        "id": 3,
        "name": "mlp",
        "gpus": 1,
        "state": "queued",
        "reason": "resources",
        "reason_sentence": "Too few.",
        "attempts": 0,
        "preemptions": 0,
        "iterations_done": None,
        "prediction": prediction,
        "servers": [],
    }
    rounds = [
        base,
        base | {"state": "running", "attempts": 1, "servers": ["s0001"]},
        base | {"attempts": 1, "preemptions": 1, "iterations_done": 20.0},
        base | {"state": "running", "attempts": 2, "preemptions": 1, "iterations_done": 20.0, "servers": ["s0002"]},
        base | {"state": "succeeded", "attempts": 2, "preemptions": 1, "reason_sentence": "It ended."},
    ]
    client: Any = SimpleNamespace(jobs=SimpleNamespace(list=lambda: [rounds.pop(0)]))
    Watch(client, time.monotonic(), told.append).until(lambda jobs: not rounds, time.monotonic() + STEP_DEADLINE_S)
    assert [line.partition("(1 GPU): ")[2] for line in told] == [
        "predicted 50 [40-60]: recurrence: 9 past runs",
        "waits: resources: Too few.",
        "starts on s0001",
        "preempted at iteration 20: a job with less work left comes first",
        "waits: resources: Too few.",
        "starts on s0002, resumes at iteration 20",
        "succeeded: It ended.",
    ]
