"""Reading a recorded cycle, as ``sooner sim snapshot`` writes it."""

import json
import sys
from pathlib import Path
from typing import Any

from policies.base import Policy
from policies.options import OptionError
from policies.registry import make_policy
from service.cli.fail import fail
from service.history.cycle_file import CycleFileError, read_cycle
from service.history.cycles import CycleSnapshot

FILE_BYTES_MAX = 1 << 30
"""A recorded cycle above this is not one."""

STANDARD = "-"
"""A file name that means standard input or output."""


def recorded_policy(file: Path, snapshot: CycleSnapshot) -> Policy[Any]:
    """The policy that decided the cycle, with its options; or an end with one line."""
    try:
        return make_policy(snapshot.policy, snapshot.options)
    except OptionError as error:
        fail(f"{file}: {error}")


def read_snapshot(file: Path) -> CycleSnapshot:
    """The recorded cycle, or an end with one line that says what is wrong with the file."""
    try:
        if str(file) == STANDARD:
            raw = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with file.open("rb") as stream:
                raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            fail(f"{file}: larger than {FILE_BYTES_MAX} bytes")
        return read_cycle(json.loads(raw))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    except CycleFileError as error:
        fail(f"{file}: {error}")
    except (ValueError, RecursionError) as error:
        fail(f"{file}: not JSON: {' '.join(str(error).split())}")
