"""What users and projects have used, as policies of fair shares count it, and their quotas."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from service.wire.times import Time


class FairShareDocument(TypedDict):
    """A user or a project. The keys from `weight` to `level` are null if the policy does not count its use."""

    name: Annotated[str | None, Field(description="null: jobs without one.")]
    weight: float | None
    share: Annotated[float | None, Field(description="Its part by weight among all whose use is counted, of 0 to 1.")]
    used_gpu_h: Annotated[float | None, Field(description="GPU-hours, of projects after their decay.")]
    used_share: Annotated[float | None, Field(description="Its part of all counted GPU-hours, of 0 to 1.")]
    level: Annotated[int | None, Field(description="Jobs of smaller levels come first.")]
    gpus: Annotated[int, Field(description="Held now.")]
    jobs: Annotated[int, Field(description="Unfinished jobs.")]
    gpus_running_max: Annotated[int | None, Field(description="The quota of GPUs held at a time; null: no limit.")]
    jobs_queued_max: Annotated[int | None, Field(description="The quota of unfinished jobs; null: no limit.")]


class SharesDocument(TypedDict):
    """Those whose use is counted, or that have a quota or unfinished jobs: smaller levels first, then by name."""

    at: Time
    policy: str
    half_life_s: Annotated[
        float | None, Field(description="After it half of a project's use has decayed; that of a user does not decay.")
    ]
    users: list[FairShareDocument]
    users_reason: Annotated[str | None, Field(description="Why the use of users is not counted.")]
    projects: list[FairShareDocument]
    projects_reason: Annotated[str | None, Field(description="Why the use of projects is not counted.")]
