"""Runs the command of a job in a container image, by podman or by apptainer.

The container's processes are descendants of the attempt's supervisor like those of any program, also where podman has given them
to a monitor of its own. So the supervisor sees, signals and kills them as ever, and none outlives the attempt. Network, shared
memory and, with apptainer, process numbers are those of the server.
"""

import csv
import io
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from policies.model.job import JobSpec, Volume

_ASK_S = 20.0
_OF_THE_SERVER = frozenset({"PATH", "HOME", "USER", "LOGNAME", "TMPDIR"})
"""Variables that mean something else in a container, unless the job sets them."""


class Containers(NamedTuple):
    """What runs images on this machine. ``path``: the program; ``runtime``: podman's, "" for apptainer."""

    kind: Literal["podman", "apptainer"]
    path: str
    runtime: str = ""

    @property
    def sentence(self) -> str:
        """For the log."""
        return f"Images are run by {self.path}" + (f" with {self.runtime}" if self.runtime else "")


def find_containers(search: str | None = None) -> Containers | None:
    """Podman, else apptainer, else None. ``search``: the folders to look in; None: those of PATH. Takes a second for podman."""
    if (podman := shutil.which("podman", path=search)) is not None:
        asked = [podman, "info", "--format", "{{.Host.OCIRuntime.Name}}"]
        try:
            found = subprocess.run(asked, capture_output=True, text=True, timeout=_ASK_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return Containers("podman", podman)
        return Containers("podman", podman, found.stdout.strip())
    apptainer = shutil.which("apptainer", path=search)
    return None if apptainer is None else Containers("apptainer", apptainer)


def contained_command(
    containers: Containers,
    spec: JobSpec,
    *,
    env: Collection[str],
    working_dir: str,
    paths: Sequence[str],
    gpus: bool,
    limits: Mapping[str, int],
) -> list[str]:
    """The command line that runs the job's command in its image.

    ``env``: names of the variables that the program gets; their values are not part of the command line, which every user of the
    server may read. ``paths``: what the container sees besides the volumes, at the same place. ``gpus``: whether the server has
    physical ones; which of them the program uses is a matter of its environment, as without a container. ``limits``: of
    :func:`service.executors.launch_plan.limits_of`.
    """
    assert spec.image is not None
    mounts = [*(Volume(path, path) for path in dict.fromkeys([working_dir, *paths])), *spec.volumes]
    bound = [part for mount in mounts for part in ("--mount", _mount(mount))]
    if containers.kind == "apptainer":
        nvidia = ["--nv"] if gpus else []
        return [containers.path, "exec", *nvidia, *bound, "--pwd", working_dir, spec.image, *spec.command]
    passed = [
        part for name in sorted(set(env)) if name not in _OF_THE_SERVER - spec.env.keys() for part in ("--env", name)
    ]
    return [
        containers.path, "run", "--rm", "--network=host", "--ipc=host", "--log-driver=none",
        # In the attempt's own control group, which limits and kills it.
        *(["--cgroups=disabled"] if containers.runtime == "crun" else ["--cgroups=no-conmon", *_flags(limits)]),
        *(["--device=nvidia.com/gpu=all"] if gpus else []),
        *bound, *passed, f"--workdir={working_dir}", "--entrypoint=", spec.image, *spec.command,
    ]  # fmt: skip


def _flags(limits: Mapping[str, int]) -> list[str]:
    cpus = [f"--cpus={limits['cpus']}"] if "cpus" in limits else []
    return cpus + ([f"--memory={limits['memory_mib']}m"] if "memory_mib" in limits else [])


def _mount(volume: Volume) -> str:
    """Both programs read this as a line of CSV."""
    line = io.StringIO()
    fields = ["type=bind", f"source={volume.source}", f"destination={volume.target}"]
    csv.writer(line, lineterminator="").writerow(fields + (["ro"] if volume.read_only else []))
    return line.getvalue()
