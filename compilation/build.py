"""Compiles the modules into a folder: copies the packages there, writes dataclasses out, and runs mypyc and the C compiler."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from compilation.modules import DATA, PACKAGES, modules
from compilation.write_out import written_out

_OPTIONS = ("--ignore-missing-imports", "--no-warn-no-return")


def build(root: Path, work: Path) -> list[Path]:
    """The compiled modules, as paths below ``work``, which also holds what they were made from.

    Takes minutes. Raises CannotWriteOut, SystemExit where mypyc finds an error, and setuptools' errors of the C compiler.
    """
    shutil.rmtree(work, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(root / package, work / package, ignore=_left_out)
    for folder in DATA:
        shutil.copytree(root / folder, work / folder)
    names = modules(work)
    for name in names:
        path = work / name
        path.write_text(written_out(path.read_text()))
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


def _left_out(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not name.endswith((".py", ".pyi", ".typed")) and not (Path(folder) / name).is_dir()
    ]


class _Parallel(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles the files of an extension on all cores: nearly all of the code is in one extension."""

    def build_extension(self, ext: Any) -> None:
        """See setuptools."""

        def compiled(source: str) -> str:
            objects: list[str] = self.compiler.compile(
                [source], self.build_temp, include_dirs=ext.include_dirs, extra_postargs=ext.extra_compile_args
            )
            return objects[0]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, ext.sources))
        ext.extra_objects, ext.sources = objects, []
        super().build_extension(ext)
