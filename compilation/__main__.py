"""``python -m compilation``: compiles the modules into ``build/compiled``, and lists them there in ``modules.txt``.

Does nothing where that was made from the same source by the same compiler and Python.
"""

import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from compilation.build import build
from compilation.modules import copied

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """See the module."""
    work = ROOT / "build" / "compiled"
    stamp, wanted = work / "made_from.txt", _made_from()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    built = build(ROOT, work)
    (work / "modules.txt").write_text("".join(f"{path.relative_to(work)}\n" for path in built))
    stamp.write_text(wanted)


def _made_from() -> str:
    """What decides the result: the compiler, the Python, and the bytes of what is copied and of what builds it."""
    digest = hashlib.sha256(f"{version('mypy')} {sys.version} {platform.machine()}".encode())
    for path in [*copied(ROOT), *(Path("compilation", f"{each}.py") for each in ("build", "modules", "write_out"))]:
        digest.update(f"{path}\0".encode() + (ROOT / path).read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    main()
