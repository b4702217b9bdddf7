"""What preemption is worth as restarts get dearer: mean completion times of one workload under three settings."""

from policies.model.cluster import Cluster, Server
from policies.registry import make_policy
from service.reports.plots import Series, line_chart
from service.reports.svg import Axis, standalone
from service.sim.experiment import SimulationOptions, run
from service.sim.workloads.generate import generate

_RESTARTS_S = (0.0, 600.0, 1800.0, 3600.0, 5400.0, 7200.0)
_CLUSTER = Cluster("four servers", tuple(Server(f"s{number}", 8) for number in range(4)))


def picture() -> str:
    """Mean job completion time over the cost of a restart."""
    workload = generate(7, 250, gpus=_CLUSTER.gpus, load=0.9, communication=False, steady=True)

    def mean_jct_s(preemption: str, restart_s: float) -> float:
        options = SimulationOptions(restart_s=restart_s)
        return run(
            workload, _CLUSTER, make_policy("asrpt", {"preemption": preemption}), "oracle", options
        ).result.mean_jct_s

    def curve(preemption: str, style: int) -> Series:
        means = [mean_jct_s(preemption, restart_s) for restart_s in _RESTARTS_S]
        return Series(f"preemption={preemption}", _RESTARTS_S, means, style, markers=True)

    # Nothing restarts without preemption, so one run is the whole line.
    never = mean_jct_s("never", 0.0)
    series = [
        curve("always", 1),
        curve("guided", 0),
        Series("preemption=never", _RESTARTS_S, [never] * len(_RESTARTS_S), 2),
    ]
    title = "Mean job completion time over the cost of a restart"
    x, y = Axis("a restart costs", "seconds", least=0.0), Axis("mean completion time", "seconds", least=0.0)
    return standalone(line_chart(title, x, y, series))
