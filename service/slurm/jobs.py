"""The jobs of ``squeue --states=all --json``: pending, running, and those that ended within MinJobAge (300 s by default).

One job of many is read by ``squeue --format`` and ``scontrol show job``: the answer in JSON takes 3 KiB a job.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from service.slurm.commands import SlurmUnreadable
from service.slurm.text import expand_hosts, number, parse_gpus, parse_indices, parse_shown, parse_tres, tres_gpus

_MINUTE_S: Final = 60.0
ENDED_STATES: Final = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_LEADING: Final = (
    "COMPLETING",
    "CONFIGURING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "REQUEUE_HOLD",
    "REQUEUED",
    "SPECIAL_EXIT",
)
"""Flags that later versions list beside a base state, and 22.05 writes in its place."""


LINE_FORMAT: Final = "%A|%i|%T|%N|%U|%u|%r|%k"
"""Of ``squeue``. What a user chooses, line ends included, comes last, so that it stands in place of no other value.

The reason comes next to last: plugins of Slurm write it, and may quote a user in it.
"""
_HELD: Final = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
"""What a job holds on some of its nodes, as ``scontrol --details show job`` writes it."""


class JobLine(NamedTuple):
    """A job in a list. ``het_job_id`` and ``het_offset``: of a component of a heterogeneous job."""

    id: int
    het_job_id: int | None
    het_offset: int | None
    state: str
    reason: str
    nodes: str
    user_id: int
    user: str
    comment: str


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, one component of a heterogeneous job, one task of an array, or all waiting tasks of an array.

    Times are Unix seconds, None where Slurm has none; ``start_s`` and ``end_s`` of a job that has not started or ended are
    Slurm's own expectation. ``time_limit_s`` None: no limit, or not set. ``nodes`` are allocated; ``gpus`` are those of all
    nodes, allocated or else requested; ``gpu_ids`` the indices on each node while the job holds them. ``array_tasks``: the
    waiting tasks, such as ``2-40%2``. ``exit_code`` and ``exit_signal`` are those of the batch script.
    """

    id: int
    name: str
    user: str
    state: str
    user_id: int | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    reason: str = ""
    description: str = ""
    priority: int | None = None
    nice: int = 0
    time_limit_s: float | None = None
    submit_s: float | None = None
    eligible_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    node_count: int = 0
    cpus: int = 0
    gpus: int = 0
    gpu_type: str = ""
    gpu_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    comment: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    dependency: str = ""
    features: str = ""
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_tasks: str = ""
    het_job_id: int | None = None
    het_offset: int | None = None
    tres: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it has ended and holds nothing."""
        return self.state in ENDED_STATES

    @property
    def tasks_waiting(self) -> int:
        """How many tasks of an array this entry stands for; 1 for any other job."""
        ranges = self.array_tasks.partition("%")[0]
        return sum(_steps(part) for part in ranges.split(",")) if ranges else 1


def _steps(part: str) -> int:
    span, _, step = part.partition(":")
    return max(1, len(parse_indices(span)[:: int(step) if step.isdecimal() and int(step) > 0 else 1]))


def parse_jobs(document: Mapping[str, Any], comment: str = "") -> list[SlurmJob]:
    """The jobs of an answer whose comment begins with ``comment``, in its order.

    Raises :class:`SlurmUnreadable` for a form that no known version writes.
    """
    rows = document.get("jobs")
    if not isinstance(rows, list):
        raise SlurmUnreadable("the answer of squeue has no list of jobs")
    try:
        return [_job(row) for row in rows if not comment or _comment(row.get("comment")).startswith(comment)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SlurmUnreadable(f"the answer of squeue has a job of an unknown form: {error!r}") from error


def parse_line(text: str) -> JobLine:
    """An entry of :data:`LINE_FORMAT`. Raises :class:`SlurmUnreadable`.

    No user can bring about the error. An entry that is left out would count as a job that Slurm has forgotten.
    """
    try:
        job, shown_id, state, nodes, user_id, user, reason, comment = text.split("|", 7)
        het, plus, offset = shown_id.partition("+")
        het_job, het_offset = (int(het), int(offset)) if plus else (None, None)
        return JobLine(int(job), het_job, het_offset, state, _text(reason), nodes, int(user_id), user, comment)
    except ValueError as error:
        raise SlurmUnreadable(f"the answer of squeue has a line of an unknown form: {text[:80]!r}") from error


def listed_job(line: JobLine, shown: str) -> SlurmJob:
    """A job as its line in the list says, with its required nodes and GPU indices from ``scontrol --details show job``.

    Its other fields have their defaults.
    """
    details = next((each for each in shown.split("\n") if each.startswith(f"JobId={line.id} ")), "")
    fields = next(iter(parse_shown(details)), {})
    gpu_ids = {
        node: tuple(index for gpus in parse_gpus(resources) for index in gpus.indices)
        for nodes, resources in _HELD.findall(details)
        for node in expand_hosts(nodes)
    }
    return SlurmJob(
        id=line.id,
        name=fields.get("JobName", ""),
        user=line.user,
        state=line.state,
        user_id=line.user_id,
        reason=line.reason,
        nodes=expand_hosts(line.nodes),
        required_nodes=expand_hosts(fields.get("ReqNodeList")),
        gpu_ids={node: indices for node, indices in gpu_ids.items() if indices},
        comment=line.comment,
        het_job_id=line.het_job_id,
        het_offset=line.het_offset,
    )


def _job(row: Mapping[str, Any]) -> SlurmJob:
    nodes = expand_hosts(row.get("nodes"))
    exit_code, exit_signal = _exit(row.get("exit_code"))
    requested, allocated = parse_tres(row.get("tres_req_str")), parse_tres(row.get("tres_alloc_str"))
    # Later versions keep these elsewhere, under the same names.
    detail = row.get("gres_detail") or []
    gpus, gpu_type = _gpus(row, detail, allocated or requested)
    array, het = _positive(row.get("array_job_id")), _positive(row.get("het_job_id"))
    limit = number(row.get("time_limit"))
    return SlurmJob(
        id=int(row["job_id"]),
        name=row.get("name") or "",
        user=row.get("user_name") or str(row.get("user_id", "")),
        state=_state(row["job_state"]),
        user_id=_whole(row.get("user_id")),
        account=row.get("account") or "",
        partition=row.get("partition") or "",
        qos=row.get("qos") or "",
        reason=_text(row.get("state_reason")),
        description=row.get("state_description") or "",
        priority=_whole(row.get("priority")),
        nice=_signed(_whole(row.get("nice")) or 0),
        time_limit_s=None if limit is None else _MINUTE_S * limit,
        submit_s=_time(row.get("submit_time")),
        eligible_s=_time(row.get("eligible_time")),
        start_s=_time(row.get("start_time")),
        end_s=_time(row.get("end_time")),
        nodes=nodes,
        required_nodes=expand_hosts(row.get("required_nodes")),
        excluded_nodes=expand_hosts(row.get("excluded_nodes")),
        node_count=_whole(row.get("node_count")) or len(nodes),
        cpus=_whole(row.get("cpus")) or 0,
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_ids=_gpu_ids(nodes, detail),
        comment=_comment(row.get("comment")),
        exit_code=exit_code,
        exit_signal=exit_signal,
        dependency=row.get("dependency") or "",
        features=row.get("features") or "",
        array_job_id=array,
        array_task_id=_whole(row.get("array_task_id")) if array is not None else None,
        array_tasks=row.get("array_task_string") or "",
        het_job_id=het,
        het_offset=_whole(row.get("het_job_offset")) if het is not None else None,
        tres=allocated or requested,
    )


def _state(value: Any) -> str:
    """The state in one word: 22.05 writes a word, later versions a list with the flags."""
    words = [value] if isinstance(value, str) else [str(word) for word in value]
    return next((flag for flag in _LEADING if flag in words), words[0])


def _exit(value: Any) -> tuple[int | None, int | None]:
    """Code and signal: 22.05 writes the status as wait(2) gives it."""
    if isinstance(value, Mapping):
        signal = value.get("signal")
        code_of_signal = signal.get("id") if isinstance(signal, Mapping) else signal
        return _whole(value.get("return_code")), _positive(code_of_signal)
    status = _whole(value)
    return (None, None) if status is None else (status >> 8, (status & 0x7F) or None)


def _gpus(row: Mapping[str, Any], detail: Sequence[str], tres: Mapping[str, str]) -> tuple[int, str]:
    """GPUs on all nodes and their type. Resources are tracked only where AccountingStorageTRES names them."""
    held = [gpus for entry in detail for gpus in parse_gpus(entry)]
    tracked, tracked_type = tres_gpus(tres)
    if held or tracked:
        types = {gpus.type for gpus in held} - {""}
        count = sum(gpus.amount for gpus in held) if held else tracked
        return count, tracked_type or (types.pop() if len(types) == 1 else "")
    counts = {
        "tres_per_node": _whole(row.get("node_count")) or 1,
        "tres_per_job": 1,
        "tres_per_task": _whole(row.get("tasks")) or 1,
        "tres_per_socket": (_whole(row.get("sockets_per_node")) or 1) * (_whole(row.get("node_count")) or 1),
    }
    for name, factor in counts.items():
        asked = parse_gpus(row.get(name))
        if asked:
            types = {gpus.type for gpus in asked} - {""}
            return factor * sum(gpus.amount for gpus in asked), types.pop() if len(types) == 1 else ""
    return 0, ""


def _gpu_ids(nodes: Sequence[str], detail: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The indices by node; Slurm lists one entry for each allocated node, in their order."""
    if len(detail) != len(nodes):
        return {}
    ids = (tuple(index for gpus in parse_gpus(entry) for index in gpus.indices) for entry in detail)
    return {node: indices for node, indices in zip(nodes, ids, strict=True) if indices}


def _comment(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("job")
    return str(value or "")


def _text(value: Any) -> str:
    return "" if value in (None, "None") else str(value)


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def _signed(value: int) -> int:
    """22.05 writes a negative number as one of 32 bits without a sign."""
    return value - 2**32 if value >= 2**31 else value


def _positive(value: Any) -> int | None:
    return _whole(value) or None


def _time(value: Any) -> float | None:
    return number(value) or None
