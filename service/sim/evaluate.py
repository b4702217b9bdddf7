"""``sooner model evaluate``: the prequential protocol on a workload, every baseline and model side by side.

It predicts seconds of service (the workload's ``duration_s``). A label counts from the job's end in the source's log.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from policies.model.estimate import Unit
from predictor import prequential
from predictor.aggregation import AGGREGATION
from predictor.dataset import Knowledge, replay
from predictor.evaluation import by_history, by_user, first_of_bursts, measure
from predictor.experts import BASIC, FIRST
from predictor.intervals import Array
from predictor.prequential import Run, Served
from predictor.rows import EndedRow, Submission, plausible
from predictor.training import ESTIMATORS, TEST_RATIO
from service.sim.workloads.model import Workload, WorkloadJob

EVALUATION_SCHEMA: Final = "sooner.prediction.evaluation/1"
JOBS_MIN: Final = 50
"""With fewer jobs the last 40% are too few to measure anything."""
SERVED: Final = "served"
_DECLARED: Final = "declared"


class EvaluationError(ValueError):
    """A workload or a choice of models that cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The document, and the data behind it for the files of ``--out``."""

    document: dict[str, Any]
    test_jobs: Sequence[WorkloadJob]
    run: Run
    served: Served


def rows_of(jobs: Iterable[WorkloadJob]) -> Iterator[EndedRow]:
    """The jobs as ended rows, numbered in their order. Without an ``end_time_s`` a job ended when it would have on its own."""
    for number, job in enumerate(jobs):
        submission = Submission(
            job=number,
            user=job.user,
            project=job.project,
            name=job.name,
            gpus=job.gpus,
            submitted_at_s=job.submit_time_s,
            declared_iterations=plausible(job.declared_iterations),
            walltime_s=plausible(job.walltime_s),
            model=job.model,
            gpu_type=job.gpu_type,
        )
        ended_at_s = job.end_time_s if job.end_time_s is not None else job.submit_time_s + job.duration_s
        yield EndedRow(submission, ended_at_s, job.iterations, job.duration_s, job.final_state)


def evaluate(
    workload: Workload,
    kinds: Sequence[str] | None = None,
    *,
    chunks: int = 12,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Predict the last 40% of the jobs, each with what was known at its submission, retraining at the start of each chunk.

    ``kinds`` are the models to train (None: all); baselines are always scored. Raises :class:`EvaluationError`.
    """
    factories = {kind: ESTIMATORS[kind] for kind in _chosen(kinds)}
    if len(workload.jobs) < JOBS_MIN:
        raise EvaluationError(f"an evaluation needs at least {JOBS_MIN} jobs (got {len(workload.jobs)})")
    found = (examples.get(Unit.SERVICE_S) for _, examples in replay(rows_of(workload.jobs), Knowledge()))
    # Packed: as Python numbers the features of a million jobs take 3 GB, in an array a quarter.
    examples = [replace(each, features=array("d", each.features)) for each in found if each is not None]
    test_start = len(examples) - int(len(examples) * TEST_RATIO)
    run = prequential.run(examples, factories, test_start=test_start, chunks=chunks, seed=seed, on_progress=on_progress)
    if not len(run.labels):
        raise EvaluationError("no job ended before the last submission: there is no training data")
    served = prequential.serve(run)
    tested = [workload.jobs[example.submission.job] for example in run.examples[run.test_start :]]
    return Evaluation(_document(workload.name, run, served), tested, run, served)


def _chosen(kinds: Sequence[str] | None) -> list[str]:
    """The models to train. Experts that need no training may be named, and are always scored."""
    for kind in kinds or ():
        if kind not in (*ESTIMATORS, *BASIC, _DECLARED):
            scored = f"{', '.join((*BASIC, _DECLARED))} need no training and are always scored"
            raise EvaluationError(f"unknown model {kind!r}; the models are {', '.join(ESTIMATORS)}; {scored}")
    return [kind for kind in ESTIMATORS if kinds is None or kind in kinds]


def _document(name: str, run: Run, served: Served) -> dict[str, Any]:
    models = {expert: _measured(run, quantiles, (expert,)) for expert, quantiles in run.tested.items()}
    # Declarations are in iterations. Where seconds are predicted, a declaration says no more than the recurrence median.
    models[_DECLARED] = models[FIRST]
    models[SERVED] = _measured(run, served.tested(run), run.experts)
    return {
        "schema": EVALUATION_SCHEMA,
        "workload": name,
        "test_jobs": len(run.labels),
        "retrains": sum(chunk.first >= run.test_start for chunk in run.chunks),
        "served": AGGREGATION,
        "models": models,
    }


def _measured(run: Run, quantiles: Array, parts: Sequence[str]) -> dict[str, Any]:
    """The metrics of one row, under the names of the document. ``parts`` are the experts that it runs."""
    fits_s = [run.fit_s[kind] for kind in parts if kind in run.fit_s]
    cost = {
        "fit_s": round(sum(sum(each) / len(each) for each in fits_s if each), 6),
        "predict_ms": round(1000.0 * sum(run.predict_s[kind] for kind in parts) / len(run.examples), 6),
    }

    def named(metrics: dict[str, Any]) -> dict[str, Any]:
        return {**{"mae_s" if key == "mae" else key: value for key, value in metrics.items()}, **cost}

    whole = by_history(run.labels, quantiles, run.buckets)
    submissions = [example.submission for example in run.examples[run.test_start :]]
    once = first_of_bursts(submissions)
    users = by_user([submission.user for submission in submissions], run.labels, quantiles)
    bursts = measure(run.labels[once], quantiles[once]).to_json()
    buckets = {bucket: named(part) for bucket, part in whole.pop("buckets").items()}
    seen, cold = named(whole.pop("seen")), named(whole.pop("cold"))
    return {
        **named(whole),
        "seen": seen,
        "cold": cold,
        "buckets": buckets,
        "macro_by_user": named(users),
        "deduplicated": named(bursts),
    }
