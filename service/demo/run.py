"""The steps of ``sooner demo``, from an empty folder to a summary, and the checks that decide its exit code."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING

import typer

from predictor.aggregation import AGGREGATION
from service.cli.fail import EXIT_USAGE
from service.cli.history import add_history
from service.cli.job_tables import interval
from service.cli.models import wait_for_training
from service.client import TERMINAL_STATES, Client, ClientError
from service.demo import jobs as today
from service.demo.live import Watch, predicted
from service.demo.server import Place, ServerError, log_tail, running_service, signals_handled, temporary_place
from service.demo.summary import measured, prediction_errors, replay, resumptions

if TYPE_CHECKING:
    from service.wire.jobs import JobDocument
    from service.wire.predictions import ModelDocument


EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a command that Ctrl-C has ended."""
JOBS_DEADLINE_S = 120.0
TRAINING_DEADLINE_S = 90.0
_PREDICTED_DEADLINE_S = 20.0
_PROMOTED_DEADLINE_S = 5.0
FIRST_WAVE_ITERATIONS = 20.0
"""Iterations of both jobs of the first wave before the second wave is submitted."""
_FIRST_WAVE_DEADLINE_S = 30.0


ROOM_BYTES_MIN = 1 << 20
"""With less room the database or the log of the service cannot grow, and that is why the demo failed."""


class NoRoom(Exception):
    """The disk is full; one line."""


class DemoFailed(Exception):
    """A check of the demo failed. The message is one line."""


