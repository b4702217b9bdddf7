"""Slurm's commands with scripted answers, for tests."""

import json
import os
from collections.abc import Mapping
from typing import Any

from service.slurm.commands import SlurmCommands
from service.slurm.jobs import ENDED_STATES

PARTITION = "PartitionName=main Default=YES State={state} MaxTime={limit} Nodes=n[1-4]\n"


def node(name: str, **values: object) -> dict[str, object]:
    """A node of sinfo with four GPUs."""
    return {
        "name": name, "address": f"{name}.site", "state": "idle", "state_flags": [], "gres": "gpu:a100:4", "cpus": 64,
        "threads": 2, "real_memory": 1000, "partitions": ["main"], "reason": "",
    } | values  # fmt: skip


def row(job_id: int, state: str, **values: object) -> dict[str, object]:
    """A job of squeue with the comment of this executor."""
    return {
        "job_id": job_id, "name": "x", "user_name": "svc", "user_id": os.geteuid(), "job_state": state, "state_reason": "None",
        "comment": f"sooner:c1:{job_id}.1", "nodes": "n1", "required_nodes": "n1", "exit_code": 0, "node_count": 1,
        "partition": "main",
    } | values  # fmt: skip


def listed(row: Mapping[str, Any]) -> str:
    """The job as a line of squeue's list."""
    het = row.get("het_job_id")
    shown_id = f"{het}+{row['het_job_offset']}" if het else row["job_id"]
    values = (shown_id, row["job_state"], row["nodes"], row["user_id"], row["user_name"], row["state_reason"])
    return "|".join(map(str, (row["job_id"], *values, row["comment"])))


def shown(row: Mapping[str, Any]) -> str:
    """The job as scontrol shows it."""
    held = "".join(f" Nodes={row['nodes']} CPU_IDs=0-3 Mem=250 GRES={gres}" for gres in row.get("gres_detail", ()))
    return f"JobId={row['job_id']} JobName={row['name']} ReqNodeList={row['required_nodes']}{held} Comment={row['comment']}\n"


class Scripted(SlurmCommands):
    """Answers from tables, and notes the calls. JSON has no ended jobs unless they are asked for, as in versions after 22.05."""

    def __init__(self) -> None:
        super().__init__(environ={})
        self.rows: list[dict[str, object]] = []
        self.node_rows = [node("n1"), node("n2"), node("n3", gres=""), node("n4", partitions=["other"])]
        self.partition, self.limit, self.state = PARTITION, "UNLIMITED", "UP"
        self.reservations = "No reservations in the system\n"
        self.calls: list[tuple[str, ...]] = []
        self.script = b""
        self.users: list[str | None] = []
        self.fault: Exception | None = None

    def path(self, command: str) -> str:
        return f"/opt/slurm/bin/{command}"

    def run(
        self,
        command: str,
        *arguments: str,
        input: bytes = b"",
        timeout_s: float | None = None,
        user: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        self.calls.append((command, *arguments))
        if self.fault is not None:
            raise self.fault
        if command == "sbatch":
            self.script = input
            self.users.append(user)
            return "77;cluster\n"
        if command == "scancel":
            self.users.append(user)
            return ""
        if command == "sinfo":
            return json.dumps({"nodes": self.node_rows})
        if "--json" in arguments:
            every = "--states=all" in arguments
            return json.dumps({"jobs": [r for r in self.rows if every or r["job_state"] not in ENDED_STATES]})
        if command == "squeue":
            word = (variables or {})["SQUEUE_FORMAT"].partition("%")[0]
            return "".join(f"{word}{listed(r)}\n" for r in self.rows)
        if arguments[-3:-1] == ("show", "job"):
            return next((shown(r) for r in self.rows if str(r["job_id"]) == arguments[-1]), "")
        if arguments[-1] == "reservation":
            return self.reservations
        return self.partition.format(limit=self.limit, state=self.state)

    def last(self, command: str) -> tuple[str, ...]:
        """The arguments of the last call of a command."""
        return next(call[1:] for call in reversed(self.calls) if call[0] == command)
