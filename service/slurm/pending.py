"""Reasons of Slurm for which a job waits for ever, in plain words. For others, such as busy nodes, waiting may help."""

import re
from typing import Final

_NEVER: Final = (
    (
        r"(?:Assoc|QOS)Max\w*(?:Wall|Minutes)\w*PerJob\w*",
        "its time limit is longer than its account or QOS allows one job; slurm_extra_args can ask for less, as --time=24:00:00",
    ),
    (r"PartitionTimeLimit", "its time limit is longer than the partition allows"),
    (r"(?:Assoc|QOS)Max\w*Per(?:Job|Node)\w*", "it asks for more than its account or QOS allows one job"),
    (r"MaxMemPerLimit", "it asks for more memory than Slurm allows a job on a node"),
    (r"QOSMin\w+", "it asks for less than its QOS demands of a job"),
    (r"InvalidAccount|AccountNotAllowed", "its account may not run jobs here"),
    (r"InvalidQOS|QOSNotAllowed", "its QOS may not be used here"),
    (r"BadConstraints", "no nodes can meet its constraints"),
    (r"JobHeld(?:Admin|User)|JobHoldMaxRequeue", "it is held in Slurm"),
    (r"launch[ _]failed[ _]requeued[ _]held", "its launch failed, and Slurm holds it"),
    (r"Reservation(?:Deleted|Invalid)", "its reservation is gone"),
    (r"DependencyNeverSatisfied", "a job that it depends on has not succeeded"),
)
"""Not PartitionNodeLimit, which Slurm also names while a node is down."""


def never_starts(reason: str) -> str:
    """Why a job that waits for this reason will never start unless somebody changes it; empty for reasons that may pass."""
    # Words of a plugin or names of nodes may follow.
    name = reason.partition(",")[0]
    words = next((words for pattern, words in _NEVER if re.fullmatch(pattern, name)), "")
    return f"{words} ({name})" if words else ""
