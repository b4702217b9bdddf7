"""An emulated Slurm cluster in a throw-away folder: one controller and four nodes on this machine, with four GPUs each.

The GPUs are character devices that no driver stands behind. Debian's build of Slurm allows several nodes on one host.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import psutil

from service.slurm.cluster import Slurm
from service.slurm.commands import SlurmCommands, SlurmError
from tests.local_executor import pause_s

PACKAGES: Final = ("slurm-wlm", "slurmctld", "slurmd", "munge")
T = TypeVar("T")
NODES: Final = 4
GPUS: Final = 4
PORT: Final = 16817
"""Of the controller; the nodes listen on the next ones."""
START_S: Final = 180.0
"""Longest wait for what must come: how fast it comes on a crowded machine is not asked here."""
_COMMANDS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_CONF: Final = r"""
ClusterName=emulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SwitchType=switch/none
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
GresTypes=gpu
ReturnToService=2
InactiveLimit=0
JobRequeue=1
{settings}
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_port}-{last_port}] CPUs=16 RealMemory=64000 \
 Gres=gpu:a100:{gpus}
PartitionName=main Nodes=node[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
_SETTINGS: Final = {
    "AccountingStorageType": "accounting_storage/none",
    "KillWait": "2",
    # A killed node is declared down after about 15 s; by default it takes minutes.
    "MessageTimeout": "5",
    "TCPTimeout": "2",
    "SlurmdTimeout": "3",
    "MinJobAge": "300",
    "PriorityType": "priority/basic",
    "SchedulerParameters": "bf_interval=2,sched_interval=1,sched_min_interval=0,batch_sched_delay=0,default_queue_depth=1000",
    "SlurmctldTimeout": "30",
}


def missing() -> str:
    """What of Slurm is missing on this machine, in one sentence; "" if nothing is."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = [command for command in _COMMANDS if shutil.which(command) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)}): apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    return ""


def alone_on_network() -> bool:
    """Whether this process is in a network namespace as :mod:`tests.engines.run` makes it."""
    return Path("/sys/class/net/engines0").exists() or "engines0" in {name for _, name in socket.if_nameindex()}


def wait_for(condition: Callable[[], T], what: str, limit_s: float = START_S) -> T:
    """The first true value of ``condition``, which may raise :class:`SlurmError` while Slurm does not answer."""
    deadline_s = time.monotonic() + limit_s
    while True:
        began_s = time.monotonic()
        fault: object = None
        try:
            value = condition()
        except SlurmError as error:
            value, fault = None, error
        if value:
            return value
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what}: not within {limit_s:g} s{f' ({fault})' if fault else ''}")
        time.sleep(pause_s(began_s))


class SlurmCluster:
    """Daemons in a folder of their own. ``settings`` replace or add lines of slurm.conf. The controller listens on ``port``.

    ``commands`` and ``slurm`` call it; ``conf`` is what ``SLURM_CONF`` must name for other processes.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, port: int = PORT) -> None:
        lacking = missing()
        if lacking:
            raise RuntimeError(lacking)
        if not alone_on_network():
            raise RuntimeError("an emulated Slurm needs a network of its own: run the tests by make test-engines")
        # The path of a socket is short, and other users reach the socket and the devices.
        self._port = port
        self.folder = Path(tempfile.mkdtemp(prefix="sooner-slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self.names = tuple(f"node{number}" for number in range(1, NODES + 1))
        self.commands = SlurmCommands(conf=self.conf)
        self.slurm = Slurm(self.commands)
        self._write(dict(_SETTINGS) | dict(settings or {}))
        try:
            self._start_munge()
            self.start_controller()
            for name in self.names:
                self.start_node(name)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise

    # Nodes.

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node; does not wait until the node is up."""
        self._run("slurmd", "-N", name, "-f", str(self.conf))

    def stop_node(self, name: str) -> None:
        """Stop the slurmd of a node. Steps that run there go on."""
        self._signal(f"slurmd-{name}", signal.SIGTERM)

    def kill_node(self, name: str) -> None:
        """``kill -9`` of a slurmd. Steps that run there go on, unseen by Slurm."""
        self._signal(f"slurmd-{name}", signal.SIGKILL)

    def lose_node(self, name: str) -> None:
        """A node loses its power: its processes are frozen, so that no peer learns of it, and are gone once it counts as down."""
        daemon = psutil.Process(self._pid(f"slurmd-{name}"))
        frozen = [daemon, *self._steps(name)]
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        wait_for(lambda: any(node.down for node in self.slurm.nodes() if node.name == name), f"{name} is down")
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for(lambda: not self._alive(f"slurmd-{name}"), f"slurmd of {name} is gone")

    def drain(self, name: str, reason: str = "test") -> None:
        """Let the node get no new jobs."""
        self.commands.run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")

    def set_down(self, name: str, reason: str = "test") -> None:
        """Declare the node down: its jobs end."""
        self.commands.run("scontrol", "update", f"NodeName={name}", "State=DOWN", f"Reason={reason}")

    def resume(self, name: str) -> None:
        """Undo :meth:`drain` or :meth:`set_down`."""
        self.commands.run("scontrol", "update", f"NodeName={name}", "State=RESUME")

    def wait_until_idle(self, *names: str) -> None:
        """Wait until these nodes (default: all) are up, idle and not drained."""
        wanted = set(names or self.names)

        def idle() -> bool:
            nodes = self.slurm.nodes()
            ready = {node.name for node in nodes if node.state == "idle" and not node.drained and not _busy(node.flags)}
            return wanted <= ready

        wait_for(idle, f"nodes {sorted(wanted)} are idle")

    # The controller.

    def start_controller(self, *, forgetful: bool = False) -> None:
        """Start slurmctld, and wait until it answers. ``forgetful``: without its former jobs."""
        self._run("slurmctld", "-i", *(["-c"] if forgetful else []), "-f", str(self.conf))
        wait_for(lambda: "UP" in self.commands.run("scontrol", "ping"), "slurmctld answers")

    def stop_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop slurmctld, and wait for its end. Jobs run on."""
        self._signal("slurmctld", how)

    # All of it.

    def cancel_all(self) -> None:
        """End all jobs, bring all nodes back, and wait until they are idle."""
        self.commands.run("scancel", "--full", "--user=root", "--signal=KILL", "--quiet")
        jobs = [str(job.id) for job in self.slurm.jobs() if not job.ended]
        if jobs:
            self.commands.run("scancel", "--quiet", *jobs)
        for node in self.slurm.nodes():
            if not self._alive(f"slurmd-{node.name}"):
                self.start_node(node.name)
            if node.drained or node.down:
                with contextlib.suppress(SlurmError):
                    self.resume(node.name)
        wait_for(lambda: all(job.ended for job in self.slurm.jobs()), "all jobs have ended")
        self.wait_until_idle()

    def close(self) -> None:
        """End all daemons, and delete the folder."""
        with contextlib.suppress(SlurmError):
            self.commands.run("scancel", "--full", "--user=root", "--signal=KILL", "--quiet", timeout_s=5.0)
        for name in (*(f"slurmd-{node}" for node in self.names), "slurmctld", "munged"):
            self._signal(name, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> str:
        """The end of the log of each daemon, for messages."""
        return "\n".join(
            f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted((self.folder / "log").iterdir())
        )

    def _write(self, settings: Mapping[str, str]) -> None:
        for name in ("state", "spool", "log", "run", "dev"):
            (self.folder / name).mkdir(mode=0o755)
        host = socket.gethostname().partition(".")[0]
        lines = "\n".join(f"{name}={value}" for name, value in settings.items())
        self.conf.write_text(
            _CONF.format(
                host=host,
                folder=self.folder,
                settings=lines,
                nodes=NODES,
                gpus=GPUS,
                port=self._port,
                node_port=self._port + 1,
                last_port=self._port + NODES,
            )
        )
        generic = ["AutoDetect=off"]
        for name in self.names:
            for gpu in range(GPUS):
                os.mknod(self.folder / "dev" / f"{name}-gpu{gpu}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            generic.append(f"NodeName={name} Name=gpu Type=a100 File={self.folder}/dev/{name}-gpu[0-{GPUS - 1}]")
        (self.folder / "gres.conf").write_text("\n".join(generic) + "\n")
        half = NODES // 2
        (self.folder / "topology.conf").write_text(
            f"SwitchName=rack1 Nodes=node[1-{half}]\nSwitchName=rack2 Nodes=node[{half + 1}-{NODES}]\n"
            "SwitchName=core Switches=rack[1-2]\n"
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)

    def _start_munge(self) -> None:
        run = self.folder / "run"
        # Debian's folders of munge belong to another user, which munged run by root reports (--force: a warning).
        self._run(
            "munged", "--force", f"--socket={run}/munge.sock", f"--key-file={self.folder}/munge.key",
            f"--pid-file={run}/munged.pid", f"--log-file={self.folder}/log/munged.log", f"--seed-file={run}/munged.seed",
        )  # fmt: skip
        wait_for((run / "munge.sock").exists, "munged answers")

    def _run(self, *command: str) -> None:
        environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        with (self.folder / "log" / "start.log").open("ab") as log:
            done = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                timeout=START_S,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with exit code {done.returncode}:\n{self.logs()}")

    def _pid(self, daemon: str) -> int | None:
        try:
            return int((self.folder / "run" / f"{daemon}.pid").read_text())
        except (OSError, ValueError):
            return None

    def _steps(self, node: str) -> list[psutil.Process]:
        """The processes of steps on a node, and the slurmstepd of each."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                if environ.get("SLURMD_NODENAME") == node and environ.get("SLURM_CONF", "").startswith(
                    str(self.folder)
                ):
                    found[process.pid] = process
                    parent = process.parent()
                    if parent is not None and "slurmstepd" in " ".join(parent.cmdline()):
                        found[parent.pid] = parent
        return list(found.values())

    def _alive(self, daemon: str) -> bool:
        pid = self._pid(daemon)
        return pid is not None and _runs(pid)

    def _signal(self, daemon: str, how: signal.Signals) -> None:
        pid = self._pid(daemon)
        if pid is None or not _runs(pid):
            return
        os.kill(pid, how)
        wait_for(lambda: not _runs(pid), f"{daemon} has ended")


def _busy(flags: frozenset[str]) -> bool:
    return "COMPLETING" in flags


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
