"""Labels of ended jobs, from which predictors learn."""

from policies.model.estimate import EndedJob
from service.engine.cycle import Reached
from service.engine.ports import JobWrite
from service.engine.world import World


def label_of(write: JobWrite, world: World, reached: Reached | None = None) -> EndedJob:
    """The label of a job that ended in this cycle. ``write`` is the cycle's write of the job.

    ``reached``: what it had done when its program failed or was stopped. A job that will not resume has needed the work after its
    last checkpoint, too: without it, programs that fail would look shorter than they are, and those without checkpoints would
    teach nothing.
    """
    job = write.job
    placement = write.attempts[-1].placement if write.attempts else None
    service_s, iterations = reached or Reached(job.service_s, job.iterations if job.reports_iterations else None)
    return EndedJob(
        job=job.id,
        spec=job.spec,
        submitted_at_s=job.submitted_at_s,
        ended_at_s=world.now_s,
        iterations=iterations,
        service_s=service_s,
        final_state=str(job.state),
        seconds_per_iteration=job.measured_s_per_iteration,
        gpu_type=world.cluster.servers[placement.servers[0]].gpu_type if placement is not None else None,
        servers_spanned=len(placement.shares) if placement is not None else None,
        reported_iterations=job.reported_iterations,
        seconds_by_span=job.seconds_by_span,
        loss_curve=job.loss_curve,
    )
