"""Command lines of podman and apptainer, what is refused, and a real container where this machine can run one."""

import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId
from policies.model.job import JobSpec, Volume
from policies.model.reasons import Reason
from service.domain.volumes import closed_volume
from service.engine.commands import Stop
from service.engine.events import ReportKind
from service.executors.containers import Containers, contained_command, find_containers
from tests.local_executor import House, house, launch

__all__ = ["house"]

PODMAN = Containers("podman", "/usr/bin/podman", "crun")
APPTAINER = Containers("apptainer", "/usr/bin/apptainer")
SPEC = JobSpec(
    "j", "u", 1, command=("python", "t.py", "$HOME"), image="docker.io/library/python:3.11", env={"HOME": "/mine"},
    volumes=(Volume("/data", "/in", read_only=True), Volume('/a,"b', "/out")),
)  # fmt: skip
MOUNTS = [
    "--mount", "type=bind,source=/work,destination=/work",
    "--mount", "type=bind,source=/checkpoints/1,destination=/checkpoints/1",
    "--mount", "type=bind,source=/data,destination=/in,ro",
    "--mount", 'type=bind,"source=/a,""b",destination=/out',
]  # fmt: skip


def built(containers: Containers, *, gpus: bool = False, limits: dict[str, int] | None = None) -> list[str]:
    return contained_command(
        containers,
        SPEC,
        env=["RANK", "PATH", "HOME", "USER"],
        working_dir="/work",
        paths=["/checkpoints/1"],
        gpus=gpus,
        limits=limits or {},
    )


def test_the_command_line_of_podman() -> None:
    """The values of variables are in its environment alone; PATH is the image's, HOME the job's."""
    assert built(PODMAN, gpus=True, limits={"cpus": 2}) == [
        "/usr/bin/podman", "run", "--rm", "--network=host", "--ipc=host", "--log-driver=none", "--cgroups=disabled",
        "--device=nvidia.com/gpu=all", *MOUNTS, "--env", "HOME", "--env", "RANK", "--workdir=/work", "--entrypoint=",
        "docker.io/library/python:3.11", "python", "t.py", "$HOME",
    ]  # fmt: skip


def test_podman_with_another_runtime_limits_by_itself() -> None:
    command = built(PODMAN._replace(runtime="runc"), limits={"cpus": 2, "memory_mib": 512})
    assert command[6:9] == ["--cgroups=no-conmon", "--cpus=2", "--memory=512m"]
    assert "--device=nvidia.com/gpu=all" not in command


def test_the_command_line_of_apptainer() -> None:
    assert built(APPTAINER, gpus=True) == [
        "/usr/bin/apptainer", "exec", "--nv", *MOUNTS, "--pwd", "/work", "docker.io/library/python:3.11",
        "python", "t.py", "$HOME",
    ]  # fmt: skip


def test_what_is_found_at_the_start(tmp_path: Path) -> None:
    assert find_containers(str(tmp_path)) is None
    for name, text in (("apptainer", "#!/bin/sh\n"), ("podman", "#!/bin/sh\necho crun\n")):
        program = tmp_path / name
        program.write_text(text)
        program.chmod(0o755)
        found = find_containers(str(tmp_path))
        assert found is not None
        assert (found.kind, found.path) == (name, str(program))
    assert found.runtime == "crun"


def test_the_folder_of_the_service_is_no_volume(tmp_path: Path) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    (data / "attempts").mkdir(parents=True)
    link.symlink_to(data)
    for source in (data, data / "attempts", tmp_path, Path("/"), link, tmp_path / "other" / ".." / "data"):
        assert closed_volume(["/usr", str(source)], data) == 1, source
    assert closed_volume(["/usr", str(tmp_path / "data2")], data) is None


class TestRefused:
    def test_without_podman_and_apptainer(self, house: House) -> None:
        house.new_executor(containers=None)
        end = house.run(("true",), image="a:1")
        assert (end.kind, end.reason) == (ReportKind.LAUNCH_FAILED, Reason.NO_CONTAINERS)
        assert "image a:1: neither podman nor apptainer" in end.detail

    def test_a_link_to_the_folder_of_the_service(self, house: House, tmp_path: Path) -> None:
        house.new_executor(containers=PODMAN)
        (tmp_path / "link").symlink_to(house.data_dir)
        end = house.run(("true",), image="a:1", volumes=(Volume(str(tmp_path / "link"), "/x"),))
        assert (end.reason, "data folder" in end.detail) == (Reason.NO_CONTAINERS, True)


