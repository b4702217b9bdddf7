"""A child process that answers requests."""

import pickle
import sys

from service.runtime.child import Child

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
