"""The servers that a service schedules, and the executor for a cluster that Slurm or Ray runs."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from policies.model.cluster import Cluster, Gangs, Server
from policies.training.gpu_names import types_meant
from policies.training.gpu_speed import speed_warnings, with_assumed_speed, with_published_speed
from service.config.cluster_file import NOT_THIS_MACHINE, ClusterFileError, load_cluster, load_servers
from service.config.environment import is_loopback
from service.config.settings import Settings, env_name
from service.db.servers import enroll, stored_cluster
from service.db.session import Database
from service.domain.counts import count_of
from service.engine.ports import Abilities, Clock, ExecutorUnavailable, FoundServer, LiveExecutor, other_gpus
from service.executors.cluster.driver import EngineDriver, EngineUnavailable
from service.executors.cluster.executor import ClusterExecutor
from service.executors.cluster.shared import cluster_id
from service.executors.gpus import GpuInfo, local_cluster
from service.server.startup import StartError

logger = logging.getLogger(__name__)

ENGINES = ("slurm", "ray")
"""Values of the setting ``executor`` for which an engine runs the jobs on its own servers."""


class OwnServers:
    """The servers of this service: those that its executor finds, else those of ``known``, its file or its machine.

    ``file``: a cluster file that describes servers that the executor finds.
    """

    def __init__(self, database: Database, known: Cluster, file: Path | None = None) -> None:
        self.known = known
        self._database = database
        self._file = file

    def enroll(self, executor: LiveExecutor) -> Cluster:
        """Store the servers as the executor finds them now, and return all stored ones, which the executor uses from now on.

        While the executor does not answer, the stored ones count. Raises ExecutorUnavailable if there are none, and
        ClusterFileError for a file that describes other servers.
        """
        try:
            found = executor.find_servers()
        except ExecutorUnavailable as error:
            cluster = stored_cluster(self._database, self.known)
            if not cluster.servers:
                raise
            logger.error("%s: scheduling goes on with the servers of the last start", error)
        else:
            detected = found is None and self._file is None
            cluster = enroll(self._database, self._described(found), found, detected=detected)
            if detected:
                self._warn_of_kept(cluster)
        cluster = replace(cluster, gangs=gangs_of(executor.abilities))
        for warning in speed_warnings(cluster.servers):
            logger.warning(warning)
        executor.use_cluster(cluster)
        return cluster

    def _warn_of_kept(self, cluster: Cluster) -> None:
        """Servers that this machine has otherwise than they are stored, because attempts hold their GPUs."""
        now = {server.name: server for server in self.known.servers}
        for server in cluster.servers:
            if server.name in now and (other := other_gpus(now[server.name], server)):
                logger.warning(
                    "%s %s: it is drained; start the service again when its running jobs have ended", server.name, other
                )

    def _described(self, found: Sequence[FoundServer] | None) -> Cluster:
        if found is None:
            return self.known
        stored = stored_cluster(self._database, self.known).servers
        if not found and not stored:
            raise ExecutorUnavailable("the cluster has no server with GPUs yet")
        if self._file is None:
            return Cluster(self.known.name, tuple(with_assumed_speed(each.server) for each in found))
        file = load_cluster(self._file)
        return described(file, [each.server for each in found], {server.name for server in stored}, self._file)


def gangs_of(abilities: Abilities) -> Gangs:
    """The placements that an executor can start."""
    if not abilities.several_servers:
        return Gangs.ONE_SERVER
    return Gangs.ANY if abilities.uneven_shares else Gangs.EQUAL_SHARES


def described(file: Cluster, found: Sequence[Server], remembered: set[str], path: Path) -> Cluster:
    """The servers that an engine has found, as the cluster file describes those that it lists.

    A server that is only ``remembered`` is away at the moment. Raises ClusterFileError for servers that are neither found nor
    remembered, and for another number of GPUs than the engine's of a server that is not remembered. One that is remembered has
    changed since, which must not end the service: :func:`service.db.servers.enroll` drains it.
    """
    listed = {server.name: server for server in file.servers}
    strange = [name for name in listed if name not in remembered and all(each.name != name for each in found)]
    if strange:
        raise ClusterFileError(f"{path}: servers", f"the engine of the cluster has no {_listed(strange)}")
    for server in found:
        if server.name in listed and server.name not in remembered and listed[server.name].gpus != server.gpus:
            gpus = listed[server.name].gpus
            raise ClusterFileError(
                f"{path}: servers",
                f"{server.name} has {count_of(gpus, 'GPU')} in the file, and {server.gpus} in the cluster",
            )
    servers = tuple(listed.get(server.name) or with_assumed_speed(server) for server in found)
    return replace(file, servers=servers)


def local_servers(settings: Settings, gpus: Sequence[GpuInfo] | None) -> tuple[Cluster, frozenset[str] | None]:
    """The servers of ``executor=local``, and the names of those that are this machine; None if it pretends to be all.

    Raises ClusterFileError for a file with servers that this machine does not have, unless it is ``virtual``.
    """
    machine = local_cluster(settings.virtual_gpus, gpus)
    if settings.cluster is None:
        servers = tuple(with_published_speed(server) for server in machine.servers)
        if len(servers) == 1:
            # Several servers would share one machine's CPUs and memory.
            servers = (replace(servers[0], cpus=len(os.sched_getaffinity(0)), memory_gib=_memory_gib()),)
        return replace(machine, servers=servers), frozenset(server.name for server in servers)
    cluster, virtual = load_servers(settings.cluster)
    if virtual:
        logger.warning("%s is virtual: this machine pretends to be its servers, and runs all jobs", settings.cluster)
        return cluster, None
    here = {server.name: server for server in machine.servers}
    names = ", ".join(here)
    pretend = "or add 'virtual: true' to have this machine pretend"
    if strange := [server.name for server in cluster.servers if server.name not in here]:
        raise ClusterFileError(
            f"{settings.cluster}: servers",
            f"{_listed(strange)}: {NOT_THIS_MACHINE}; list {names} alone, set executor=slurm or executor=ray, {pretend}",
        )
    for server in cluster.servers:
        has = here[server.name]
        if server.gpus > has.gpus or (gpus and not types_meant(server.gpu_type, Cluster("", (has,)))):
            kind = has.gpu_type if gpus else "virtual ones (setting virtual_gpus)"
            raise ClusterFileError(
                f"{settings.cluster}: servers",
                f"{server.name} has {count_of(server.gpus, 'GPU')} of type {server.gpu_type} in the file, and this machine "
                f"{has.gpus} {kind}; correct the file, {pretend}",
            )
    return cluster, frozenset(here)


def _memory_gib() -> float:
    """Of this machine, rounded down to a tenth."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 10 // 2**30 / 10


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def cluster_executor(settings: Settings, clock: Clock, progress_url: str) -> ClusterExecutor:
    """The executor of the setting ``executor``, one of :data:`ENGINES`. Raises StartError."""
    shared = _shared_dir(settings)
    if is_loopback(urlsplit(progress_url).hostname or ""):
        logger.warning(
            "advertise_url (%s): programs on other servers cannot report their progress to %s, which is this machine for each of "
            "them; set a URL under which the servers reach this service",
            env_name("advertise_url"),
            progress_url,
        )
    by_submitter = settings.run_as == "submitter"
    try:
        driver = _driver(settings, cluster_id(shared))
        if by_submitter and not driver.abilities.users:
            raise StartError(f"run_as=submitter: {driver.name} runs all jobs as one user here; set run_as=service")
        return ClusterExecutor(
            driver,
            shared,
            Cluster(settings.executor, ()),
            clock=clock,
            shared_dir_on_nodes=settings.shared_dir_on_nodes,
            node_python=settings.node_python,
            poll_s=settings.engine_poll_s,
            lease_s=settings.lease_s,
            log_bytes_max=settings.log_bytes_max,
            progress_url=progress_url,
            term_grace_s=settings.stop_grace_s,
            checkpoints=settings.checkpoints_dir,
            run_as_users=settings.run_as_users if by_submitter else None,
            checks_servers=True,
        )
    except OSError as error:
        raise StartError(f"shared_dir ({env_name('shared_dir')}): {shared}: {error.strerror or error}") from error


