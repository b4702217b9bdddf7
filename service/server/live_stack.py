"""The live stack: all layers between the scheduling loop and the cluster, composed here and nowhere else.

``Outer(Inner)`` calls the inner layer. Each layer in parentheses is a port of :mod:`service.engine.ports` or a policy::

    SchedulerLoop                          one thread: wakes at requests, reports and timers; runs one cycle at a time
      Engine
        policy     MeasuredPolicy( Shadow( Recorder( the configured policy )))
        store      MeasuredStore( PatientStore( LeaderStore, an SqlStore ))
        executor   MeasuredExecutor( PolledExecutor( FleetExecutor( TimeLimitedExecutor( one of the three ))))
        predictor  MeasuredPredictor( WarmingPredictor( LivePredictor ))
        sink       WatchingSink( HealthSink( MetricsSink( LogSink )))
        clock      SteadyClock

The three executors are LocalExecutor, FakeExecutor and ClusterExecutor, which has a driver for its engine, Slurm or Ray.

========================  ================================================================================================
Layer                     What it adds
========================  ================================================================================================
``Measured...``           the duration of each phase of a cycle, as metrics and spans
``Recorder``              the newest cycles with all that their decisions rest on, for replays
``Shadow``                a second policy that decides in a process of its own; present only if one is configured
``PatientStore``          no new jobs are admitted before the predictor is warm
``LeaderStore``           nothing is committed after the lead is lost (lease and fencing token)
``PolledExecutor``        reports are collected between cycles; progress goes to the database
``FleetExecutor``         attempts of other services, through the database; no command after the lead is lost
``TimeLimitedExecutor``   an executor that hangs holds up nothing
``WarmingPredictor``      jobs that end while the predictor reads its history are learnt afterwards
``WatchingSink``          shadow and recorder learn which of their cycles were committed
``HealthSink``            ends of attempts, as signs of faulty servers
========================  ================================================================================================

``TimeLimitedExecutor`` and the executor in it live as long as the service: :func:`make_executor` composes them. The rest
lives as long as the lead: :func:`make_live_stack` composes it.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from predictor.locality import SlowdownLearner
from predictor.serving import LivePredictor
from predictor.speeds import SpeedLearner
from service.background.health import HealthMonitor, HealthSink
from service.config.cluster_file import load_servers
from service.config.environment import service_url
from service.config.policy import configured_options, configured_policy
from service.config.settings import Settings
from service.db.lease import FencedOff, LeaderLease
from service.db.progress import ProgressPoint, record_progress
from service.db.session import Database
from service.domain.health import Sign
from service.engine.cycle import EngineSettings
from service.engine.engine import Engine, Ports
from service.engine.events import Report
from service.engine.ports import Clock, Executor, LiveExecutor
from service.engine.watch import WatchingPolicy, WatchingSink
from service.engine.world import Costs
from service.executors.containers import Containers, find_containers
from service.executors.fake import FakeExecutor
from service.executors.gpu_health import GpuWatch
from service.executors.gpus import GpuInfo, GpusUnusable, detect, device_ids
from service.executors.local import LocalExecutor
from service.executors.polled import PolledExecutor
from service.executors.timeout import TimeLimitedExecutor
from service.history.cycles import Recorder
from service.runtime.steady_clock import SteadyClock
from service.server.clusters import ENGINES, cluster_executor
from service.server.containment import Containment, containment_of
from service.server.fleet import FleetExecutor
from service.server.leader_store import LeaderStore, PatientStore
from service.server.startup import StartError, advertised_url
from service.server.users_apart import runs_as_submitters
from service.server.warming import WarmingPredictor
from service.shadow.live import make_shadow
from service.shadow.process import ShadowProcess
from service.shadow.shadow import Shadow
from service.telemetry import log
from service.telemetry.metrics import Metrics, MetricsSink
from service.telemetry.phases import MeasuredExecutor, MeasuredPolicy, MeasuredPredictor, MeasuredStore, Phases

logger = logging.getLogger(__name__)

PROGRESS_PATH = "/v1/attempts/{attempt}/progress"


class HostExecutor(NamedTuple):
    """The executor of this service: ``attempts`` itself, and ``limited``, the same with a time limit on each command.

    ``containment``: what holds the processes of a job together; None if there are no processes of this machine. ``gpus``: the
    GPUs of this machine that it uses; None if they are virtual or elsewhere, empty if it can use none of them. ``machine``: the
    names of the servers that are this machine; None: all.
    """

    attempts: LiveExecutor
    limited: Executor
    containment: Containment | None
    gpus: Sequence[GpuInfo] | None = None
    machine: frozenset[str] | None = None

    @property
    def own(self) -> Executor | None:
        """The executor if its attempts are this service's alone; None if they are those of a cluster, and so of the leader."""
        return self.limited if self.attempts.attempts_host is None else None


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """What a leader is built on. ``host`` is the id that the attempts of ``executor`` carry, of the service or of a cluster."""

    settings: Settings
    clock: SteadyClock
    database: Database
    cluster: Cluster
    lead: LeaderLease
    host: str
    executor: HostExecutor
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class LiveStack:
    """The layers that something outside the stack calls. ``shadow`` is None without a shadow policy."""

    engine: Engine[Any]
    executor: PolledExecutor
    predictor: LivePredictor
    warming: WarmingPredictor
    recorder: Recorder
    shadow: Shadow | None
    phases: Phases
    health: HealthMonitor
    measured: MetricsSink


