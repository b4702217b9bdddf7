"""``sooner shadow``: what a second policy would have done beside the one that decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.connect import connect
from service.cli.fail import fail
from service.cli.job_tables import amount, duration, elapsed_s, when
from service.cli.output import Answer, Column, Style, Table, show
from service.client import Client
from service.domain.counts import count_of
from service.domain.duration import words_of

if TYPE_CHECKING:
    from service.wire.shadow import (
        DisagreementDocument,
        ShadowCycleDocument,
        ShadowDocument,
        ShadowStartsDocument,
        ShadowStopsDocument,
    )


_GPU_HOUR_S = 3600.0

_WANTS = {"start": "start it", "wait": "have let it wait", "stop": "stop it"}


def shadow_command(
    cycles: Annotated[
        bool, typer.Option("--cycles", help="List the newest cycles in which the two policies differ.")
    ] = False,
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if",
            help="Simulate both policies on the jobs since the shadow began, with the actual schedule. Reads the database.",
        ),
    ] = False,
    *,
    how: Style,
) -> None:
    """Compare the decisions of the shadow policy and the active policy, and list the jobs on which they disagree now."""
    if what_if and (cycles or how.quiet or how.columns or how.watch):
        fail("--what-if can be combined only with --json")
    with connect() as client:
        if what_if:
            _what_if(client.shadow.show(), how.as_json)
        elif cycles:
            show(_CYCLES, lambda: _cycles(client), how)
        else:
            show(JOBS, lambda: _jobs(client, summary=not how.columns), how)


def _what_if(found: ShadowDocument, as_json: bool) -> None:
    """Both policies as the service has them, not as this shell's settings do."""
    # The simulator is not needed to look at a report.
    from service.cli.past import own_database, window
    from service.cli.whatif import past_under
    from service.simulations.request import RECORDED
    from service.simulations.runs import Plan

    first = Plan(found["first_policy"], found["first_policy"], found["first_options"], RECORDED)
    label = found["policy"] if found["policy"] != found["first_policy"] else f"{found['policy']} (shadow)"
    second = Plan(label, found["policy"], found["options"], RECORDED)
    past_under(
        [first, second], window(found["since"], None), own_database(None, None), with_workers=False, as_json=as_json
    )


JOBS: Table[DisagreementDocument] = Table(
    columns=(
        Column("JOB", lambda each: str(each["job_id"]), right=True),
        Column("NAME", lambda each: each["name"], long=True),
        Column("GPUS", lambda each: str(each["gpus"]), right=True),
        Column("SINCE", lambda each: when(each["since"])),
        Column("SHADOW WOULD", lambda each: _WANTS.get(each["shadow_wants"], each["shadow_wants"])),
        Column("SHADOW", lambda each: each["shadow_sentence"], long=True),
        Column("FIRST", lambda each: each["first_sentence"], long=True),
    ),
    key=lambda each: str(each["job_id"]),
    hidden=(
        Column("SERVERS", lambda each: " ".join(f"{at['server']}:{at['gpus']}" for at in each["servers"]), long=True),
        Column("REASON", lambda each: each["first_reason"]),
        Column("FOR JOB", lambda each: "" if each["for_job_id"] is None else str(each["for_job_id"]), right=True),
    ),
)

_CYCLES: Table[ShadowCycleDocument] = Table(
    columns=(
        Column("CYCLE", lambda each: "-" if each["cycle"] is None else str(each["cycle"]), right=True),
        Column("AT", lambda each: when(each["at"])),
        Column("STARTS BOTH", lambda each: str(each["starts_both"]), right=True),
        Column("FIRST ALONE STARTS", lambda each: _numbers(each["starts_first_only"]), long=True),
        Column("SHADOW WOULD START", lambda each: _numbers(each["starts_shadow_only"]), long=True),
        Column("STOPS BOTH", lambda each: str(each["preemptions_both"]), right=True),
        Column("FIRST ALONE STOPS", lambda each: _numbers(each["preemptions_first_only"]), long=True),
        Column("SHADOW WOULD STOP", lambda each: _numbers(each["preemptions_shadow_only"]), long=True),
    ),
    key=lambda each: "-" if each["cycle"] is None else str(each["cycle"]),
)


