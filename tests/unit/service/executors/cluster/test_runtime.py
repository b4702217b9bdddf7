"""The copy of the node program in the shared folder, and the check of the nodes."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from service.executors.cluster import runtime
from service.executors.cluster.check import write_problems
from service.executors.cluster.runtime import (
    CHECK,
    MODULES,
    PROGRAM,
    RUNTIME,
    CheckRequest,
    begin_check,
    check_program,
    end_check,
    install_runtime,
    node_program,
    request_check,
    take_answer,
)

SYSTEM_PYTHON = Path("/usr/bin/python3")


def test_it_has_exactly_the_modules_that_the_program_imports(tmp_path: Path) -> None:
    program = tmp_path / RUNTIME / install_runtime(tmp_path) / PROGRAM
    code = (
        f"import runpy, sys; sys.argv[1:] = ['--node']; runpy.run_path({str(program)!r})\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('service') and hasattr(m, '__file__')))\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    files, modules = done.stdout.splitlines()
    root = program.parents[2]
    assert {str(Path(file).relative_to(root)) for file in files.split()} | {PROGRAM, CHECK} == set(MODULES)
    slow = {"asyncio", "dataclasses", "inspect", "logging", "shutil", "socket", "subprocess", "tempfile", "traceback"}
    assert slow & set(modules.split()) == set()


def test_the_local_supervisor_imports_nothing_of_it() -> None:
    program = runtime._SOURCES / PROGRAM
    code = f"import runpy, sys; sys.argv[1:] = ['/attempts/1.1']; runpy.run_path({str(program)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("service.executors.cluster.")]


class TestInstall:
    def test_twice_is_once(self, tmp_path: Path) -> None:
        digest = install_runtime(tmp_path)
        program = tmp_path / RUNTIME / digest / PROGRAM
        before = program.stat()
        assert install_runtime(tmp_path) == digest
        assert program.stat() == before
        assert [path.name for path in (tmp_path / RUNTIME).iterdir()] == [digest]

    @pytest.mark.parametrize("fault", ["cut", "missing", "empty folder"])
    def test_a_damaged_one_is_replaced(self, tmp_path: Path, fault: str) -> None:
        digest = install_runtime(tmp_path)
        damaged = tmp_path / RUNTIME / digest / MODULES[-1]
        if fault == "cut":
            damaged.write_bytes(damaged.read_bytes()[:100])
        elif fault == "missing":
            damaged.unlink()
        else:
            shutil.rmtree(tmp_path / RUNTIME / digest)
            (tmp_path / RUNTIME / digest).mkdir()
        assert install_runtime(tmp_path) == digest
        assert damaged.read_bytes() == (runtime._SOURCES / MODULES[-1]).read_bytes()

    def test_several_services_at_once(self, tmp_path: Path) -> None:
        begin = threading.Barrier(4)
        digests: list[str] = []

        def install() -> None:
            begin.wait()
            digests.append(install_runtime(tmp_path))

        threads = [threading.Thread(target=install) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(digests) == 4
        assert len(set(digests)) == 1
        assert {path.name for path in (tmp_path / RUNTIME).iterdir() if path.name[0] != "."} == set(digests)

    def test_never_half_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(folder: Path, name: str, content: bytes) -> None:
            if name == MODULES[5]:
                raise OSError(28, os.strerror(28))
            write(folder, name, content)

        write = runtime._write
        monkeypatch.setattr(runtime, "_write", full)
        with pytest.raises(OSError, match="No space left"):
            install_runtime(tmp_path)
        assert list((tmp_path / RUNTIME).iterdir()) == []

    def test_old_drafts_are_deleted(self, tmp_path: Path) -> None:
        old, young = tmp_path / RUNTIME / ".old", tmp_path / RUNTIME / ".young"
        old.mkdir(parents=True)
        young.mkdir()
        os.utime(old, (1.0, 1.0))
        install_runtime(tmp_path)
        assert not old.exists()
        assert young.exists()

    def test_another_release_has_another_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sources = tmp_path / "sources"
        for name in MODULES:
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(runtime._SOURCES / name, sources / name)
        first = install_runtime(tmp_path)
        (sources / MODULES[0]).write_text("# another release\n")
        monkeypatch.setattr(runtime, "_SOURCES", sources)
        second = install_runtime(tmp_path)
        assert {path.name for path in (tmp_path / RUNTIME).iterdir()} == {first, second}

    @pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="no /usr/bin/python3")
    def test_the_systems_python_starts_it(self, tmp_path: Path) -> None:
        arguments = node_program(str(SYSTEM_PYTHON), tmp_path, install_runtime(tmp_path))
        done = subprocess.run(arguments, input=b'{"attempts_dir": "/"}', capture_output=True, env={})
        assert done.stderr.decode() == "sooner: SOONER_LAUNCH is not set: it is the word of the launch\n"


class TestCheck:
    @staticmethod
    def run(mounted: Path, check: runtime.Check, request: CheckRequest, node: str = "node1") -> tuple[int, str]:
        arguments = check_program(sys.executable, mounted, install_runtime(mounted), check)
        environ = {"SOONER_NODE": node}
        done = subprocess.run(arguments, input=request.plan, capture_output=True, env=environ)
        return done.returncode, done.stderr.decode()

    def test_a_node_that_is_fine(self, tmp_path: Path) -> None:
        check = begin_check(tmp_path)
        request, other = request_check(check, "node1"), request_check(check, "node2")
        assert take_answer(tmp_path, check, request) is None
        assert self.run(tmp_path, check, request) == (0, "")
        folder = tmp_path / "checks" / check.nonce
        assert {path.name for path in folder.iterdir()} == {"nonce", request.answer}
        assert take_answer(tmp_path, check, request) == []
        assert take_answer(tmp_path, check, other) is None
        assert {path.name for path in folder.iterdir()} == {"nonce"}, (
            "answers do not gather while a server is checked again"
        )
        end_check(tmp_path, check)
        assert not folder.exists()

    def test_another_node_than_the_one_that_was_asked(self, tmp_path: Path) -> None:
        check = begin_check(tmp_path)
        request = request_check(check, "node1")
        assert self.run(tmp_path, check, request, "node2") == (0, "")
        assert take_answer(tmp_path, check, request) is None

    def test_no_user_learns_where_an_answer_is_expected(self, tmp_path: Path) -> None:
        check = begin_check(tmp_path)
        request = request_check(check, "node1")
        arguments = check_program(sys.executable, tmp_path, "digest", check)
        assert request.answer not in " ".join(arguments), "any user may see the arguments of a program"
        assert stat.S_IMODE((tmp_path / "checks" / check.nonce).stat().st_mode) == 0o1733, (
            "others cannot list the names"
        )

    def test_under_another_path(self, tmp_path: Path) -> None:
        (tmp_path / "there").symlink_to(tmp_path / "here")
        (tmp_path / "here").mkdir()
        check = begin_check(tmp_path / "here")
        request = request_check(check, "node1")
        assert self.run(tmp_path / "there", check, request) == (0, "")
        assert take_answer(tmp_path / "here", check, request) == []

    def test_a_folder_that_is_not_mounted(self, tmp_path: Path) -> None:
        check = begin_check(tmp_path / "here")
        request = request_check(check, "node1")
        (tmp_path / "there").mkdir()
        code, said = self.run(tmp_path / "there", check, request)
        assert code == 1
        assert f"the shared folder cannot be read at {tmp_path}/there/checks/{check.nonce}: No such file" in said
        assert take_answer(tmp_path / "here", check, request) is None

    def test_another_folder(self, tmp_path: Path) -> None:
        check = begin_check(tmp_path)
        request = request_check(check, "node1")
        (tmp_path / "checks" / check.nonce / "nonce").write_text("other")
        self.run(tmp_path, check, request)
        (problem,) = take_answer(tmp_path, check, request) or ()
        assert problem.endswith("is another folder than that of the service")

    @pytest.mark.parametrize(("offset_s", "problem"), [(60.0, "60.0 s behind that of the service"), (-2.0, "")])
    def test_a_clock_that_is_behind(self, tmp_path: Path, offset_s: float, problem: str) -> None:
        check = begin_check(tmp_path)
        request = request_check(check, "node1")
        late = json.loads(request.plan) | {"at_s": time.time() + offset_s + (1.0 if problem else 0.0)}
        self.run(tmp_path, check, request._replace(plan=json.dumps(late).encode()))
        found = take_answer(tmp_path, check, request)
        assert found is not None
        assert bool(found) == bool(problem)
        assert all("s behind that of the service; the limit is 5 s" in text for text in found)

    def test_a_folder_without_writing(self, tmp_path: Path) -> None:
        (problem,) = write_problems(tmp_path / "gone")
        assert problem == f"the shared folder cannot be written at {tmp_path}/gone: No such file or directory"

    def test_a_folder_without_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(95, os.strerror(95))

        monkeypatch.setattr(os, "link", refuse)
        (problem,) = write_problems(tmp_path)
        assert (
            problem == f"the shared folder has no locks (flock) or no hard links at {tmp_path}: Operation not supported"
        )
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("node", ["", "../node1", ".."])
    def test_a_name_that_is_no_name(self, tmp_path: Path, node: str) -> None:
        check = begin_check(tmp_path)
        code, said = self.run(tmp_path, check, request_check(check, "node1"), node)
        assert code == 1
        assert f"SOONER_NODE={node}: it must be the name of this node" in said