def gpus_of_host(settings: Settings) -> Sequence[GpuInfo] | None:
    """The GPUs of this machine that the configured executor uses; None if its GPUs are virtual.

    Raises StartError if it has GPUs and none can be used, unless a cluster file says that its servers are virtual: then they have
    no GPUs. Raises ClusterFileError.
    """
    if settings.executor != "local":
        return None
    try:
        return detect(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    except GpusUnusable as error:
        if settings.cluster is None or not load_servers(settings.cluster).virtual:
            raise StartError(f"{error}. Without GPUs, serve a cluster file with 'virtual: true'") from error
        logger.warning("%s. The virtual servers of %s have no GPUs", error, settings.cluster)
        return []


def _containers() -> Containers | None:
    found = find_containers()
    logger.info(
        found.sentence if found is not None else "Neither podman nor apptainer is installed: jobs with an image fail"
    )
    return found


def make_executor(
    settings: Settings,
    clock: Clock,
    cluster: Cluster,
    gpus: Sequence[GpuInfo] | None,
    own: frozenset[str] | None,
    address: tuple[str, int],
) -> HostExecutor:
    """The configured executor. ``own``: as for LocalExecutor. ``address``: on which the service listens for reports of progress.

    Raises StartError.
    """
    attempts: LiveExecutor
    containment = None
    if settings.executor == "fake":
        attempts = FakeExecutor(clock)
    elif settings.executor in ENGINES:
        attempts = cluster_executor(settings, clock, advertised_url(settings, address) + PROGRESS_PATH)
    else:
        containment = containment_of(settings)
        attempts = LocalExecutor(
            settings.data_dir,
            cluster,
            clock=clock,
            lease_s=settings.lease_s,
            log_bytes_max=settings.log_bytes_max,
            progress_url=service_url(settings.host, address[1], settings.scheme) + PROGRESS_PATH,
            gpus=gpus,
            own=own,
            checkpoints=settings.checkpoints_dir,
            cgroups=containment.cgroups,
            limits=containment.limits,
            containers=_containers(),
            run_as_users=settings.run_as_users if runs_as_submitters(settings) else None,
            renews_alone=False,
        )
    return HostExecutor(attempts, TimeLimitedExecutor(attempts, settings.executor_timeout_s), containment, gpus, own)


def make_live_stack(context: LeaderContext) -> LiveStack:
    """All layers, with the world loaded from the database. Raises FencedOff if the lead is lost already."""
    settings, database, clock, lead = context.settings, context.database, context.clock, context.lead
    if lead.token is None:
        raise FencedOff("the leader lease was lost before the live stack was built")
    phases = Phases(context.metrics)
    recorder = make_recorder(settings)
    shadow = make_shadow(settings, recorder, partial(ShadowProcess, settings.shadow_memory_bytes_max))
    watching: list[WatchingPolicy] = [recorder] if shadow is None else [recorder, shadow]
    predictor = LivePredictor(slowdowns=SlowdownLearner(), speeds=SpeedLearner())
    warming = WarmingPredictor(predictor)
    fleet = FleetExecutor(context.executor.limited, lead, database, context.host, clock, settings.stop_grace_s)
    health = HealthMonitor(settings, database, clock.now_s, partial(_count_sign, context.metrics), _gpu_watch(context))
    executor = PolledExecutor(fleet, partial(_store_progress, database, health))
    store = PatientStore(LeaderStore(database, lead, lead.token), lambda: warming.warm)
    measured = MetricsSink(log.LogSink(), context.metrics)
    engine: Engine[Any] = Engine(
        MeasuredPolicy(watching[-1], phases),
        context.cluster,
        Ports(
            MeasuredStore(store, phases),
            MeasuredExecutor(executor, phases),
            clock,
            MeasuredPredictor(warming, phases),
            WatchingSink(HealthSink(measured, health), watching),
        ),
        Costs(settings.checkpoint_s, settings.restart_s),
        engine_settings(settings, lead.token, context.host),
    )
    return LiveStack(engine, executor, predictor, warming, recorder, shadow, phases, health, measured)


def engine_settings(settings: Settings, fencing_token: int, host: str) -> EngineSettings:
    """The settings that concern the engine."""
    return EngineSettings(
        retry_backoff_s=settings.retry_backoff_s,
        yields_max=settings.yields_max,
        facts_per_cycle_max=settings.facts_per_cycle_max,
        dump_every_s=settings.dump_every_s,
        stop_grace_s=settings.stop_grace_s,
        fencing_token=fencing_token,
        host=host,
        usable_servers_min=settings.health_usable_min,
    )


def make_recorder(settings: Settings) -> Recorder:
    """The configured policy, recorded cycle by cycle. Raises OptionError."""
    return Recorder(
        configured_policy(settings),
        configured_options(settings),
        jobs_max=settings.snapshot_jobs_max,
        kept=settings.snapshots_kept,
    )


def _gpu_watch(context: LeaderContext) -> tuple[GpuWatch, Mapping[str, ServerIndex]] | None:
    """A watch on the GPUs of this machine that are in the cluster, and the server of each."""
    gpus = context.executor.gpus
    if not gpus:
        return None
    layout = device_ids(context.cluster, gpus, context.executor.machine)
    import pynvml  # imported only where there are GPUs

    servers = {uuid: ServerIndex(index) for index, uuids in enumerate(layout) for uuid in uuids}
    return GpuWatch([gpu for gpu in gpus if gpu.uuid in servers], pynvml), servers


def _count_sign(metrics: Metrics, sign: Sign) -> None:
    metrics.health_signs.labels(sign.value).inc()


def _store_progress(database: Database, health: HealthMonitor, reports: Sequence[Report]) -> None:
    health.progressed(reports)
    points = [
        ProgressPoint(
            report.attempt,
            report.at_s,
            report.iteration,
            report.total_iterations,
            report.checkpoint_iteration,
            report.loss,
            report.input_s,
        )
        for report in reports
        if report.attempt is not None and report.iteration is not None
    ]
    try:
        with database.writing() as session:
            record_progress(session, points)
    except Exception:
        # A gap in a progress curve is better than a failed cycle.
        logger.exception("progress points were not stored")