def _jobs(client: Client, *, summary: bool) -> Answer[DisagreementDocument]:
    found = client.shadow.show()
    rows = found["disagreements"]
    lead = _summary(found) if summary else ""
    untold = found["disagreements_total"] - len(rows)
    note = f"{untold} more jobs are not shown" if untold else ""
    return Answer(rows, _document(found), note, lead)


def _cycles(client: Client) -> Answer[ShadowCycleDocument]:
    found = client.shadow.show()
    return Answer(found["cycles"], _document(found))


def _document(found: ShadowDocument) -> dict[str, object]:
    return {"schema": "sooner.shadow/1", "shadow": found}


def _summary(found: ShadowDocument) -> str:
    """Who, since when, and the counts, as lines."""
    starts, stops = found["starts"], found["preemptions"]
    options = ",".join(f"{name}={value}" for name, value in sorted(found["options"].items()))
    whom = f"{found['policy']} ({options})" if options else found["policy"]
    skipped = f", {amount(found['skipped'])} more without it" if found["skipped"] else ""
    lines = [
        f"{whom} beside {found['first_policy']} since {when(found['since'])}: {found['status']}",
        *([f"  {found['status_reason']}"] if found["status_reason"] else []),
        f"{amount(found['passes'])} cycles in {duration(elapsed_s(found['since'], found['at']))}{skipped}",
        "",
        *_counts(starts, stops),
        "",
        *_remarks(found),
        _disagreement(found["disagreements_total"]),
    ]
    return "\n".join(lines)


def _disagreement(jobs: int) -> str:
    if jobs == 0:
        return "They disagree on no job now."
    return f"They disagree on {count_of(jobs)} now:"


def _counts(starts: ShadowStartsDocument, stops: ShadowStopsDocument) -> list[str]:
    held = [starts["both_gpu_s"], starts["first_only_gpu_s"], starts["shadow_only_gpu_s"]]
    lost = [stops["both_lost_gpu_s"], stops["first_only_lost_gpu_s"], stops["shadow_only_lost_gpu_s"]]
    return [
        _line("", ["BOTH", "FIRST ONLY", "SHADOW ONLY", "AGREEMENT"]),
        _line("starts", [*_numbers_of(starts), _share(starts["agreement_ratio"])]),
        _line("  GPU-hours", [*map(_hours, held), ""]),
        _line("preemptions", [*_numbers_of(stops), _share(stops["agreement_ratio"])]),
        _line("  lost GPU-hours", [*map(_hours, lost), ""]),
    ]


def _remarks(found: ShadowDocument) -> list[str]:
    starts = found["starts"]
    remarks = []
    if starts["both"]:
        remarks.append(
            f"Of the starts of both, {starts['same_placement']} were on the same GPUs; the shadow would have used fewer "
            f"servers for {starts['fewer_servers']}, more for {starts['more_servers']}, others for {starts['other_servers']}."
        )
    if starts["shadow_only"]:
        later = starts["granted_later"]
        mean = f", {words_of(starts['granted_later_s'] / later)} later on average" if later else ""
        remarks.append(
            f"Of the starts of only the shadow, the active policy made {later} in a later cycle{mean}; "
            "the GPU-hours count free GPUs that the shadow would have used."
        )
    for count, what in (
        (found["overruns"], "decisions of the shadow exceeded the time limit"),
        (found["rejected"], "decisions of the shadow broke a rule and are not counted"),
    ):
        if count:
            remarks.append(f"{count} {what}.")
    return remarks


def _numbers_of(tally: ShadowStartsDocument | ShadowStopsDocument) -> list[str]:
    return [amount(tally["both"]), amount(tally["first_only"]), amount(tally["shadow_only"])]


def _line(name: str, cells: Sequence[str]) -> str:
    return (f"{name:<16}" + "".join(f"{cell:>13}" for cell in cells)).rstrip()


def _hours(gpu_s: float) -> str:
    return f"{gpu_s / _GPU_HOUR_S:,.2f}"


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _numbers(jobs: Sequence[int]) -> str:
    return ",".join(map(str, jobs))
