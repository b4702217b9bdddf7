"""The free GPUs of a cluster, indexed so that a gang finds its servers without a scan.

Servers with equal GPU type and equal free count share a level, in all and rack by rack. A level is a set of servers as the
bits of one integer, and another integer says which levels hold anything: taking the first server of a level, or finding the
least sufficient level, takes a few machine operations even for thousands of servers. The pool holds no jobs:
its owner sets the free GPUs of each server, and the CPUs and memory left of those that state any.

:meth:`FreePool.usable_by` gives the pool as jobs see it that need CPUs or memory too.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from policies.model.cluster import Cluster
from policies.model.ids import ServerIndex
from policies.model.resources import Amounts, Demand, amounts_of
from policies.model.view import ClusterView
from policies.placement.contention import SharedLinks

VIEWS_MAX = 64
"""Demands for which a pool keeps a view."""

Grant = tuple[ServerIndex, int]
"""GPUs granted on one server."""


def _lowest(servers: int) -> ServerIndex:
    """The smallest index in a set that is not empty."""
    return ServerIndex((servers & -servers).bit_length() - 1)


def _ascending(servers: int) -> Iterator[ServerIndex]:
    """The indices in a set."""
    while servers:
        low = servers & -servers
        yield ServerIndex(low.bit_length() - 1)
        servers ^= low


def servers_needed(counts: Sequence[int], gpus: int, quantum: int) -> int:
    """The fewest servers that grant ``gpus`` in multiples of ``quantum``, or 0 if all together do not. O(levels).

    ``counts[f]`` servers have f GPUs free.
    """
    servers = 0
    for level in range(len(counts) - 1, 0, -1):
        here = counts[level]
        usable = level - level % quantum
        if not usable:
            break
        if here * usable >= gpus:
            return servers - (-gpus // usable)
        servers += here
        gpus -= here * usable
    return 0


class _Buckets:
    """Servers by free GPUs: ``levels[f]`` holds those with exactly f > 0 free, as a set of bits."""

    __slots__ = ("levels", "mask", "total")

    def __init__(self) -> None:
        self.levels: list[int] = [0]
        self.mask = 0
        self.total = 0

    def fill(self, by_level: dict[int, list[int]]) -> None:
        """Replace all contents at once. O(servers)."""
        self.levels = [_bits(by_level.get(level, ())) for level in range(max(by_level, default=0) + 1)]
        self.mask = sum(1 << level for level in by_level)
        self.total = sum(level * len(servers) for level, servers in by_level.items())

    def move(self, server: int, before: int, after: int) -> None:
        """The server had ``before`` GPUs free and has ``after`` now (0: it is on no level)."""
        levels, bit = self.levels, 1 << server
        if before:
            left = levels[before] = levels[before] ^ bit
            if not left:
                self.mask ^= 1 << before
        if after:
            while len(levels) <= after:
                levels.append(0)
            levels[after] |= bit
            self.mask |= 1 << after
        self.total += after - before

    def smallest(self, gpus: int) -> int:
        """The smallest free count >= ``gpus`` that a server has, or 0. O(1)."""
        above = self.mask >> gpus
        return gpus + (above & -above).bit_length() - 1 if above else 0

    def servers_with(self, gpus: int) -> int:
        """How many servers have at least ``gpus`` free. O(levels)."""
        return sum(self.levels[level].bit_count() for level in range(gpus, self.mask.bit_length()))

    def descending(self) -> Iterator[int]:
        """The free counts that occur, largest first."""
        mask = self.mask
        while mask:
            level = mask.bit_length() - 1
            yield level
            mask ^= 1 << level

    def without(self, servers: int) -> "_Buckets":
        """The same without a set of servers. O(levels)."""
        left = _Buckets()
        left.levels = [level & ~servers for level in self.levels]
        for free, level in enumerate(left.levels):
            if level:
                left.mask |= 1 << free
                left.total += free * level.bit_count()
        return left

    def counts(self) -> list[int]:
        """How many servers are on each level; none on level 0."""
        return [servers.bit_count() for servers in self.levels[: self.mask.bit_length() or 1]]

    def servers_needed(self, gpus: int, quantum: int) -> int:
        """See :func:`servers_needed`."""
        return servers_needed(self.counts(), gpus, quantum)

    def greedy(self, gpus: int, quantum: int) -> list[Grant]:
        """Fullest servers first, the last one best fit to the remainder. Enough must be free."""
        grants: list[Grant] = []
        left = _RemainingBuckets(self)
        for level in self.descending():
            usable = level - level % quantum
            while left.servers[level]:
                if usable >= gpus:
                    last = left.best_fit(gpus)
                    assert last is not None
                    return [*grants, (last, gpus)]
                grants.append((left.take(level), usable))
                gpus -= usable
        raise AssertionError("fewer GPUs than servers_needed counted")


class _RemainingBuckets:
    """Buckets from which servers are taken one by one, without changing them."""

    __slots__ = ("mask", "servers")

    def __init__(self, buckets: _Buckets) -> None:
        self.servers = list(buckets.levels)
        self.mask = buckets.mask

    def take(self, level: int) -> ServerIndex:
        """The first server of a level that has any."""
        servers = self.servers[level]
        left = self.servers[level] = servers & (servers - 1)
        if not left:
            self.mask ^= 1 << level
        return _lowest(servers)

    def best_fit(self, gpus: int) -> ServerIndex | None:
        """Take the first server with the smallest sufficient count; None if none has enough."""
        above = self.mask >> gpus
        return self.take(gpus + (above & -above).bit_length() - 1) if above else None


class _TypePool:
    """All servers of one GPU type: ``all``, and the same by rack; a single rack is ``all`` itself."""

    __slots__ = ("all", "racks")

    def __init__(self) -> None:
        self.all = _Buckets()
        self.racks: dict[str, _Buckets] = {}

    def fill(self, by_rack: dict[str, dict[int, list[int]]]) -> None:
        """Build all buckets at once, in O(servers)."""
        together: dict[int, list[int]] = {}
        for rack, levels in by_rack.items():
            self.racks[rack] = self.all if len(by_rack) == 1 else _Buckets()
            self.racks[rack].fill(levels)
            for level, servers in levels.items():
                together.setdefault(level, []).extend(servers)
        self.all.fill(together)

    def without(self, servers: int) -> "_TypePool":
        """The same without a set of servers. O(racks x levels)."""
        left = _TypePool()
        left.all = self.all.without(servers)
        for name, rack in self.racks.items():
            left.racks[name] = left.all if rack is self.all else rack.without(servers)
        return left

    def add_rack(self, rack: str) -> None:
        """Add a rack without servers."""
        if not self.racks:
            self.racks[rack] = self.all
        elif rack not in self.racks:
            for name, buckets in self.racks.items():
                self.racks[name] = copy.deepcopy(buckets) if buckets is self.all else buckets
            self.racks[rack] = _Buckets()

    def move(self, rack: str, server: int, before: int, after: int) -> None:
        """One server's free count changed."""
        self.all.move(server, before, after)
        if (buckets := self.racks[rack]) is not self.all:
            buckets.move(server, before, after)

    def fewest(self, gpus: int, quantum: int) -> list[Grant] | None:
        """Fewest servers, then fewest racks; see :meth:`FreePool.fewest_servers`."""
        servers = self.all.servers_needed(gpus, quantum)
        if not servers:
            return None
        if len(self.racks) == 1:
            return self.all.greedy(gpus, quantum)
        enough = sorted((rack.total, name) for name, rack in self.racks.items() if rack.total >= gpus)
        for _, name in enough:
            if self.racks[name].servers_needed(gpus, quantum) == servers:
                return self.racks[name].greedy(gpus, quantum)
        return self._over_racks(gpus, servers, quantum)

    def _over_racks(self, gpus: int, servers: int, quantum: int) -> list[Grant]:
        """No rack holds the gang on so few servers: fullest levels first and, where a level offers a choice, the racks
        already used, then those with most servers of the level. Least racks exactly would be a set cover problem."""
        grants: list[Grant] = []
        used: dict[str, None] = {}
        for level in self.all.descending():
            usable = level - level % quantum
            wanted = min(servers - 1 - len(grants), self.all.levels[level].bit_count())
            if not wanted:
                break
            offers = {name: b.levels[level] for name, b in self.racks.items() if b.mask >> level & 1}
            for name in sorted(offers, key=lambda name: (name not in used, -offers[name].bit_count(), name)):
                picked = list(islice(_ascending(offers[name]), wanted))
                grants += [(server, usable) for server in picked]
                used[name] = None
                gpus -= usable * len(picked)
                wanted -= len(picked)
                if not wanted:
                    break
        taken = _bits(server for server, _ in grants)
        near = (self._first_fit_level(self.racks[name], gpus, taken) for name in used)
        best = min((found for found in near if found), default=None)
        best = best or self._first_fit_level(self.all, gpus, taken)
        if best is None:
            raise AssertionError("fewer GPUs than servers_needed counted")
        return [*grants, (best[1], gpus)]

    def in_one_rack(self, gpus: int) -> list[Grant] | None:
        """The rack that holds the gang on the fewest servers, of several the one with least free."""
        offers = [
            (rack.servers_needed(gpus, 1), rack.total, name) for name, rack in self.racks.items() if rack.total >= gpus
        ]
        return self.racks[min(offers)[2]].greedy(gpus, 1) if offers else None

    @staticmethod
    def _first_fit_level(buckets: _Buckets, gpus: int, taken: int) -> tuple[int, ServerIndex] | None:
        """(free count, server) of the best fit outside ``taken``."""
        level = buckets.smallest(gpus)
        while level:
            if servers := buckets.levels[level] & ~taken:
                return level, _lowest(servers)
            level = buckets.smallest(level + 1)
        return None