def run_demo(*, keep: bool = False) -> int:
    """Run the demo and return its exit code: 0 if all its checks hold, 2 if its disk is full.

    Leaves no process behind, also at Ctrl-C, and no folder unless ``keep``.
    """
    started_s = time.monotonic()
    try:
        # SIGINT too: a shell starts background jobs with SIGINT ignored.
        with signals_handled(_interrupt), temporary_place(keep=keep) as place:
            if keep:
                typer.echo(f"The demo's data is in {place.folder}. To serve it:")
                typer.echo(f"  SOONER_DATA_DIR={place.data_dir} SOONER_CLUSTER={place.cluster_file} sooner serve")
            try:
                Demo(place, started_s).run()
            except (DemoFailed, ServerError, ClientError) as error:
                if shutil.disk_usage(place.folder).free < ROOM_BYTES_MIN:
                    raise NoRoom(f"the disk of {place.folder} is full") from error
                if isinstance(error, DemoFailed):
                    typer.echo(f"the end of the service's log:\n{log_tail(place)}", err=True)
                raise
    except NoRoom as error:
        typer.echo(f"error: {error}", err=True)
        return EXIT_USAGE
    except KeyboardInterrupt:
        typer.echo("interrupted; everything is cleaned up", err=True)
        return EXIT_INTERRUPTED
    except (DemoFailed, ServerError, ClientError) as error:
        typer.echo(f"error: the demo failed: {error}", err=True)
        return EXIT_FAILED
    end = "its folder is kept" if keep else "its folder is deleted"
    typer.echo(f"\nDone in {time.monotonic() - started_s:.0f} s; the service is stopped and {end}.")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Demo:
    """One run in its place. ``started_s`` is the monotonic time of second 0."""

    def __init__(self, place: Place, started_s: float) -> None:
        self.place = place
        self.started_s = started_s
        self.jobs_started_s = started_s

    def run(self) -> None:
        """Run all steps. Raises :class:`DemoFailed`."""
        self.say("Sooner's demo: real training programs on 2 servers x 4 pretended GPUs of this machine.")
        self.load_history()
        with running_service(self.place) as client:
            self.say("The service runs. First training, from the synthetic history:")
            first = self.train(client)
            jobs = self.run_jobs(client)
            self.say("\nRetraining on the history and the jobs that just ran:")
            second = self.train(client)
            self.say(_what_changed(first, second))
            self.compare_predictions(client, jobs)
            self.summarise(client, jobs)
            self.check(client, jobs)

    def say(self, text: str) -> None:
        """Print text immediately."""
        typer.echo(text)
        sys.stdout.flush()

    def load_history(self) -> None:
        """Load the synthetic history as `sooner history import` loads a file."""
        now_s = datetime.now(UTC).timestamp()
        loaded = add_history(
            today.synthetic_history(), self.place.database_url, today.HISTORY_SOURCE, start_s=None, now_s=now_s
        )
        self.say(f"{loaded.new} ended jobs of a SYNTHETIC history (seeded generator) are loaded.")

    # Training.

    def train(self, client: Client) -> ModelDocument:
        """Train now and wait for the outcome."""
        began_s = time.monotonic()
        ended = wait_for_training(client, client.models.train(), TRAINING_DEADLINE_S)
        if ended is None or ended["outcome"] not in ("promoted", "not_promoted"):
            raise DemoFailed(f"no model after {TRAINING_DEADLINE_S:g} s of training: {ended and ended['detail']}")
        model = client.models.list()[0]
        serves = "it serves" if model["state"] == "champion" else "past runs still serve: no model passed the gate"
        took_s = time.monotonic() - began_s
        self.say(f"  model {model['id']} from {model['rows']} jobs in {took_s:.0f} s: {model['kind']} ({serves})")
        return model

    def compare_predictions(self, client: Client, jobs: Sequence[JobDocument]) -> None:
        """Predictions after the retraining, of held jobs that never start: the first run of each kind once more."""
        bodies = today.bodies()
        again = [{**bodies[position], "hold": True} for position in today.FIRST_OF_EACH]
        held = client.jobs.submit_many({"jobs": again})
        asked = _predictions_of(client, [job["id"] for job in held])
        self.say("  the first run of each kind, submitted once more, would now be predicted:")
        for job, position in zip(asked, today.FIRST_OF_EACH, strict=True):
            ran = f"ran {jobs[position]['iterations_done'] or 0.0:g} iterations,"
            by = (job["prediction"]["model_version"] if job["prediction"] is not None else None) or "past runs"
            self.say(f"    {job['name']:<12} {ran:<19} now {predicted(job):>4} [{interval(job)}] by {by}")
        for job in held:
            client.jobs.cancel(job["id"])

    # Jobs.

    def run_jobs(self, client: Client) -> list[JobDocument]:
        """The burst: two long gangs that fill the cluster, then all other jobs at once."""
        bodies = today.bodies()
        split = len(today.FIRST_WAVE)
        self.say(
            f"\n{len(bodies)} real training jobs of four recurring families: {split} long gangs, then the rest at once."
        )
        self.jobs_started_s = time.monotonic()
        watch = Watch(client, self.jobs_started_s, self.say)
        client.jobs.submit_many({"jobs": bodies[:split]})
        watch.until(
            lambda now: all((job["iterations_done"] or 0.0) >= FIRST_WAVE_ITERATIONS for job in now),
            time.monotonic() + _FIRST_WAVE_DEADLINE_S,
        )
        client.jobs.submit_many({"jobs": bodies[split:]})
        deadline_s = time.monotonic() + JOBS_DEADLINE_S
        jobs = watch.until(lambda now: all(job["state"] in TERMINAL_STATES for job in now), deadline_s)
        if any(job["state"] not in TERMINAL_STATES for job in jobs):
            raise DemoFailed(f"the jobs have not ended after {JOBS_DEADLINE_S:g} s")
        return jobs

    # The end.

    def summarise(self, client: Client, jobs: Sequence[JobDocument]) -> None:
        """Completion times, predictions, preemptions."""
        ran = measured(self.place.database_url, [job["id"] for job in jobs])
        cluster = self.place.cluster_file
        fifo = replay(ran, cluster, "fifo")
        srsf = replay(ran, cluster, "srsf")
        mean_s = sum(job.jct_s for job in ran) / len(ran)
        self.say("\nSummary")
        self.say(f"  mean job completion time, these {len(ran)} jobs")
        self.say(f"    {'measured: A-SRPT, guided preemption':<52}{mean_s:7.1f} s")
        self.say(f"    {'simulated: first in, first out':<52}{fifo.mean_jct_s:7.1f} s")
        self.say(f"    {'simulated: shortest remaining service, sizes known':<52}{srsf.mean_jct_s:7.1f} s")
        self.say(f"    {'no schedule can be below':<52}{fifo.lower_bound_mean_jct_s:7.1f} s")
        self.say("    (the simulations do not include the start of processes)")
        self.say("  prediction error: the median job was off by; actual totals inside the 10-90% interval")
        for error in prediction_errors(client, jobs):
            self.say(f"    {error.name:<12} {error.factor:5.2f}x   {error.inside} of {error.jobs}")
        resumed = [each for job in jobs for each in resumptions(client.jobs.attempts(job["id"]))]
        lost = sum(each.lost_iterations for each in resumed)
        held_gpu_s = sum(job.held_gpu_s for job in ran)
        wasted_gpu_s = sum(job.wasted_gpu_s for job in ran)
        self.say(f"  preemptions: {sum(job['preemptions'] for job in jobs)}; iterations done twice: {lost:g}")
        self.say(
            f"  GPU-seconds held without progress that counts: {wasted_gpu_s:.1f} of {held_gpu_s:.1f} "
            f"({wasted_gpu_s / max(held_gpu_s, math.ulp(1.0)):.1%})"
        )

    def check(self, client: Client, jobs: Sequence[JobDocument]) -> None:
        """Check the results. Raises :class:`DemoFailed`."""
        failed = [job for job in jobs if job["state"] != "succeeded"]
        if failed:
            what = "; ".join(f"job {job['id']} {job['state']}: {job['reason_sentence']}" for job in failed)
            raise DemoFailed(f"{len(failed)} of {len(jobs)} jobs did not succeed: {what}")
        resumed = [each for job in jobs for each in resumptions(client.jobs.attempts(job["id"]))]
        if not any(each.resumed_at > 0 for each in resumed):
            raise DemoFailed("no job was preempted and resumed from its checkpoint")


