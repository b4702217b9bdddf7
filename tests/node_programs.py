"""Real node programs on this machine: each pretends to run on another server of a cluster, with a shared folder between them."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import AttemptId
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.plan import PlanNode, cluster_plan
from service.executors.cluster.runtime import install_runtime, node_program
from service.executors.keys import AttemptKeys
from service.executors.launch_plan import Site
from service.executors.logs import read_log
from service.executors.seal import Seal
from service.runtime.processes import ProcessId, all_processes, signal_process
from tests.local_executor import DEADLINE_S, launch, wait_for


class Servers:
    """A shared folder and the node programs of its attempts. At the end every process of every attempt must be gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[subprocess.Popen[bytes]] = []
        self.digest = install_runtime(folder)
        names.make_private(folder / "attempts")
        self.keys = AttemptKeys(folder)
        self.site = Site(
            data_dir=folder,
            environ={"PATH": os.environ["PATH"]},
            lease_s=60.0,
            log_bytes_max=1 << 20,
            term_grace_s=5.0,
            progress_url=None,
            device_ids=None,
            checkpoints_dir=folder / "checkpoints",
            cgroups=None,
        )
        self._words = itertools.count(1)
        self.renew()

    def renew(self) -> None:
        """Renew the lease, as a service does."""
        names.write_lease(self.site.lease_file, 0.0)

    def inbox(self, attempt: str = "1.1") -> Path:
        """The inbox of an attempt, which exists."""
        return shared.make_inbox(self.site.attempts_dir, attempt)

    def seal(self, attempt: str = "1.1") -> Seal:
        """The seal of an attempt's records."""
        return self.keys.seal(attempt)

    def plan(self, command: tuple[str, ...], gpus: tuple[int, ...] = (1, 1), **options: Any) -> dict[str, Any]:
        """The plan of a launch with ``gpus[i]`` GPUs on server ``node<i>``. ``plan``: entries that are replaced."""
        replaced, exact = options.pop("plan", {}), options.pop("exact_gpus", False)
        inbox = options.pop("inbox", shared.INBOX)
        order = launch(command, gpus=gpus, **options)
        nodes = [PlanNode(f"node{rank}", "127.0.0.1") for rank in range(len(gpus))]
        self.inbox(order.attempt)
        text = cluster_plan(order, self.site, self.keys.identity(order.attempt), nodes, inbox=inbox, exact_gpus=exact)
        plan: dict[str, Any] = json.loads(text)
        return plan | replaced

    def start(
        self,
        plan: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        word: str = "",
        user: int | None = None,
        **environ: str,
    ) -> list[subprocess.Popen[bytes]]:
        """Start the program of each of these nodes (None: all) as an engine does."""
        started = []
        word = word or f"launch {next(self._words)}"
        for rank in range(len(plan["nodes"])) if nodes is None else nodes:
            program = subprocess.Popen(
                self.arguments(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment(rank, plan["nodes"][rank]["gpus"] or 0, word) | environ,
                process_group=0,  # as the tasks of Slurm
                user=user,
                extra_groups=None if user is None else [],
                cwd="/",
            )
            started.append(program)
            self.feed(program, plan)
        self.programs += started
        return started

    def arguments(self) -> tuple[str, ...]:
        """The command line of a node program."""
        return node_program(sys.executable, self.folder, self.digest)

    @staticmethod
    def environment(rank: int, gpus: int, word: str) -> dict[str, str]:
        """What an engine puts into the environment of a node program."""
        return {
            "SOONER_NODE": f"node{rank}",
            "SOONER_LAUNCH": word,
            "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in range(gpus)),
            "PATH": os.environ["PATH"],
        }

    @staticmethod
    def feed(program: "subprocess.Popen[bytes]", plan: Mapping[str, Any]) -> None:
        """Give a program its plan."""
        assert program.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            program.stdin.write(json.dumps(plan).encode())
            program.stdin.close()

    def run(self, command: tuple[str, ...], gpus: tuple[int, ...] = (1, 1), **options: Any) -> list[dict[str, Any]]:
        """Run an attempt to its end; returns the end of each node."""
        programs = self.start(self.plan(command, gpus, **options))
        assert [code_of(program) for program in programs] == [0] * len(gpus)
        return [self.end(rank) for rank in range(len(gpus))]

    def node(self, rank: int, attempt: str = "1.1") -> shared.NodeRecord:
        """What the folder of a node says."""
        return shared.read_node(self.inbox(attempt), rank, self.seal(attempt))

    def end(self, rank: int, attempt: str = "1.1") -> dict[str, Any]:
        """The end of a node, once it is recorded."""
        return wait_for(lambda: self.node(rank, attempt).end, f"the end of node {rank}")

    def output(self, rank: int, attempt: str = "1.1") -> str:
        """What the ranks of a node have written."""
        folder = shared.node_folder(self.inbox(attempt), rank)
        return read_log(folder / names.OUTPUT, 0, 1 << 20).data.decode()

    def wait_output(self, text: str, *ranks: int) -> None:
        """Wait until the ranks of each of these nodes have written ``text``."""

        def look() -> bool:
            failed = next((program for program in self.programs if program.poll()), None)
            assert failed is None or failed.stderr is None, f"a node program ended: {failed.stderr.read().decode()}"
            return all(text in self.output(rank) for rank in ranks)

        wait_for(look, f"{text!r} on nodes {ranks}")

    def supervisor(self, rank: int) -> tuple[int, int]:
        """The process numbers of a node's supervisor and keeper."""
        record = names.read_record(shared.node_folder(self.inbox(), rank), names.SUPERVISOR, self.seal())
        assert record is not None
        return record["pid"], record["keeper"][0]

    def processes(self) -> list[ProcessId]:
        """All living processes whose environment says that they belong to this folder."""
        folder = str(self.folder).encode()
        found = []
        for info in all_processes():
            with contextlib.suppress(OSError):
                if not info.zombie and folder in Path(f"/proc/{info.id.pid}/environ").read_bytes():
                    found.append(info.id)
        return found

    def close(self) -> None:
        """Stop what is left, and fail if something had to be killed."""
        for inbox in self.site.attempts_dir.glob("*/*"):
            shared.write_stop(inbox, None, 0.2, self.seal(AttemptId(inbox.parent.name)))
        late = []
        for program in self.programs:
            try:
                program.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                late.append(program.pid)
                os.kill(program.pid, signal.SIGKILL)
                program.wait()
            for stream in (program.stdout, program.stderr):
                assert stream is not None
                stream.close()
        left = self.processes()
        for process in left:
            signal_process(process, signal.SIGKILL)
        assert not late, f"node programs did not end: {late}"
        assert not left, f"processes outlived their attempts: {left}"


def code_of(program: "subprocess.Popen[bytes]") -> int:
    """The exit code of a node program, when it has ended."""
    return program.wait(DEADLINE_S)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers with a fresh shared folder, emptied afterwards."""
    made = Servers(tmp_path / "shared")
    yield made
    made.close()
