"""The index of waiting jobs."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from policies.model.ids import JobId
from policies.state.keys import GangClass, JobKey, Owner
from policies.state.sorted_list import SortedList


class WaitingIndex:
    """Waiting jobs in order, by gang class, the head (the best job) of each class, and the jobs of each owner. Every update is
    O(log n).
    """

    __slots__ = ("classes", "heads", "keys", "owned")

    def __init__(self) -> None:
        self.classes: dict[GangClass, SortedList[JobKey]] = {}
        """The keys of each class, ascending. A class without jobs has no entry."""
        self.heads: dict[GangClass, JobKey] = {}
        self.keys: dict[JobId, tuple[GangClass, JobKey, Owner]] = {}
        """Jobs of one class share its object, and those of one owner theirs: a queue of 100,000 has few of either."""
        self.owned: dict[Owner, tuple[Owner, set[JobId]]] = {}
        """Each owner, as the object that the owner's jobs share, and these jobs. One without jobs has no entry."""

    def __contains__(self, job: JobId) -> bool:
        return job in self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, gang: GangClass, key: JobKey, owner: Owner) -> bool:
        """Index a job that is not indexed; return whether it is the head of its class now."""
        owner, owned = self.owned.setdefault(owner, (owner, set()))
        owned.add(key.job)
        head = self.heads.get(gang)
        if head is not None:
            gang = self.keys[head.job][0]
        self.keys[key.job] = (gang, key, owner)
        entries = self.classes.get(gang)
        if entries is None:
            entries = self.classes[gang] = SortedList()
        entries.add(key)
        if head is None or key < head:
            self.heads[gang] = key
            return True
        return False

    def add_all(self, entries: Iterable[tuple[GangClass, JobKey, Owner]]) -> None:
        """Index many jobs that are not indexed. O(n log n)."""
        found: dict[GangClass, tuple[GangClass, list[JobKey]]] = {}
        for gang, key, owner in entries:
            owner, owned = self.owned.setdefault(owner, (owner, set()))
            owned.add(key.job)
            head = self.heads.get(gang)
            shared, keys = found.setdefault(gang, (gang if head is None else self.keys[head.job][0], []))
            keys.append(key)
            self.keys[key.job] = (shared, key, owner)
        for gang, keys in found.values():
            ordered = self.classes.setdefault(gang, SortedList())
            ordered.add_all(keys)
            self.heads[gang] = ordered[0]

    def remove(self, job: JobId) -> tuple[GangClass, JobKey, Owner] | None:
        """Remove a job and return its class, key and owner; None for an unknown job."""
        found = self.keys.pop(job, None)
        if found is None:
            return None
        gang, key, owner = found
        owned = self.owned[owner][1]
        owned.discard(job)
        if not owned:
            del self.owned[owner]
        entries = self.classes[gang]
        entries.remove(key)
        if not entries:
            del self.classes[gang], self.heads[gang]
        elif self.heads[gang] is key:
            self.heads[gang] = entries[0]
        return found

    def jobs_ahead(self, job: JobId) -> int:
        """Waiting jobs with a better key. O(gang classes x log n)."""
        key = self.keys[job][1]
        return sum(entries.before(key) for entries in self.classes.values())

    def following(self, past: JobKey | None, limit: int) -> list[JobKey]:
        """The first ``limit`` keys after ``past`` (None: from the first), in order. O((gang classes + limit) log n)."""
        return list(islice(self.after(past), limit))

    def after(self, past: JobKey | None) -> Iterator[JobKey]:
        """The keys after ``past`` (None: all), in order, one after the other."""
        classes = self.classes.values()
        return heapq.merge(*(iter(keys) if past is None else keys.after(past) for keys in classes))

    def check(self) -> None:
        """Raise AssertionError unless classes, heads, keys and owners agree. O(n)."""
        assert self.heads == {gang: entries[0] for gang, entries in self.classes.items()}
        indexed = {key.job: (gang, key) for gang, entries in self.classes.items() for key in entries}
        assert indexed == {job: (gang, key) for job, (gang, key, _) in self.keys.items()}
        assert sum(len(entries) for entries in self.classes.values()) == len(self.keys)
        owners = {job: owner for job, (_, _, owner) in self.keys.items()}
        assert {job: owner for owner, (_, jobs) in self.owned.items() for job in jobs} == owners
        assert all(jobs for _, jobs in self.owned.values())
        assert len({id(gang) for gang, _, _ in self.keys.values()}) == len(self.classes)
        assert len({id(owner) for owner in owners.values()}) == len(self.owned)
