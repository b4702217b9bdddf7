"""``sooner sim snapshot`` and ``sooner sim replay``: take a live cycle home, and decide it again.

Adds its commands to the group of :mod:`service.cli.sim`, by way of :mod:`service.cli.whatif`; whoever wants the whole group
takes ``app`` from here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.base import Policy
from policies.model.decision import Action, Preempt, Reserve, Resize, Start
from policies.options import OptionError
from policies.registry import make_policy
from service.cli.fail import EXIT_FAILED, fail
from service.cli.output import JsonFlag, print_json, printable
from service.cli.whatif import app as app
from service.cycle_file import CycleFileError, read_cycle
from service.db.codec import encode_actions
from service.sim.replay import CycleSnapshot, Replay, replay

FILE_BYTES_MAX = 1 << 30
"""A recorded cycle above this is not one."""


@app.command("replay")
def replay_command(
    file: Annotated[Path, typer.Argument(metavar="CYCLE.json", help="What 'sooner sim snapshot' wrote.")],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Decide with this policy's defaults instead: a what-if.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Decide a recorded cycle again: exit code 0 if the actions are the recorded ones, 1 if not."""
    snapshot = read_snapshot(file)
    try:
        chosen = make_policy(policy, {}) if policy is not None else recorded_policy(file, snapshot)
    except OptionError as error:
        fail(str(error))
    told = replay(snapshot, chosen)
    if as_json:
        print_json(_document(snapshot, chosen.name, told))
    else:
        _tell(snapshot, told)
    if not told.equal:
        raise typer.Exit(EXIT_FAILED)


@app.command("snapshot")
def snapshot_command(
    cycle: Annotated[
        int | None, typer.Argument(metavar="CYCLE", min=0, help="A cycle's number; left out: the newest with actions.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="Write it here; left out: cycle-NUMBER.json.")
    ] = None,
) -> None:
    """Save everything that a live cycle's decision rests on; commands and environments of jobs are left out."""
    # Only this command talks to a service; a simulation need not pay for that.
    from service.cli.connect import connect

    with connect() as client:
        if cycle is None:
            known = client.snapshots()
            if not known:
                fail("no cycle has been recorded: none had actions yet, or too many jobs are unfinished", EXIT_FAILED)
            cycle = known[0]
        document = client.snapshot(cycle)
    target = out or Path(f"cycle-{cycle}.json")
    try:
        target.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{target}: {error.strerror or error}")
    typer.echo(printable(str(target)))


def recorded_policy(file: Path, snapshot: CycleSnapshot) -> Policy[Any]:
    """The policy that decided the cycle, with its options; or an end with one line."""
    try:
        return make_policy(snapshot.policy, snapshot.options)
    except OptionError as error:
        fail(f"{file}: {error}")


def read_snapshot(file: Path) -> CycleSnapshot:
    """The recorded cycle, or an end with one line that says what is wrong with the file."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            fail(f"{file}: larger than {FILE_BYTES_MAX} bytes")
        return read_cycle(json.loads(raw))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    except CycleFileError as error:
        fail(f"{file}: {error}")
    except (ValueError, RecursionError) as error:
        fail(f"{file}: not JSON: {' '.join(str(error).split())}")


def _document(snapshot: CycleSnapshot, policy: str, told: Replay) -> Mapping[str, Any]:
    return {
        "schema": "sooner.sim.replay/1",
        "cycle": snapshot.cycle,
        "policy": policy,
        "equal": told.equal,
        "recorded": encode_actions(told.recorded)["items"],
        "replayed": encode_actions(told.replayed)["items"],
    }


def _tell(snapshot: CycleSnapshot, told: Replay) -> None:
    names = [server.name for server in snapshot.world.cluster.servers]
    if told.equal:
        typer.echo(f"cycle {snapshot.cycle}: the same {len(told.recorded)} actions")
        for action in told.recorded:
            typer.echo(printable(f"  {_words(action, names)}"))
        return
    typer.echo(f"cycle {snapshot.cycle}: decided differently")
    for title, actions in (("recorded", told.recorded), ("replayed", told.replayed)):
        for action in actions:
            typer.echo(printable(f"  {title}: {_words(action, names)}"))
        if not actions:
            typer.echo(f"  {title}: nothing")


def _words(action: Action, names: list[str]) -> str:
    """``start job 7 on s0001:4``."""
    if isinstance(action, Preempt):
        return f"preempt job {action.job}" + (f" for job {action.for_job}" if action.for_job is not None else "")
    verb = {Start: "start", Resize: "resize", Reserve: "reserve for"}[type(action)]
    if action.placement is None:
        return f"release what is reserved for job {action.job}"
    where = " ".join(f"{names[share.server]}:{share.gpus}" for share in action.placement.shares)
    return f"{verb} job {action.job} on {where}"
