"""Sentences about the jobs of a period of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.domain.counts import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.history.workload import OwnHistory


def left_out_notes(left_out: Mapping[str, int]) -> list[str]:
    """One line for each reason for which jobs are left out, from their numbers by reason."""
    return [f"left out {count_of(count)}: {why}" for why, count in sorted(left_out.items())]


def held_notes(history: OwnHistory) -> list[str]:
    """One line if jobs were submitted with a hold, which simulations do without."""
    held = sum(job.recorded.record.spec.hold for job in history.jobs)
    return [f"submitted with hold, but simulated without it: {count_of(held)}"] if held else []


def nothing_to_run(history: OwnHistory) -> str:
    """Why a period has no jobs to simulate."""
    missing = "no job that was submitted in this period has run and ended"
    return "; ".join([missing, *left_out_notes(history.left_out)])
