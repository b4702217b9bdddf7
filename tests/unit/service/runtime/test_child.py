"""A child process that answers requests."""

import pickle
import subprocess
import sys

from service.runtime.child import Child, write_message

_PRINTS = """
import os
from service.runtime.child import serve

def answer(question):
    print("said in Python", flush=True)
    os.write(1, b"said by a library in C")
    return question

serve(answer, ValueError)
"""


def test_what_a_library_prints_does_not_come_between_the_answers() -> None:
    child = Child([sys.executable, "-c", _PRINTS])
    try:
        for question in ("first", "second"):
            assert child.ask(pickle.dumps(question), 60.0) == question
    finally:
        child.close()


_ANSWERS_LATE = """
import sys
from service.runtime.child import serve

def answer(question):
    sys.stderr.write("asked ")
    sys.stderr.flush()
    sys.stdin.buffer.read()
    return bytes(1_000_000)

serve(answer, ValueError)
"""


def test_a_child_whose_parent_is_killed_while_it_computes_ends_without_a_word() -> None:
    command = [sys.executable, "-c", _ANSWERS_LATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        write_message(child.stdin, pickle.dumps("question"))
        assert child.stderr.read(6) == b"asked "
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0