def _shared_dir(settings: Settings) -> Path:
    name = f"shared_dir ({env_name('shared_dir')})"
    if settings.shared_dir is None:
        raise StartError(
            f"executor={settings.executor} needs {name}: a folder that this machine and all servers of the cluster share"
        )
    if not settings.shared_dir.is_dir():
        raise StartError(
            f"{name}: {settings.shared_dir} is no folder; create it in a file system that all servers of the cluster share"
        )
    if not os.access(settings.shared_dir, os.W_OK | os.X_OK):
        raise StartError(f"{name}: {settings.shared_dir} is not writable")
    return settings.shared_dir


def _driver(settings: Settings, identity: str) -> EngineDriver:
    """The driver of the engine. Only the chosen engine's modules are imported. Raises StartError."""
    return _ray(settings, identity) if settings.executor == "ray" else _slurm(settings, identity)


def _slurm(settings: Settings, identity: str) -> EngineDriver:
    from service.executors.cluster.slurm import slurm_driver
    from service.slurm.commands import SlurmMissing

    try:
        driver = slurm_driver(settings, identity)
    except SlurmMissing as error:
        raise StartError(f"executor=slurm: {error}; install Slurm's client commands") from error
    try:
        for note in driver.check():
            logger.warning(note)
    except EngineUnavailable as error:
        # The service starts all the same, so that the lease of running attempts is renewed.
        logger.error("Slurm cannot be checked: %s", error)
    return driver


def _ray(settings: Settings, identity: str) -> EngineDriver:
    from service.executors.cluster.ray import RayDriver, RayMissing

    if settings.ray_address is None:
        raise StartError(
            f"executor=ray needs ray_address ({env_name('ray_address')}): host:port of the head, as `ray start` printed it"
        )
    try:
        return RayDriver(settings.ray_address, identity, settings.ray_token_file)
    except RayMissing as error:
        raise StartError(str(error)) from error
