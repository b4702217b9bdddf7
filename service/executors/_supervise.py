"""Where a supervisor process begins: run as a plain file with ``python -I -S``, so it starts in some 30 milliseconds.

The packages are created by hand, without running their ``__init__``: an isolated interpreter does not see an
editable install, and a supervisor must not import anything else of the service.
"""

import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
for name, folder in (
    ("service", HERE.parent),
    ("service.executors", HERE),
    ("service.runtime", HERE.parent / "runtime"),
):
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package

from service.executors.supervisor import main  # noqa: E402 the packages above must be there first

if __name__ == "__main__":
    sys.exit(main())
