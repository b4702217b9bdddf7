"""A prediction and why it is what it is, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from service.cli.job_tables import amount

if TYPE_CHECKING:
    from service.wire.predictions import ContributionsDocument, PredictionDetailsDocument


_TRUST = {
    "model": "ranked by the model's distribution",
    "history": "ranked by how past runs went",
    "attained_service": "not trusted: ranked by the service it has had so far",
}


def prediction_lines(found: PredictionDetailsDocument | None) -> list[str]:
    """The prediction, who trusts it, what moved it, and past jobs to compare it with; or that there is none."""
    if found is None:
        return ["There is no prediction: no cycle has taken the job in yet, or nothing like it has ended."]
    unit = "iterations" if found["unit"] == "iterations" else "s"
    spread = f"{amount(found['point'])} [{amount(found['p10'])}-{amount(found['p90'])}] {unit}"
    lines = [f"Predicted {spread}: {found['source']}.", f"It is {_TRUST.get(found['trust'], found['trust'])}."]
    if found["bucket"] is not None and found["past_runs"] is not None:
        runs = f"{found['past_runs']:,} past run{'' if found['past_runs'] == 1 else 's'} with as many GPUs"
        lines.append(f"{runs}; intervals are calibrated among jobs with {found['bucket']} of them.")
    if found["contributions"] is None:
        lines.append(found["contributions_reason"] or "")
    else:
        lines += _moved(found["contributions"], unit)
    lines += _similar(found, unit)
    return [line for line in lines if line]


def _moved(found: ContributionsDocument, unit: str) -> Iterator[str]:
    start, total = amount(found["history_median"]), amount(found["total"])
    yield f"What moved {found['model_version']} from {start} {unit}, the nearest past's median, to {total}:"
    yield from (f"  x{each['factor']:.2f}  {each['words']}" for each in found["top"])
    yield f"  x{found['others_factor']:.2f}  everything else"
    yield f"  x{found['usual_factor']:.2f}  what it adds to every job"


def _similar(found: PredictionDetailsDocument, unit: str) -> Iterator[str]:
    if not found["similar"]:
        yield "No job like it has ended here."
        return
    yield "Jobs like it:"
    for each in found["similar"]:
        total = "reported none" if each["total"] is None else f"{amount(each['total'])} {unit}"
        yield f"  job {each['job_id']}: {each['name']}, {each['gpus']} GPUs, {total}, {each['state']}"
