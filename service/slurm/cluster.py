"""What a running Slurm says about itself, as typed values. Each method is one or two calls of its commands."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.slurm.commands import SlurmCommands, SlurmRefused, SlurmUnreadable, failure
from service.slurm.jobs import LINE_FORMAT, JobLine, SlurmJob, listed_job, parse_jobs, parse_line
from service.slurm.nodes import SlurmNode, parse_nodes
from service.slurm.reservations import SlurmReservation
from service.slurm.text import expand_hosts, parse_shown

TESTED_VERSION: Final = "22.05.8"
"""The version that the tests run. Others are read where their answers have a known form."""


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    """One partition. ``time_limit_s`` None: unlimited."""

    name: str
    default: bool
    up: bool
    nodes: tuple[str, ...]
    time_limit_s: float | None


class Slurm:
    """One Slurm cluster, read through its commands. All methods raise :class:`service.slurm.commands.SlurmError`."""

    def __init__(self, commands: SlurmCommands | None = None) -> None:
        self.commands = commands or SlurmCommands()

    def version(self) -> str:
        """The version of the installed commands, for example ``22.05.8``. Asks no daemon."""
        return self.commands.run("squeue", "--version").split()[-1]

    def jobs(self, comment: str = "") -> list[SlurmJob]:
        """All jobs that Slurm remembers, of all users and partitions, whose comment begins with ``comment``."""
        # 22.05 writes ended jobs in JSON whatever is asked for; later versions leave them out unless they are asked for.
        return parse_jobs(self._json("squeue", "--all", "--states=all", "--json"), comment)

    def job_lines(self, comment: str) -> dict[int, JobLine]:
        """The same jobs by id, each with the few values of a list. Costs a tenth of :meth:`jobs` or less."""
        # A comment may hold line ends and whatever its user likes, so each entry begins with a word that users cannot guess.
        # In the environment they cannot read it either, as they could among the arguments.
        word = uuid.uuid4().hex
        variables = {"SQUEUE_FORMAT": word + LINE_FORMAT}
        text = self.commands.run("squeue", "--all", "--noheader", "--states=all", variables=variables)
        before, *entries = ("\n" + text.removesuffix("\n")).split(f"\n{word}")
        if before.strip():
            raise SlurmUnreadable(f"squeue wrote no list of the form that was asked for: {before[:80]!r}")
        lines = (parse_line(entry) for entry in entries if f"|{comment}" in entry)
        return {line.id: line for line in lines if line.comment.startswith(comment)}

    def job(self, line: JobLine) -> SlurmJob:
        """A job of the list with what it holds, see :func:`service.slurm.jobs.listed_job`. Reads no other job.

        Raises SlurmRefused if Slurm has forgotten it.
        """
        return listed_job(line, self.commands.run("scontrol", "--details", "--oneliner", "show", "job", str(line.id)))

    def nodes(self) -> list[SlurmNode]:
        """All nodes, of all partitions."""
        document = self._json("sinfo", "--all", "--states=all", "--json")
        if "nodes" not in document:
            document = self._json("scontrol", "--all", "--states=all", "--json", "show", "nodes")
        return parse_nodes(document)

    def partitions(self) -> list[SlurmPartition]:
        """All partitions, hidden ones included."""
        shown = parse_shown(self.commands.run("scontrol", "--all", "--oneliner", "show", "partition"))
        return [
            SlurmPartition(
                name=block["PartitionName"],
                default=block.get("Default") == "YES",
                up=block.get("State") == "UP",
                nodes=expand_hosts(block.get("Nodes")),
                time_limit_s=duration_s(block.get("MaxTime")),
            )
            for block in shown
            if "PartitionName" in block
        ]

    def reservations(self) -> list[SlurmReservation]:
        """All reservations of nodes that Slurm shows to this user; none where it refuses to."""
        try:
            shown = parse_shown(self.commands.run("scontrol", "--all", "--oneliner", "show", "reservation"))
        except SlurmRefused:
            return []
        return [
            SlurmReservation(
                name=block["ReservationName"],
                nodes=frozenset(expand_hosts(block.get("Nodes"))),
                starts_at_s=float(block["StartTime"]),
            )
            for block in shown
            if "ReservationName" in block and block.get("StartTime", "").isdecimal()
        ]

    def config(self) -> Mapping[str, str]:
        """The configuration by the names of ``scontrol show config``; a value of ``(null)`` is left out."""
        lines = self.commands.run("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines)
        named = {name.strip(): value.strip() for name, equals, value in pairs if equals}
        return {name: value for name, value in named.items() if value != "(null)"}

    def racks(self) -> Mapping[str, str]:
        """The leaf switch of each node; empty where Slurm knows no topology."""
        try:
            shown = parse_shown(self.commands.run("scontrol", "--oneliner", "show", "topology"))
        except SlurmRefused:
            return {}
        leaves = [block for block in shown if block.get("Level") == "0"]
        return {node: block["SwitchName"] for block in leaves for node in expand_hosts(block.get("Nodes"))}

    def update_job(self, job: int | str, changes: Mapping[str, str]) -> None:
        """``scontrol update`` of one job, for example ``{"Nice": "100"}``."""
        self.commands.run("scontrol", "update", f"JobId={job}", *(f"{name}={value}" for name, value in changes.items()))

    def _json(self, command: str, *arguments: str) -> Mapping[str, Any]:
        """The answer of a command as an object. 22.05 ends with code 0 although the object names errors."""
        text = self.commands.run(command, *arguments)
        try:
            document = json.loads(text)
        except ValueError as error:
            raise SlurmUnreadable(f"{command} wrote no JSON: {text[:80]!r}") from error
        if not isinstance(document, dict):
            raise SlurmUnreadable(f"{command} wrote no JSON object: {text[:80]!r}")
        errors = document.get("errors")
        if errors:
            raise failure(command, _first_error(errors))
        return document


def _first_error(errors: Sequence[Any]) -> str:
    first = errors[0]
    if not isinstance(first, Mapping):
        return str(first)
    words = (str(first.get(name) or "") for name in ("description", "error"))
    return ": ".join(dict.fromkeys(word for word in words if word)) or "an error without a message"


def duration_s(text: str | None) -> float | None:
    """Seconds of ``[days-][[hours:]minutes:]seconds``; None for UNLIMITED and anything else."""
    days, dash, rest = (text or "").rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in (*parts, *([days] if dash else []))):
        return None
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return float(seconds + 86_400 * int(days or 0))