CONF = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=500:500"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "{runtime}"
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{root}/store"\nrunroot = "{root}/run"\n'
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Containers, dict[str, str]]]:
    """Podman and the variables by which it uses a store of the test alone, with an image that sees the server's /usr and /lib."""
    found = find_containers()
    if found is None or found.kind != "podman":
        pytest.skip("podman is not installed")
    root = tmp_path_factory.mktemp("podman")
    runtime = "runc" if shutil.which("runc", path="/usr/sbin:/usr/bin") else "crun"
    files = os.sysconf("SC_OPEN_MAX")
    (root / "containers.conf").write_text(CONF.format(files=files, runtime=runtime))
    (root / "storage.conf").write_text(STORAGE.format(root=root))
    env = {"CONTAINERS_CONF": str(root / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(root / "storage.conf")}
    with tarfile.open(root / "image.tar", "w") as image:
        for folder in ("usr", "tmp"):
            image.addfile(_folder(folder))
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            image.addfile(entry)
    full = {**os.environ, **env}
    name = "localhost/empty:1"
    made = subprocess.run(
        [found.path, "import", str(root / "image.tar"), name], env=full, capture_output=True, text=True, timeout=120
    )
    trial = [
        found.path,
        "run",
        "--rm",
        "--network=host",
        "--cgroups=no-conmon",
        "--volume=/usr:/usr:ro",
        name,
        "/usr/bin/true",
    ]
    if (
        made.returncode
        or (ran := subprocess.run(trial, env=full, capture_output=True, text=True, timeout=120)).returncode
    ):
        pytest.skip(f"podman cannot run a container here: {(made.stderr or ran.stderr).strip()[-200:]}")
    yield found._replace(runtime=runtime), env
    subprocess.run([found.path, "unshare", "true"], env=full, capture_output=True, timeout=60)


def _folder(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    return entry


class TestReal:
    """With podman as it is installed here."""

    USR = (Volume("/usr", "/usr", read_only=True),)

    def test_folders_variables_and_the_exit_code(self, house: House, podman: tuple[Containers, dict[str, str]]) -> None:
        found, env = podman
        house.new_executor(containers=found)
        code = (
            "import json, os, sys; e = os.environ; c = e['SOONER_CHECKPOINT_DIR']; open(c + '/kept', 'w').write('x'); "
            "open('here', 'w').close(); open(e['SOONER_PROGRESS_FILE'], 'a').write('{\"iteration\": 7}\\n'); "
            "print(json.dumps([os.getcwd(), e['LR'], e['WORLD_SIZE'], os.path.exists('/etc/passwd_of_host'), "
            "os.listdir('/')])); sys.exit(75)"
        )
        end = house.run((PYTHON, "-c", code), image="localhost/empty:1", env={**env, "LR": "0.1 $x"}, volumes=self.USR)
        assert end.exit_code == 75, house.output()
        folder, rate, world, _, root = json.loads(house.output().splitlines()[-1])
        assert (folder, rate, world) == (str(house.folder() / "work"), "0.1 $x", "1")
        assert "home" not in root and "var" not in root
        assert (house.data_dir / "checkpoints" / "1" / "kept").read_text() == "x"
        assert (house.folder() / "work" / "here").exists()
        assert end.iteration == 7

    def test_a_stop_reaches_the_program_and_a_stubborn_one_is_killed(
        self, house: House, podman: tuple[Containers, dict[str, str]]
    ) -> None:
        found, env = podman
        house.new_executor(containers=found, term_grace_s=1.0)
        code = (
            "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('term', flush=True)); "
            "print('ready', flush=True)\nwhile True: time.sleep(0.1)"
        )
        house.executor.send([launch((PYTHON, "-c", code), image="localhost/empty:1", env=env, volumes=self.USR)])
        house.wait_output("ready")
        running = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_program(path, code)]
        assert len(running) == 1
        house.executor.send([Stop(AttemptId("1.1"), graceful=False, grace_s=1.0)])
        end = house.wait_end()
        assert "term" in house.output()
        assert end.exit_code == 128 + signal.SIGKILL
        assert not _runs(running[0])

    def test_no_container_outlives_its_supervisor(
        self, house: House, podman: tuple[Containers, dict[str, str]]
    ) -> None:
        found, env = podman
        house.new_executor(containers=found)
        code = "import time; print('ready', flush=True); time.sleep(600)"
        house.executor.send([launch((PYTHON, "-c", code), image="localhost/empty:1", env=env, volumes=self.USR)])
        house.wait_output("ready")
        (running,) = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_program(path, code)]
        record = json.loads((house.folder() / "supervisor.json").read_text())
        for pid in (record["keeper"][0], record["pid"]):
            os.kill(pid, signal.SIGKILL)
        end = house.wait_end()
        assert end.kind is ReportKind.LOST
        assert not _runs(running)


def _runs(process: Path) -> bool:
    """Whether a process runs; one that has ended may wait for a parent that collects it."""
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def _is_program(cmdline: Path, code: str) -> bool:
    try:
        words = cmdline.read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0] == PYTHON.encode() and code.encode() in words
