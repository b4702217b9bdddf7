"""Where a supervisor process begins: run as a plain file with ``python -I -S``, so that it starts quickly.

Its argument is the folder of its attempt; ``--several`` and a folder for several attempts; or ``--node`` for the node program of
a cluster's attempt.

The packages are created by hand, without running their ``__init__``: an isolated interpreter does not see an
editable install, and a supervisor must not import anything else of the service.
"""

import contextlib
import os
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
for name, folder in (
    ("service", HERE.parent),
    ("service.executors", HERE),
    ("service.executors.cluster", HERE / "cluster"),
    ("service.runtime", HERE.parent / "runtime"),
):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package

if sys.argv[1:] == ["--node"]:
    from service.executors.cluster.node import main
elif sys.argv[1:2] == ["--several"]:
    from service.executors.starter import main
else:
    from service.executors.supervisor import main

if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.flush()
    # Not sys.exit: a forked process would copy most of its memory only to take it apart object by object.
    os._exit(code)
