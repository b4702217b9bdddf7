"""Builds the plan of a supervisor from a Launch: the ranks, their environments and paths. Starts no process."""

import hashlib
import hmac
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policies.model.job import Launch as LaunchMode
from policies.model.reasons import Reason
from policies.model.resources import NOTHING, taken_by
from policies.placement.seats import node_order, seats
from service.domain.volumes import closed_volume
from service.engine.commands import Launch
from service.executors.containers import Containers, contained_command
from service.executors.folder import PROGRESS, WORK
from service.executors.rank_plan import rank_plan
from service.runtime.accounts import Account, account_of
from service.runtime.processes import MARK_BITS

ALLOWED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"})
ALLOWED_PREFIX = "LC_"
"""With :data:`ALLOWED`: names of the environment that programs may see."""
_PORTS = range(20000, 30000)
"""Below the range from which Linux takes ports for outgoing connections (32768 and up)."""
_THIS_HOST = "127.0.0.1"
_GROUP_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Site:
    """The settings shared by all attempts of an executor. ``device_ids`` as :func:`service.executors.gpus.device_ids`.

    ``progress_url`` is a template in which ``{job}`` and ``{attempt}`` are replaced. ``cgroups``: the folder of the
    attempts' control groups, None without them; ``limits``: the controllers by which they limit CPUs and memory.
    ``run_as_users``: see :func:`service.runtime.accounts.account_of`; None: jobs run as the service's user.
    ``containers``: what runs images; None: nothing does. ``physical_gpus``: whether this machine has GPUs.
    ``checkpoint_name``: the name of a job's folder below ``checkpoints_dir``.
    """

    data_dir: Path
    environ: Mapping[str, str]
    lease_s: float
    log_bytes_max: int
    term_grace_s: float
    progress_url: str | None
    device_ids: tuple[tuple[str, ...], ...] | None
    checkpoints_dir: Path
    cgroups: Path | None
    limits: frozenset[str] = frozenset()
    containers: Containers | None = None
    physical_gpus: bool = False
    run_as_users: Mapping[str, str] | None = None
    checkpoint_name: Callable[[int], str] = str

    @property
    def attempts_dir(self) -> Path:
        """Where the attempts' folders are."""
        return self.data_dir / "attempts"

    @property
    def lease_file(self) -> Path:
        """The file whose time the service renews."""
        return self.data_dir / "lease"

    def checkpoint_dir(self, job: int) -> Path:
        """Where the attempts of a job keep their checkpoints."""
        return self.checkpoints_dir / self.checkpoint_name(job)


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies one attempt's processes, derived from the executor's key so that no other attempt can pretend to it.

    ``token``: the secret in its environment. ``mark``: see :func:`service.runtime.processes.set_mark`. ``group``: the beginning
    of the name of its control group. ``seal``: the key of its :class:`service.executors.seal.Seal`.
    """

    token: str
    mark: int
    group: str
    seal: str

    @classmethod
    def of(cls, key: bytes, attempt: str) -> "Identity":
        """The identity of an attempt."""

        def derived(purpose: str) -> str:
            return hmac.new(key, f"{purpose}{attempt}".encode(), hashlib.sha256).hexdigest()

        mark = int(derived("mark "), 16) % 2**MARK_BITS
        group = f"sooner-{attempt}-{derived('group ')[:_GROUP_DIGITS]}-"
        return cls(derived(""), mark, group, derived("seal "))

    @property
    def entry(self) -> bytes:
        """The entry of the environment that holds the token."""
        return f"SOONER_PROGRESS_TOKEN={self.token}".encode()


def allowed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the service's environment that programs may see: an allow-list, so that no secret leaks."""
    return {name: value for name, value in environ.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIX)}


def build_plan(launch: Launch, site: Site, identity: Identity, master_port: int, clock_s: float) -> dict[str, Any]:
    """The document that a supervisor reads from its standard input.

    ``clock_s``: the service's clock minus the seconds since the machine was started. Raises
    :class:`service.runtime.accounts.NoAccount`.
    """
    spec = launch.spec
    account = account_of(spec.user, site.run_as_users) if site.run_as_users is not None else None
    # Two launches of one attempt must not share a group, because the second one ends its own.
    cgroup = site.cgroups / f"{identity.group}{secrets.token_hex(4)}" if site.cgroups is not None else None
    plan: dict[str, Any] = {
        "attempt": str(launch.attempt),
        "attempts_dir": str(site.attempts_dir),
        "lease_file": str(site.lease_file),
        "lease_s": site.lease_s,
        "log_bytes_max": site.log_bytes_max,
        "checkpoint_dir": str(site.checkpoint_dir(launch.job)),
        "working_dir": spec.working_dir,
        "command": list(spec.command),
        "env": _environment(launch, site, identity.token, master_port, account),
        "account": asdict(account) if account is not None else None,
        "mark": identity.mark,
        "seal": identity.seal,
        "cgroup": str(cgroup) if cgroup is not None else None,
        "limits": limits_of(launch, site.limits) if cgroup is not None else {},
        "ranks": ranks_of(launch, site.device_ids),
        "master_port": master_port,
        "warning_signal": spec.preemption.signal if spec.preemption is not None else None,
        "grace_s": spec.preemption.grace_s if spec.preemption is not None else site.term_grace_s,
        "term_grace_s": site.term_grace_s,
        "clock_s": clock_s,
        "server": launch.placement.servers[0],
        "refusal": None,
    }
    if spec.image is not None:
        _contain(plan, launch, site)
    return plan


