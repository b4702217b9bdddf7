"""Whether a job could ever run on a cluster, and which of its requirements prevents it."""

from collections.abc import Hashable
from dataclasses import replace

from policies.choose import fits_empty
from policies.model.cluster import Cluster, Gangs
from policies.model.graph import Stage, StageGraph
from policies.model.job import JobSpec
from policies.model.parallelism import ParallelismConfig
from policies.model.resources import demand_of
from policies.training.gpu_names import types_meant, with_types_of
from service.domain.counts import count_of

_ONE_STAGE = StageGraph((Stage("", 1.0, 1.0, 0),), ())


def of_one_stage(spec: JobSpec) -> JobSpec:
    """A job that fits where this one does. With equal tensor groups all replicas are alike, whatever their stages do.

    So jobs that differ in their models share a result, and placing a deep pipeline, which takes tens of milliseconds, is not
    needed for it.
    """
    config = spec.parallelism
    if config is None or len(set(config.tensor)) > 1:
        return spec
    one = ParallelismConfig(
        (sum(config.replicas),), config.tensor[:1], tensor_across_servers=config.tensor_across_servers
    )
    return replace(spec, stage_graph=_ONE_STAGE, parallelism=one)


class Fit:
    """Whether jobs could ever run on this cluster. Jobs are often alike, so results are cached."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Hashable, bool] = {}

    def refusal(self, spec: JobSpec) -> tuple[str, str] | None:
        """Why the job can never run, and the key of the body that prevents it; None if it can."""
        types = self._cluster.gpus_by_type
        unknown = next((name for name in spec.gpu_types if not types_meant(name, self._cluster)), None)
        if unknown is not None:
            named = "gpu_types" if spec.gpu_type_fallbacks else "gpu_type"
            return f"no server has GPUs of type {unknown!r}; there are {', '.join(sorted(types))}", named
        asked, spec = spec.gpu_types, of_one_stage(with_types_of(spec, self._cluster))
        most = max((types[name] for name in spec.gpu_types or types), default=0)
        key = "gpus" if spec.parallelism is None else "parallelism" if spec.plan is None else "plan"
        if spec.gpus > most:
            kind = f" of type {asked[0]}" if len(asked) == 1 else " of one type"
            return f"needs {count_of(spec.gpus, 'GPU')}; the cluster has {most}{kind}", key
        shape = (
            spec.gpus,
            spec.gpu_types,
            spec.topology,
            spec.servers,
            spec.stage_graph,
            spec.parallelism,
            demand_of(spec),
        )
        if shape not in self._known:
            self._known[shape] = fits_empty(self._cluster, spec)
        if self._known[shape]:
            return None
        if (needs := self._refused_needs(spec)) is not None:
            return needs
        if spec.topology is not None and fits_empty(self._cluster, replace(spec, topology=None)):
            return f"no {spec.topology.level} can hold the job even when empty", "topology"
        if spec.servers is not None and fits_empty(self._cluster, replace(spec, servers=None)):
            many = f"in equal shares on {spec.servers} servers, even empty ones"
            return f"cannot be placed {many if spec.servers > 1 else 'on one server, even an empty one'}", "servers"
        gangs = self._cluster.gangs
        if gangs is not Gangs.ANY and fits_empty(replace(self._cluster, gangs=Gangs.ANY), spec):
            return f"no set of servers can hold the job even when empty: on this cluster it needs {gangs.demand}", key
        return "no set of servers can hold the job even when empty: a tensor group stays on one server", key

    def _refused_needs(self, spec: JobSpec) -> tuple[str, str] | None:
        """Which of the job's needs beside GPUs is too large, if without it the job could run."""
        servers = [each for each in self._cluster.servers if not spec.gpu_types or each.gpu_type in spec.gpu_types]
        if spec.gpu_memory_gib is not None and fits_empty(self._cluster, replace(spec, gpu_memory_gib=None)):
            most = max((each.gpu_memory_gib for each in servers if each.gpu_memory_gib is not None), default=0.0)
            return (
                f"needs {count_of(spec.gpus, 'GPU')} of at least {spec.gpu_memory_gib:g} GiB; "
                f"the largest that the servers state have {most:g} GiB"
            ), "gpu_memory_gib"
        without = (
            ("cpus", "CPUs", replace(spec, cpus=None)),
            ("memory_gib", "GiB of memory", replace(spec, memory_gib=None)),
        )
        for key, unit, rest in without:
            needed = getattr(spec, key)
            if needed is not None and fits_empty(self._cluster, rest):
                stated = [getattr(each, key) for each in servers if getattr(each, key) is not None]
                return (
                    f"needs {needed:g} {unit} beside {count_of(spec.gpus, 'GPU')}; no set of servers has so much beside them: "
                    f"one has at most {max(stated):g}, all together {sum(stated):g}"
                ), key
        return None
