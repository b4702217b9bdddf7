"""Compiles the modules into a folder: copies the project there, writes dataclasses out, and runs mypyc and the C compiler."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from compilation.modules import copied, modules
from compilation.write_out import CannotWriteOut, written_out

_HIDDEN = "-fvisibility=hidden"
"""Nothing but the modules' entry points is visible outside: calls between files of the extension need no look-up then."""
_OPTIONS = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
"""`make types` checks all of it strictly. Where pip builds a wheel, the libraries are missing."""


def build(root: Path, work: Path) -> list[Path]:
    """The compiled modules, as paths below ``work``, which also holds what they were made from.

    Takes minutes. Raises CannotWriteOut, SystemExit where mypyc finds an error, and setuptools' errors of the C compiler.
    """
    shutil.rmtree(work, ignore_errors=True)
    for path in copied(root):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, work / path)
    names = modules(work)
    for name in names:
        try:
            (work / name).write_text(written_out((root / name).read_text()))
        except CannotWriteOut as error:
            raise CannotWriteOut(f"{name}: {error}") from None
    here = Path.cwd()
    os.chdir(work)  # mypyc names modules by their paths from here
    try:
        cache = ["--cache-dir", str(work.parent / "mypy")]
        extensions = mypycify(
            [*_OPTIONS, *cache, *names], debug_level="0", multi_file=True, target_dir="c", group_name="sooner"
        )
        command = _Parallel(Distribution({"name": "sooner", "ext_modules": extensions}))
        command.build_lib, command.build_temp = ".", "objects"
        command.ensure_finalized()
        command.run()
        return [work / path for path in command.get_outputs()]
    finally:
        os.chdir(here)


class _Parallel(build_ext):
    """Compiles the files of an extension on all cores: nearly all of the code is in one extension."""

    def build_extension(self, ext: Extension) -> None:
        """See setuptools."""

        flags = [*ext.extra_compile_args, *([_HIDDEN] if self.compiler.compiler_type == "unix" else [])]

        def compiled(source: str) -> str:
            objects: list[str] = self.compiler.compile(
                [source], self.build_temp, include_dirs=ext.include_dirs, extra_postargs=flags
            )
            return objects[0]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, ext.sources))
        ext.extra_objects, ext.sources = objects, []
        super().build_extension(ext)