def _contain(plan: dict[str, Any], launch: Launch, site: Site) -> None:
    """Have the command run in the job's image, or have the supervisor refuse it."""
    spec = launch.spec
    if site.containers is None:
        detail = f"image {spec.image}: neither podman nor apptainer was found when the service started"
        plan["refusal"] = {"reason": Reason.NO_CONTAINERS, "detail": detail}
        return
    if (position := closed_volume([volume.source for volume in spec.volumes], site.data_dir)) is not None:
        detail = f"volume {spec.volumes[position].source}: would show the data folder of the service"
        plan["refusal"] = {"reason": Reason.NO_CONTAINERS, "detail": detail}
        return
    folder = site.attempts_dir / launch.attempt
    plan["command"] = contained_command(
        site.containers,
        spec,
        env={*plan["env"], *(name for rank in plan["ranks"] for name in rank)},
        working_dir=spec.working_dir or str(folder / WORK),
        paths=[plan["checkpoint_dir"], str(folder / PROGRESS)],
        gpus=site.physical_gpus,
        limits=plan["limits"],
    )


def _environment(launch: Launch, site: Site, token: str, master_port: int, account: Account | None) -> dict[str, str]:
    """The environment of all ranks. Sooner's entries override the job's, so it cannot impersonate another job."""
    folder = site.attempts_dir / launch.attempt
    ours = {
        "SOONER_JOB_ID": str(launch.job),
        "SOONER_ATTEMPT": str(launch.attempt),
        "SOONER_CHECKPOINT_DIR": str(site.checkpoint_dir(launch.job)),
        "SOONER_RESUME_ITERATION": str(launch.resume_iteration),
        "SOONER_PROGRESS_FILE": str(folder / "progress.jsonl"),
        "SOONER_PROGRESS_TOKEN": token,
        "MASTER_ADDR": _THIS_HOST,
        "MASTER_PORT": str(master_port),
        "NNODES": str(len(launch.placement.shares)),
        "WORLD_SIZE": str(launch.placement.gpus),
    }
    if (array := launch.spec.array) is not None:
        ours |= {
            "SOONER_ARRAY_ID": str(array.id),
            "SOONER_ARRAY_INDEX": str(array.index),
            "SOONER_ARRAY_COUNT": str(array.count),
        }
    if site.progress_url is not None:
        url = site.progress_url.replace("{job}", str(launch.job)).replace("{attempt}", launch.attempt)
        ours["SOONER_PROGRESS_URL"] = url
    theirs = allowed_environment(site.environ)
    if account is not None:
        theirs.pop("TMPDIR", None)  # the service's own, which others may not enter
        theirs |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
    return theirs | dict(launch.spec.env) | ours


def limits_of(launch: Launch, controllers: Collection[str]) -> dict[str, int]:
    """The ``cpus`` and ``memory_mib`` that the attempt may use on all servers of its placement together.

    As far as the job asks for them, and the controllers limit them.
    """
    taken = NOTHING
    for share in launch.placement.shares:
        taken = taken.plus(taken_by(launch.spec, share.gpus))
    limits = {}
    if taken.cpus and "cpu" in controllers:
        limits["cpus"] = taken.cpus
    if taken.memory_mib and "memory" in controllers:
        limits["memory_mib"] = taken.memory_mib
    return limits


def ranks_of(launch: Launch, device_ids: Sequence[Sequence[str]] | None) -> list[dict[str, str]]:
    """The entries of each rank's own environment, in rank order: a rank a server, or a rank a GPU.

    The names are those of torchrun; :mod:`service.executors.rank_plan` describes ``SOONER_PLAN``. A rank sees all the job's GPUs
    on its server, as under torchrun: it chooses its own by ``LOCAL_RANK``. On a server that has none in ``device_ids`` it sees
    none. None: as numbered in the launch.
    """
    spec, shares = launch.spec, launch.placement.shares
    taken = seats(spec, launch.placement)
    here: dict[int, dict[str, str]] = {}
    for node, position in enumerate(node_order(launch.placement)):
        share, gpus = shares[position], launch.gpu_ids[position]
        if device_ids is None:
            visible = [str(gpu) for gpu in gpus]
        else:
            known = device_ids[share.server] if share.server < len(device_ids) else ()
            visible = [known[gpu] for gpu in gpus] if known else []
        here[node] = {
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            "LOCAL_WORLD_SIZE": str(share.gpus),
            "SOONER_GPUS_ON_SERVER": str(share.gpus),
            "CUDA_VISIBLE_DEVICES": ",".join(visible),
        }
    if spec.launch is LaunchMode.SERVER:
        return [env | rank_plan(spec, [seat for seat in taken if seat.node == node]) for node, env in here.items()]
    return [
        here[seat.node] | {"RANK": str(seat.rank), "LOCAL_RANK": str(seat.gpu)} | rank_plan(spec, [seat])
        for seat in taken
    ]


def free_port(taken: Collection[int], first: int) -> int:
    """A free port of this host that is not in ``taken``, searched from ``first`` on.

    Raises OSError when there is none.
    """
    for step in range(len(_PORTS)):
        port = _PORTS[(first + step) % len(_PORTS)]
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_THIS_HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port in {_PORTS.start}-{_PORTS.stop - 1}")
