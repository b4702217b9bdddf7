"""Reasons of waiting jobs: which of them never pass, and what a user reads of them."""

import pytest

from service.slurm.pending import never_starts


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxWallDurationPerJobLimit", "its time limit is longer than its account or QOS allows one job"),
        ("AssocMaxWallDurationPerJobLimit", "its time limit is longer than its account or QOS allows one job"),
        ("AssocMaxCpuMinutesPerJobLimit", "its time limit is longer than its account or QOS allows one job"),
        ("PartitionTimeLimit", "its time limit is longer than the partition allows"),
        ("QOSMaxGRESPerJob", "it asks for more than its account or QOS allows one job"),
        ("AssocMaxMemPerNode", "it asks for more than its account or QOS allows one job"),
        ("MaxMemPerLimit", "it asks for more memory than Slurm allows a job on a node"),
        ("QOSMinGRES", "it asks for less than its QOS demands of a job"),
        ("InvalidAccount", "its account may not run jobs here"),
        ("InvalidQOS", "its QOS may not be used here"),
        ("BadConstraints", "no nodes can meet its constraints"),
        ("JobHeldAdmin", "it is held in Slurm"),
        ("JobHeldUser", "it is held in Slurm"),
        ("launch_failed_requeued_held", "its launch failed, and Slurm holds it"),
        ("ReservationDeleted", "its reservation is gone"),
    ],
)
def test_what_never_passes_by_waiting(reason: str, words: str) -> None:
    for shown in (reason, f"{reason},_more_words"):
        found = never_starts(shown)
        assert found.startswith(words) and found.endswith(f"({reason})")


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "",
            "Priority",
            "Resources",
            "ReqNodeNotAvail,_UnavailableNodes:n1",
            "Reservation",
            "PartitionDown",
            "BeginTime",
        ),
        *("PartitionNodeLimit", "QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser", "MaxGRESPerAccount", "AssocGrpGRES"),
        *("QOSMaxSubmitJobPerUserLimit", "AssocMaxJobsLimit", "Licenses", "Constraints"),
    ],
)
def test_what_may_pass(reason: str) -> None:
    assert never_starts(reason) == ""
