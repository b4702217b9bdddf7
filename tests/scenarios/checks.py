"""What must hold of an engine's world after every pass, whatever happened before."""

from fractions import Fraction
from math import ceil

from policies.lifecycle import ATTEMPT_OPEN, HOLDS_GPUS, TERMINAL, JobState
from policies.model.ids import ServerIndex
from policies.placement.shapes import allowed
from service.engine.world import World


def assert_sane(world: World) -> None:
    """GPUs are held exactly in the four states, by one job each; nothing else is lost or invented."""
    free = [set(range(server.gpus)) for server in world.cluster.servers]
    held = set()
    stated = [(server.cpus, server.memory_gib) for server in world.cluster.servers]
    cpus, memory_mib = [0] * len(free), [0] * len(free)
    for job in world.jobs.values():
        waits = job.state is JobState.QUEUED
        # Most jobs wait, and this is asked of each after every pass: one look is enough then.
        if (
            waits
            and job.attempt is None
            and job.unmet_dependencies >= 0
            and job.iterations >= 0.0
            and job.service_s >= 0.0
        ):
            continue
        assert waits or job.state not in TERMINAL, f"job {job.id} ended and is still in the world"
        holds = not waits and job.state in HOLDS_GPUS
        assert (job.attempt is not None) == holds, f"job {job.id}: {job.state}, {job.attempt}"
        assert job.unmet_dependencies >= 0
        assert job.iterations >= 0.0
        assert job.service_s >= 0.0
        if job.attempt is not None:
            held.add(job.id)
            assert job.attempt.state in ATTEMPT_OPEN
            assert job.attempt.number == job.attempts
            assert job.attempt.placement.gpus == job.spec.gpus, f"job {job.id} is not a whole gang"
            assert allowed(world.cluster.gangs, job.attempt.placement), f"job {job.id} cannot be started so"
            for share, gpus in zip(job.attempt.placement.shares, job.attempt.gpu_ids, strict=True):
                assert len(gpus) == share.gpus
                assert free[share.server].issuperset(gpus), f"job {job.id} holds GPUs of another"
                free[share.server].difference_update(gpus)
                if job.spec.cpus or job.spec.memory_gib:
                    part = Fraction(share.gpus, job.spec.gpus)
                    cpus[share.server] += ceil((job.spec.cpus or 0) * part)
                    memory_mib[share.server] += ceil(ceil((job.spec.memory_gib or 0.0) * 1024) * part)
                gpu_gib = world.cluster.servers[share.server].gpu_memory_gib
                assert gpu_gib is None or gpu_gib >= (job.spec.gpu_memory_gib or 0.0), f"GPUs of job {job.id}"
        if job.reservation is not None:
            assert job.state is JobState.QUEUED
    assert set(world.holding()) == held
    for index, (most_cpus, most_gib) in enumerate(stated):
        assert most_cpus is None or cpus[index] <= most_cpus, f"server {index}: {cpus[index]} CPUs are held"
        assert most_gib is None or memory_mib[index] <= most_gib * 1024, f"server {index}: {memory_mib[index]} MiB held"
        if (spare := world.spare(ServerIndex(index))) is not None:
            assert spare.cpus == (None if most_cpus is None else most_cpus - cpus[index])
            assert spare.memory_mib == (None if most_gib is None else most_gib * 1024 - memory_mib[index])
    for index, gpus in enumerate(free):
        usable = world.servers[index].usable
        assert world.free_gpus(ServerIndex(index)) == (len(gpus) if usable else 0)
