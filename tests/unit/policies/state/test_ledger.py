"""The ledger of GPUs and the tentative changes of a decision against sums over plain dictionaries."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.model.ids import JobId, ServerIndex
from policies.model.placement import Placement, ServerShare, place
from policies.placement.pool import FreePool
from policies.state.last_scan import LastScan
from policies.state.ledger import GpuLedger
from service.engine.world import Costs, World

SERVERS, GPUS = 3, 4
SHARES = st.lists(st.integers(0, 3), min_size=SERVERS, max_size=SERVERS).filter(any)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["reserve", "release", "leave", "stay"]), st.integers(1, 5), SHARES), max_size=20
)
TENTATIVE = st.lists(st.tuples(st.sampled_from(["start", "reserve", "stop"]), st.integers(6, 9), SHARES), max_size=6)


def placement(shares: list[int]) -> Placement:
    return place([ServerShare(ServerIndex(server), gpus) for server, gpus in enumerate(shares)])


class Model:
    """The same entries, summed anew each time."""

    def __init__(self) -> None:
        self.reserved: dict[int, list[int]] = {}
        self.leaving: dict[int, list[int]] = {}
        self.taken = [0] * SERVERS

    def free(self, server: int, *, debts: bool = False) -> int:
        reserved = sum(shares[server] for shares in self.reserved.values())
        leaving = sum(shares[server] for shares in self.leaving.values())
        if debts:
            return GPUS - self.taken[server] + leaving - reserved
        return max(0, GPUS - max(0, reserved - leaving) - self.taken[server])


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, TENTATIVE)
def test_the_ledger_agrees_with_sums(
    operations: list[tuple[str, int, list[int]]], tentative: list[tuple[str, int, list[int]]]
) -> None:
    world = World(Cluster("c", tuple(Server(f"s{n}", GPUS) for n in range(SERVERS))), Costs())
    scan, model = LastScan(), Model()
    ledger = GpuLedger(FreePool(world.cluster, [GPUS] * SERVERS), scan)
    for operation, number, shares in operations:
        scan.valid = True
        before = [ledger.pool.free(ServerIndex(server)) for server in range(SERVERS)]
        if operation == "reserve":
            ledger.reserve(JobId(number), placement(shares), None)
            model.reserved[number] = shares
        elif operation == "release":
            ledger.release(JobId(number))
            model.reserved.pop(number, None)
        elif operation == "leave" and number not in model.leaving:
            ledger.leave(JobId(number), placement(shares), None)
            model.leaving[number] = shares
        else:
            ledger.stay(JobId(number))
            model.leaving.pop(number, None)
        ledger.sync(world)
        compare(ledger, model, world)
        after = [ledger.pool.free(ServerIndex(server)) for server in range(SERVERS)]
        assert before == after or not scan.valid, "free GPUs have changed, so the last scan does not hold"

    for operation, number, shares in tentative:
        if operation == "start" and all(model.free(server) >= gpus for server, gpus in enumerate(shares)):
            ledger.start_tentatively(world, placement(shares), None)
            model.taken = [taken + gpus for taken, gpus in zip(model.taken, shares, strict=True)]
        elif operation == "reserve" and number not in model.reserved:
            ledger.reserve_tentatively(world, JobId(number), placement(shares), None)
            model.reserved[number] = shares
        elif operation == "stop" and number not in model.leaving:
            ledger.leave_tentatively(world, JobId(number), placement(shares), None)
            model.leaving[number] = shares
        compare(ledger, model, world)

    ledger.undo_tentative()
    ledger.sync(world)
    model.taken = [0] * SERVERS
    for entries in (model.reserved, model.leaving):
        for number in range(6, 10):
            entries.pop(number, None)
    compare(ledger, model, world)


def compare(ledger: GpuLedger, model: Model, world: World) -> None:
    ledger.check(world)
    for server in range(SERVERS):
        assert ledger.pool.free(ServerIndex(server)) == model.free(server)
        assert ledger.balance(world, ServerIndex(server)) == model.free(server, debts=True)
    assert ledger.reservations == {number: placement(shares) for number, shares in model.reserved.items()}
    assert ledger.leaving == {number: placement(shares) for number, shares in model.leaving.items()}
