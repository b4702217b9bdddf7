"""The process that runs foreign code: its limits, its environment, and an answer that may be anything."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from service.graphs.child import Bounds, traced
from service.plans.values import ReadError
from tests.local_executor import lives, wait_for

BOUNDS = Bounds(60.0, 2**31)
TRACE = {
    "operations": [{"name": "x", "kind": "input", "floats": 3, "fixed_bytes": 0}],
    "modules": {},
    "precision": "",
    "warnings": [],
}


def run(tmp_path: Path, code: str, bounds: Bounds = BOUNDS, python: str = sys.executable) -> list[str]:
    """The warnings of a trace that a program with this code answers; ``say(*words)`` puts words there."""
    program = tmp_path / "program.py"
    head = f"import json, os, sys\ndef say(*words): print(json.dumps({TRACE!r} | {{'warnings': [str(w) for w in words]}}))\n"
    program.write_text(head + code, encoding="utf-8")
    return list(traced(str(program), {"a": 1}, python, bounds).warnings)


def refused(tmp_path: Path, code: str, bounds: Bounds = BOUNDS, python: str = sys.executable) -> str:
    with pytest.raises(ReadError) as error:
        run(tmp_path, code, bounds, python)
    return str(error.value)


def test_the_request_is_the_argument(tmp_path: Path) -> None:
    assert run(tmp_path, "say(json.loads(sys.argv[1])['a'])") == ["1"]


def test_secrets_are_not_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOONER_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    names = run(tmp_path, "say(*os.environ)")
    assert {"PATH", "LC_ALL", "HF_HUB_OFFLINE"} <= set(names)
    assert not {"SOONER_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} & set(names)


@pytest.mark.skipif(os.geteuid() != 0, reason="other users may be forbidden to make network namespaces")
def test_it_reaches_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 5)\n"
            "except OSError: say('none')\nelse: say('reached')"
        )
        assert run(tmp_path, code) == ["none"]


def test_memory_above_the_limit_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "bytearray(4 << 30); say()")
    assert said == "model: reading it took more than 2 GiB of memory (--memory-gib)"


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    code = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"open({str(place)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    assert refused(tmp_path, code, Bounds(3.0, 2**31)) == "model: reading it took longer than 3 s (--time-limit)"
    wait_for(lambda: not lives(int(place.read_text())), "the end of the program's child")


def test_a_crash_is_told_with_its_last_line(tmp_path: Path) -> None:
    assert refused(tmp_path, "raise SystemExit('no luck')").endswith("ended with exit code 1: no luck")
    assert refused(tmp_path, "os.abort()").endswith("ended with signal 6: nothing was printed")


def test_a_refusal_of_the_program_is_the_error(tmp_path: Path) -> None:
    assert refused(tmp_path, "print(json.dumps({'error': 'a graph break'}))") == "model: a graph break"
    assert refused(tmp_path, "print(json.dumps({'error': 'batch: is needed'}))") == "batch: is needed"


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "/nowhere/python: No such file or directory" in refused(tmp_path, "say()", python="/nowhere/python")


def test_output_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.graphs.child.ANSWER_BYTES_MAX", 1 << 20)
    assert refused(tmp_path, "while True: print('x' * 1000)") == "model: its trace is larger than 1,048,576 bytes"
    assert run(tmp_path, "print('x' * 10**7, file=sys.stderr); say('done')") == ["done"]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {**TRACE, "operations": [{"name": "x", "kind": "odd", "floats": 1, "fixed_bytes": 0}]},
        {**TRACE, "operations": [{"name": "x", "kind": "other", "floats": -1, "fixed_bytes": 0}]},
        {**TRACE, "operations": [{"name": "x", "kind": "other", "floats": 2**81, "fixed_bytes": 0}]},
        {**TRACE, "operations": [{"name": "x", "kind": "other", "floats": 1.5, "fixed_bytes": 0}]},
        {**TRACE, "operations": [{"name": "x", "kind": "other", "floats": 1, "fixed_bytes": 0, "inputs": [0]}]},
        {**TRACE, "operations": {"a": 1}},
        {**TRACE, "modules": [1]},
        {**TRACE, "precision": 3},
    ],
)
def test_an_answer_that_is_no_trace_is_refused(tmp_path: Path, answer: object) -> None:
    said = refused(tmp_path, f"print({json.dumps(answer)!r})")
    assert said.startswith("model: the program that read it answered something else")