class FreePool:
    """Free GPUs per server; mutable. Each operation is O(1) set operations per share.

    ``total`` is the number of free GPUs, ``servers_with_free`` the number of servers that have any. A server that takes no
    work (down, drained) simply has none free. A gang never mixes GPU types.
    """

    __slots__ = (
        "_capacity",
        "_changed",
        "_cluster",
        "_free",
        "_place",
        "_spare",
        "_types",
        "_views",
        "found",
        "servers_with_free",
        "shared_links",
        "total",
    )  # fmt: skip

    def __init__(
        self, cluster: Cluster, free: Sequence[int], spare: Mapping[ServerIndex, Amounts] | None = None
    ) -> None:
        """``free[i]`` GPUs are free on server i. ValueError if a count is negative or above the server's GPUs.

        ``spare``: CPUs and memory left of the servers that state any; None: all that they have.
        """
        if len(free) > len(cluster.servers):
            raise ValueError(f"{len(free)} free counts for {len(cluster.servers)} servers")
        self._capacity = [server.gpus for server in cluster.servers[: len(free)]]
        self._free = list(free)
        self._types: dict[str, _TypePool] = {}
        self._place: list[tuple[_TypePool, str]] = []
        contents: dict[str, dict[str, dict[int, list[int]]]] = {}
        for index, (server, count) in enumerate(zip(cluster.servers, free, strict=False)):
            self._check(index, count)
            self._place.append((self._types.setdefault(server.gpu_type, _TypePool()), server.rack))
            levels = contents.setdefault(server.gpu_type, {}).setdefault(server.rack, {})
            if count:
                levels.setdefault(count, []).append(index)
        for gpu_type, by_rack in contents.items():
            self._types[gpu_type].fill(by_rack)
        self._cluster = cluster
        self._spare = dict(_stated(cluster, len(free)) if spare is None else spare)
        self._views: dict[Demand, _DemandView] = {}
        self._changed: list[ServerIndex] = []
        self.found: dict[object, Any] = {}  # memo of ``policies.choose``, cleared by every change
        self.shared_links: SharedLinks | None = None
        """Who shares which link, for a search that foresees contention; None: it does not."""
        self.total = sum(free)
        self.servers_with_free = sum(1 for count in free if count)

    def __len__(self) -> int:
        """The number of servers in the pool."""
        return len(self._free)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types of the servers, in the order in which they first occur."""
        return tuple(self._types)

    def free(self, server: ServerIndex) -> int:
        """Free GPUs of the server."""
        return self._free[server]

    def free_of_type(self, gpu_type: str | None) -> int:
        """Free GPUs of one type; None: the largest total over single types, since a gang never mixes them."""
        if gpu_type is None:
            return self.total if len(self._types) == 1 else max((p.all.total for p in self._types.values()), default=0)
        pool = self._types.get(gpu_type)
        return 0 if pool is None else pool.all.total

    def servers_with(self, gpus: int, gpu_type: str) -> int:
        """How many servers of the type have at least so many GPUs free. O(levels)."""
        pool = self._types.get(gpu_type)
        return 0 if pool is None else pool.all.servers_with(gpus)

    def set_free(self, server: ServerIndex, gpus: int, cluster: Cluster | None = None) -> None:
        """The server has ``gpus`` free from now on. The next unknown index appends a server: ``cluster`` describes it.

        ValueError, and no change, for a count that is negative or above the server's GPUs.
        """
        if server == len(self._free):
            self._append(cluster)
        before = self._free[server]
        if gpus == before:
            return
        self._check(server, gpus)
        pool, rack = self._place[server]
        pool.move(rack, server, before, gpus)
        self._free[server] = gpus
        if self._views:
            self._note_change(server)
        if self.found:
            self.found = {}
        self.total += gpus - before
        if not before:
            self.servers_with_free += 1
        elif not gpus:
            self.servers_with_free -= 1

    def states(self, server: ServerIndex) -> bool:
        """Whether the server states its CPUs or memory."""
        return server in self._spare

    def spare(self, server: ServerIndex) -> Amounts | None:
        """CPUs and memory left of the server; None where it states neither."""
        return self._spare.get(server)

    def set_spare(self, server: ServerIndex, amounts: Amounts) -> None:
        """The server, which states its CPUs or memory, has these left from now on. They may be below 0."""
        if self._spare[server] != amounts:
            self._spare[server] = amounts
            if self._views:
                self._note_change(server)

    def usable_by(self, demand: Demand | None) -> "FreePool":
        """The pool in which the GPUs of each server are free that a job with this demand could use; this one for None.

        Only to be read, and only until this pool changes. O(changes since it was last asked for); O(servers) at first.
        """
        if demand is None:
            return self
        view = self._views.pop(demand, None)
        if view is None:
            if len(self._views) == VIEWS_MAX:
                del self._views[next(iter(self._views))]
            servers = range(len(self._free))
            usable = [self._usable(ServerIndex(server), demand) for server in servers]
            view = _DemandView(FreePool(self._cluster, usable, {}))
        else:
            for server in self._changed[view.followed :]:
                view.pool.set_free(server, self._usable(server, demand), self._cluster)
        view.followed = len(self._changed)
        view.pool.shared_links = self.shared_links
        self._views[demand] = view
        return view.pool

    def _note_change(self, server: ServerIndex) -> None:
        self._changed.append(server)
        if len(self._changed) > 4 * len(self._free):
            # Cheaper to build anew than to follow.
            self._views, self._changed = {}, []

    def _usable(self, server: ServerIndex, demand: Demand) -> int:
        free = self._free[server]
        if not free or not demand.admits(self._cluster.servers[server]):
            return 0
        spare = self._spare.get(server)
        within = None if spare is None else demand.gpus_within(spare)
        return free if within is None else min(free, within)

    @property
    def traffic_version(self) -> int:
        """Another number whenever traffic has changed that a search counts; 0 where it counts none."""
        return 0 if self.shared_links is None else self.shared_links.crowds.version

    def without(self, servers: int) -> "FreePool":
        """A pool in which nothing is free on a set of servers, the bits of one integer: to search, not to change."""
        left = copy.copy(self)
        left._types = {name: pool.without(servers) for name, pool in self._types.items()}
        left.found, left._views, left._changed = {}, {}, []
        left.total = sum(pool.all.total for pool in left._types.values())
        left.servers_with_free = sum(pool.all.servers_with(1) for pool in left._types.values())
        return left

    def best_fit(self, gpus: int, gpu_type: str | None) -> ServerIndex | None:
        """The server with the smallest sufficient free count, ties by index; None if no single server has enough."""
        best: tuple[int, ServerIndex] | None = None
        for pool in self._of(gpu_type):
            level = pool.all.smallest(gpus)
            if level:
                found = (level, _lowest(pool.all.levels[level]))
                best = found if best is None or found < best else best
        return None if best is None else best[1]

    def fewest_servers(self, gpus: int, gpu_type: str | None, quantum: int = 1) -> list[Grant] | None:
        """Fullest servers first, as few of them as possible, then in as few racks; the last is best fit to the remainder.

        Every grant is a multiple of ``quantum`` (a tensor degree) if ``gpus`` is. None if not enough is free. Fewest racks
        is exact where one rack suffices and greedy beyond. O(levels + racks + servers granted).
        """
        best: list[Grant] | None = None
        for pool in self._of(gpu_type):
            found = pool.fewest(gpus, quantum)
            if found is not None and (best is None or len(found) < len(best)):
                best = found
        return best

    def in_one_rack(self, gpus: int, gpu_type: str | None) -> list[Grant] | None:
        """As few servers of one rack as possible; None if no rack has enough free. O(racks x levels + servers granted)."""
        found = [grants for pool in self._of(gpu_type) if (grants := pool.in_one_rack(gpus)) is not None]
        return min(found, key=len, default=None)

    def fit(self, sizes: Sequence[int], gpu_type: str) -> list[Grant] | None:
        """A server of its own for each size, each best fit; in one rack if one has them, the rack with least free first.

        Grants come in the order of ``sizes``. None if the servers do not suffice.
        """
        pool = self._types.get(gpu_type)
        if pool is None or pool.all.total < sum(sizes):
            return None
        needed, least = sum(sizes), min(sizes)
        racks = sorted(
            (rack.total, name)
            for name, rack in pool.racks.items()
            if rack.total >= needed and rack.servers_with(least) >= len(sizes)
        )
        for buckets in (*(pool.racks[name] for _, name in racks), pool.all):
            servers = _distinct(buckets, sizes)
            if servers is not None:
                return list(zip(servers, sizes, strict=True))
        return None

    def fullest(self, gpu_type: str) -> Iterator[Grant]:
        """Servers of the type with all that they have free, fullest first, ties by index."""
        if gpu_type in self._types:
            buckets = self._types[gpu_type].all
            for level in buckets.descending():
                for server in _ascending(buckets.levels[level]):
                    yield server, level

    def counts(self, gpu_type: str) -> list[int] | None:
        """How many servers of the type have 0 (not counted), 1, 2, ... GPUs free; None for several racks. O(levels)."""
        pool = self._types.get(gpu_type)
        return None if pool is None or len(pool.racks) > 1 else pool.all.counts()

    def seat_of(self, gpu_type: str, server: ServerIndex) -> tuple[int, int]:
        """(free GPUs of the server, how many servers of the type before it have as many)."""
        free = self._free[server]
        return free, (self._types[gpu_type].all.levels[free] & ((1 << server) - 1)).bit_count()

    def at_seat(self, gpu_type: str, free: int, nth: int) -> ServerIndex:
        """The server of which :meth:`seat_of` gives this. O(``nth``)."""
        servers = self._types[gpu_type].all.levels[free]
        for _ in range(nth):
            servers &= servers - 1
        return _lowest(servers)

    def _of(self, gpu_type: str | None) -> Iterable[_TypePool]:
        if gpu_type is None:
            return self._types.values()
        pool = self._types.get(gpu_type)
        return () if pool is None else (pool,)

    def _check(self, server: int, free: int) -> None:
        if not 0 <= free <= self._capacity[server]:
            raise ValueError(f"server {server} has {self._capacity[server]} GPUs; {free} cannot be free")

    def _append(self, cluster: Cluster | None) -> None:
        if cluster is None or len(cluster.servers) <= len(self._free):
            raise ValueError(f"server {len(self._free)} is new: give the cluster that describes it")
        server = cluster.servers[len(self._free)]
        self._cluster = cluster
        if (amounts := amounts_of(server)) is not None:
            self._spare[ServerIndex(len(self._free))] = amounts
        self._views, self._changed = {}, []
        pool = self._types.setdefault(server.gpu_type, _TypePool())
        pool.add_rack(server.rack)
        self._place.append((pool, server.rack))
        self._capacity.append(server.gpus)
        self._free.append(0)


def empty(cluster: Cluster) -> FreePool:
    """All that the servers have. O(servers)."""
    return FreePool(cluster, [server.gpus for server in cluster.servers])


def free_now(view: ClusterView) -> FreePool:
    """What no job holds. O(servers)."""
    servers = [ServerIndex(server) for server in range(len(view.cluster.servers))]
    spare = {server: amounts for server in servers if (amounts := view.spare(server)) is not None}
    return FreePool(view.cluster, [view.free_gpus(server) for server in servers], spare)


class _DemandView:
    """A pool as a demand sees it, which has followed so many changes."""

    __slots__ = ("followed", "pool")

    def __init__(self, pool: FreePool) -> None:
        self.pool = pool
        self.followed = 0


def _stated(cluster: Cluster, servers: int) -> Iterator[tuple[ServerIndex, Amounts]]:
    for index in cluster.stating:
        if index < servers and (amounts := amounts_of(cluster.servers[index])) is not None:
            yield ServerIndex(index), amounts


def _distinct(buckets: _Buckets, sizes: Sequence[int]) -> list[ServerIndex] | None:
    """Distinct servers for the sizes, each best fit, which finds them whenever they exist; None otherwise."""
    left = _RemainingBuckets(buckets)
    servers: list[ServerIndex] = []
    for size in sizes:
        server = left.best_fit(size)
        if server is None:
            return None
        servers.append(server)
    return servers


def _bits(servers: Iterable[int]) -> int:
    """A set of servers. O(n), which a sum of powers of two is not."""
    flags = bytearray()
    for server in servers:
        if server >> 3 >= len(flags):
            flags.extend(bytes((server >> 3) + 1 - len(flags)))
        flags[server >> 3] |= 1 << (server & 7)
    return int.from_bytes(flags, "little")
