"""Placement rule: a gang on a given number of servers, with as many GPUs on each."""

from collections.abc import Hashable, Iterator

from policies.model.cluster import Cluster
from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.placement.pool import FreePool


class EqualSharesRule:
    """Keeps a job to the number of servers that its ``servers`` names. It divides the job's GPUs."""

    name = "servers"

    def demand(self, spec: JobSpec) -> Hashable | None:
        """The job's ``servers``."""
        return spec.servers

    def required(self, spec: JobSpec) -> bool:
        """Always."""
        return True

    def allows(self, cluster: Cluster, spec: JobSpec, placement: Placement) -> bool:
        """Whether the placement has equal shares on so many servers."""
        shares = placement.shares
        return spec.servers is None or (len(shares) == spec.servers and len({share.gpus for share in shares}) == 1)

    def pools(self, pool: FreePool, cluster: Cluster, spec: JobSpec) -> Iterator[FreePool]:
        """For each GPU type, a pool in which the shares alone are free: best fit, in one rack where one has them."""
        if spec.servers is None:
            return
        for gpu_type in pool.gpu_types:
            shares = pool.fit([spec.gpus // spec.servers] * spec.servers, gpu_type)
            if shares is not None:
                free = [0] * len(pool)
                for server, gpus in shares:
                    free[server] = gpus
                yield FreePool(cluster, free)

    def describe(self, spec: JobSpec) -> str:
        """``in equal shares on 2 servers``."""
        return f"in equal shares on {spec.servers} server{'s' if spec.servers != 1 else ''}"