def _predictions_of(client: Client, ids: Sequence[int]) -> list[JobDocument]:
    """The jobs, once all are predicted (or the deadline has passed)."""
    deadline_s = time.monotonic() + _PREDICTED_DEADLINE_S
    while True:
        jobs = [client.jobs.show(job_id) for job_id in ids]
        if all(job["prediction"] is not None for job in jobs) or time.monotonic() > deadline_s:
            return jobs
        time.sleep(0.1)


def _what_changed(first: ModelDocument, second: ModelDocument) -> str:
    """The measures of both models that the gate uses."""
    lines = [f"  {second['rows'] - first['rows']} more jobs to learn from"]
    for unit in sorted(second["metrics"]):
        now, before = _served_metrics(second, unit), _served_metrics(first, unit)
        if now is None or before is None:
            continue
        lines.append(
            f"  {unit}: off by at most 2x for {before['within_2x']:.0%} -> {now['within_2x']:.0%} of its test jobs, "
            f"pinball loss {before['pinball_log']:.3f} -> {now['pinball_log']:.3f}, "
            f"80% intervals hold {before['coverage_80']:.0%} -> {now['coverage_80']:.0%}"
        )
    return "\n".join(lines)


def _served_metrics(model: ModelDocument, unit: str) -> dict[str, float] | None:
    """The measures of a unit's aggregation, which is what jobs are served."""
    head = model["metrics"].get(unit)
    # The metrics also hold the replay that decided on the promotion; it has no models.
    if head is None or "models" not in head:
        return None
    found: dict[str, float] = head["models"][AGGREGATION]
    return found
