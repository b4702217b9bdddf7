"""``sooner sim snapshot`` and ``sooner sim replay``: save a live cycle, and decide it again."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.base import Policy
from policies.model.decision import Action, Preempt, Start
from policies.model.ids import JobId
from policies.options import OptionError
from policies.registry import make_policy
from service.cli import completion
from service.cli.connect import connect
from service.cli.fail import EXIT_FAILED, fail
from service.cli.options import STANDARD, read_file, write_new
from service.cli.output import Column, JsonFlag, print_json, print_table, printable
from service.cli.sim_options import OptionOption, policy_options
from service.client import Client
from service.db.codec import encode_actions
from service.domain.counts import count_of
from service.history.cycle_file import CycleFileError, read_cycle
from service.history.cycles import CycleSnapshot, Replay, replay

FILE_BYTES_MAX = 1 << 30
"""A recorded cycle above this is not one."""


def replay_command(
    file: Annotated[
        Path, typer.Argument(metavar="CYCLE.json", help="File that `sooner sim snapshot` wrote; - = standard input.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Decide with this policy and its default options instead.",
            autocompletion=completion.policies,
        ),
    ] = None,
    option: OptionOption = None,
    why: Annotated[bool, typer.Option("--why", help="Also explain why each other job waits.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Replay the decision of a recorded cycle. Exit code 0 if the actions are equal, else 1.

    --option without --policy changes options of the recorded policy.
    """
    snapshot = read_snapshot(file)
    if policy is None and option is None:
        chosen = recorded_policy(file, snapshot)
    else:
        name = policy or snapshot.policy
        given = policy_options(name, option, None)
        chosen = make_policy(name, given if policy is not None else {**snapshot.options, **given})
    outcome = replay(snapshot, chosen)
    if as_json:
        print_json(_document(snapshot, chosen.name, outcome))
    else:
        _print(snapshot, chosen.name, outcome)
        if why:
            _print_waiting(snapshot, outcome)
    if not outcome.equal:
        raise typer.Exit(EXIT_FAILED)


def recorded_policy(file: Path, snapshot: CycleSnapshot) -> Policy[Any]:
    """The policy that decided the cycle, with its options; or an end with one line."""
    try:
        return make_policy(snapshot.policy, snapshot.options)
    except OptionError as error:
        fail(f"{file}: {error}")


def read_snapshot(file: Path) -> CycleSnapshot:
    """The recorded cycle, or an end with one line that says what is wrong with the file."""
    try:
        return read_cycle(json.loads(read_file(str(file), FILE_BYTES_MAX)))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}")
    except CycleFileError as error:
        fail(f"{file}: {error}")
    except (ValueError, RecursionError) as error:
        fail(f"{file}: not JSON: {' '.join(str(error).split())}")


def snapshot_command(
    cycle: Annotated[
        int | None, typer.Argument(metavar="CYCLE", min=0, help="Cycle number. Default: the newest cycle with actions.")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Save the current cluster and queue instead of a recorded cycle.")
    ] = False,
    known: Annotated[bool, typer.Option("--list", help="Print the cycles that can be saved, newest first.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            dir_okay=False,
            help="File to write, which must not exist; - = standard output. Default: cycle-NUMBER.json.",
        ),
    ] = None,
) -> None:
    """Save the input of a cycle's decision to a file, without commands and environments of jobs."""
    if sum((cycle is not None, now, known)) > 1:
        fail("give only one of CYCLE, --now and --list")
    with connect() as client:
        if known:
            for number in client.cycles.recorded():
                typer.echo(str(number))
            return
        document = (
            client.cycles.snapshot_now()
            if now
            else client.cycles.snapshot(cycle if cycle is not None else _newest(client))
        )
    text = json.dumps(document, allow_nan=False)
    if str(out) == STANDARD:
        typer.echo(text)
        return
    target = out or Path(f"cycle-{document['cycle']}{'-now' if now else ''}.json")
    write_new(target, f"{text}\n".encode())
    typer.echo(printable(str(target)))


def _newest(client: Client) -> int:
    known = client.cycles.recorded()
    if not known:
        fail(
            "no cycle is recorded: no cycle has had actions yet, or too many jobs are unfinished; "
            "--now saves the current queue",
            EXIT_FAILED,
        )
    return known[0]


def _document(snapshot: CycleSnapshot, policy: str, outcome: Replay) -> Mapping[str, Any]:
    return {
        "schema": "sooner.sim.replay/1",
        "cycle": snapshot.cycle,
        "policy": policy,
        "equal": outcome.equal,
        "recorded": encode_actions(outcome.recorded)["items"],
        "replayed": encode_actions(outcome.replayed)["items"],
        "waiting": [
            {"job_id": job, "reason": str(each.reason), "sentence": each.sentence}
            for job, each in outcome.waiting.items()
        ],
    }


def _print(snapshot: CycleSnapshot, policy: str, outcome: Replay) -> None:
    world = snapshot.world
    jobs = sum(1 for job in world.jobs if not job.finished)
    typer.echo(
        printable(
            f"cycle {snapshot.cycle} at {_at(world.now_s)}: {count_of(jobs, 'unfinished job')}, "
            f"{count_of(world.cluster.gpus, 'GPU')}, {snapshot.policy}"
        )
    )
    if outcome.equal:
        typer.echo(
            f"{policy} decides the same: {count_of(len(outcome.recorded), 'action') if outcome.recorded else 'nothing'}"
        )
        for action in outcome.recorded:
            typer.echo(printable(f"  {_words(action, snapshot)}"))
        return
    typer.echo(f"{policy} decides differently")
    for title, actions in (("recorded", outcome.recorded), ("replayed", outcome.replayed)):
        for action in actions:
            typer.echo(printable(f"  {title}: {_words(action, snapshot)}"))
        if not actions:
            typer.echo(f"  {title}: nothing")


def _at(now_s: float) -> str:
    try:
        return datetime.fromtimestamp(now_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{now_s:g} s"


def _print_waiting(snapshot: CycleSnapshot, outcome: Replay) -> None:
    names = {job.id: job.spec.name for job in snapshot.world.jobs}
    columns: list[Column[JobId]] = [
        Column("JOB", str, right=True),
        Column("NAME", lambda job: names[job], long=True),
        Column("REASON", lambda job: str(outcome.waiting[job].reason)),
        Column("EXPLANATION", lambda job: outcome.waiting[job].sentence, long=True),
    ]
    print_table(columns, list(outcome.waiting))


def _words(action: Action, snapshot: CycleSnapshot) -> str:
    """``start job 7 (train) on s0001:4``."""
    jobs = {job.id: job.spec.name for job in snapshot.world.jobs}

    def job(number: JobId) -> str:
        return f"job {number} ({jobs[number]})" if jobs.get(number) else f"job {number}"

    if isinstance(action, Preempt):
        return f"preempt {job(action.job)}" + (f" for {job(action.for_job)}" if action.for_job is not None else "")
    verb = "start" if isinstance(action, Start) else "reserve for"
    if action.placement is None:
        return f"release the reservation for {job(action.job)}"
    servers = snapshot.world.cluster.servers
    where = " ".join(f"{servers[share.server].name}:{share.gpus}" for share in action.placement.shares)
    return f"{verb} {job(action.job)} on {where}"
