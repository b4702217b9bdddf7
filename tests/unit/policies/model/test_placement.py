"""How far apart a placement's GPUs are, and what that costs."""

from policies.model.cluster import Cluster, Server
from policies.model.estimate import Slowdown
from policies.model.ids import ServerIndex
from policies.model.placement import ServerShare, Span, place, span_of

CLUSTER = Cluster("four", tuple(Server(f"s{index}", 8, rack=f"r{index // 2}") for index in range(4)))


def spread(*servers: int) -> Span:
    """The span of two GPUs on each of these servers."""
    return span_of(CLUSTER, place([ServerShare(ServerIndex(server), 2) for server in servers]))


def test_the_span_is_that_of_the_smallest_unit_with_all_gpus() -> None:
    assert [spread(3), spread(0, 1), spread(2, 3), spread(1, 2), spread(0, 1, 2, 3)] == [
        *(Span.SERVER, Span.RACK, Span.RACK, Span.CLUSTER, Span.CLUSTER),
    ]


def test_an_iteration_on_one_server_is_the_unit_of_a_slowdown() -> None:
    slowdown = Slowdown(rack=1.3, cluster=2.0)
    assert [slowdown.factor(span) for span in Span] == [1.0, 1.3, 2.0]
