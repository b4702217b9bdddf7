"""The specification of a job that Slurm runs. One definition for waiting, running and accounted jobs: the predictor recognises
a recurring job by its user, account and name, so that all three must have them alike.
"""

from policies.model.job import JobSpec


def spec_of(
    *, name: str, user: str, account: str = "", gpus: int, gpu_type: str | None = None, limit_s: float | None = None
) -> JobSpec:
    """The spec of a Slurm job. ``limit_s``: its time limit in seconds, None = unlimited.

    Slurm does not know whether a program checkpoints, so a stop loses its work; a failed job is not repeated.
    """
    return JobSpec(
        name=name,
        user=user,
        gpus=gpus,
        project=account,
        gpu_type=gpu_type,
        walltime_s=limit_s,
        checkpoint_period_s=None,
        max_retries=0,
    )
