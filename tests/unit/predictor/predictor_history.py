"""Seeded histories of recurring jobs for the predictor's tests."""

from functools import cache

import numpy as np

from policies.model.estimate import EndedJob, PredictionRequest
from policies.model.ids import JobId
from policies.model.job import JobSpec
from predictor.rows import ended_row
from predictor.training import TrainedModel, train


def spec(name: str = "resnet", user: str = "ada", gpus: int = 4, **more: object) -> JobSpec:
    """A job as a user would submit it."""
    return JobSpec(name=name, user=user, gpus=gpus, project=str(more.pop("project", "vision")), **more)  # type: ignore[arg-type]


def ended(
    job: int,
    iterations: float | None = 1_000.0,
    *,
    submitted_at_s: float = 0.0,
    seconds_per_iteration: float | None = 0.5,
    service_s: float | None = None,
    final_state: str = "succeeded",
    **of: object,
) -> EndedJob:
    """An ended job that ran right after its submission."""
    if service_s is None:
        service_s = (iterations or 600.0) * (seconds_per_iteration or 1.0)
    return EndedJob(
        job=JobId(job),
        spec=spec(**of),  # type: ignore[arg-type]
        submitted_at_s=submitted_at_s,
        ended_at_s=submitted_at_s + service_s,
        iterations=iterations,
        service_s=service_s,
        final_state=final_state,
        seconds_per_iteration=seconds_per_iteration if iterations is not None else None,
        gpu_type="V100",
        servers_spanned=1,
    )


def request(job: int, *, submitted_at_s: float = 1e6, **of: object) -> PredictionRequest:
    """A new job."""
    return PredictionRequest(JobId(job), spec(**of), submitted_at_s)  # type: ignore[arg-type]


def recurring_history(jobs: int, seed: int = 0, *, reports: bool = True) -> list[EndedJob]:
    """Families of different size and spread. What a run takes follows its GPUs and declared size, as real sweeps do.

    A family's log size wanders slowly, one in ten runs fails early: neither the newest run nor the median says it all.
    """
    rng = np.random.default_rng(seed)
    families = [(f"program{i}", f"user{i % 5}", 4.0 + 0.6 * i, 0.05 + 0.1 * (i % 4)) for i in range(10)]
    centre = {name: size for name, _, size, _ in families}
    history = []
    for job in range(jobs):
        name, user, _, spread = families[int(rng.integers(len(families)))]
        centre[name] += 0.02 * rng.normal()
        gpus = int(rng.choice([1, 2, 4]))
        log_iterations = centre[name] + 0.5 * np.log(gpus) + spread * rng.normal()
        failed = rng.random() < 0.1
        if failed:
            log_iterations += np.log(0.1 + 0.3 * rng.random())
        history.append(
            ended(
                job,
                float(np.exp(log_iterations)) if reports else None,
                submitted_at_s=job * 600.0,
                service_s=float(np.exp(log_iterations)) * 0.2,
                seconds_per_iteration=0.2,
                final_state="failed" if failed else "succeeded",
                name=name,
                user=user,
                gpus=gpus,
            )
        )
    return history


@cache
def small_model() -> TrainedModel:
    """A model of the seconds head, trained once for all tests (about two seconds)."""
    return train(map(ended_row, recurring_history(240, reports=False)), seed=3)
