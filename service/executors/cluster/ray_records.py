"""What Sooner keeps in Ray: records (JSON) in the key-value store of the head, namespace :data:`NAMESPACE`.

Below the id of the cluster:

- ``live/<attempt>/job``: servers, GPUs, program and the launch's word, written first; ``plan/<attempt>``: the program's input.
- ``live/<attempt>/created``: the placement group and the actors exist.
- ``live/<attempt>/run/<k>`` and ``exit/<k>``: by the actor of server k, before it starts the program and after it has ended.
- ``live/<attempt>/lost``: why servers have failed, by their number; written before the stop that follows from it.
- ``live/<attempt>/stop``: the submission is to end.
- ``end/<attempt>``: how it ended, kept for :data:`REMEMBER_S`. The records below ``live`` and ``plan`` are deleted then.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from service.executors.cluster.ray_actor import NAMESPACE

REMEMBER_S = 300.0
_CALL_S = 5.0
"""Time limit of one call to the head."""
_SPACE = NAMESPACE.encode()

Record = dict[str, Any]


@dataclass(slots=True)
class Submission:
    """The records of one submission that has not ended; ``runs`` and ``exits`` by the number of the server."""

    attempt: str
    job: Record
    created: bool = False
    stop: Record | None = None
    lost: dict[int, str] = field(default_factory=dict)
    runs: dict[int, Record] = field(default_factory=dict)
    exits: dict[int, Record] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers in the order of the node ranks."""
        return tuple(self.job["servers"])

    @property
    def gpu_ids(self) -> dict[str, tuple[int, ...]]:
        """The GPUs that Ray gave to it, by the name of the server."""
        return {self.servers[index]: tuple(run["gpus"]) for index, run in sorted(self.runs.items())}


class RayRecords:
    """Reads and writes the records of one cluster id. ``store``: Ray's client of the head, as far as its key-value store."""

    def __init__(self, store: Any, cluster: str) -> None:
        self._store = store
        self._prefix = f"{cluster}/"

    def begin(self, attempt: str, job: Record, plan: bytes) -> None:
        """Record a submission. The job of an earlier submission of the attempt stays."""
        self._put(f"plan/{attempt}", plan)
        self._put(f"live/{attempt}/job", _packed(job), overwrite=False)

    def note(self, attempt: str, name: str, record: Record) -> None:
        """Write one record of a live submission."""
        self._put(f"live/{attempt}/{name}", _packed(record))

    def is_live(self, attempt: str) -> bool:
        """Whether the submission is known and has not ended."""
        return self._is_there(f"live/{attempt}/job")

    def has_ended(self, attempt: str) -> bool:
        """Whether the end of the submission is recorded."""
        return self._is_there(f"end/{attempt}")

    def end(self, attempt: str, end: Record) -> None:
        """Record the end, if none is recorded, and delete the other records."""
        self._put(f"end/{attempt}", _packed(end), overwrite=False)
        self.forget_live(attempt)

    def forget_live(self, attempt: str) -> None:
        """Delete what is kept of a submission until it ends."""
        self._delete(f"plan/{attempt}")
        self._delete(f"live/{attempt}/", by_prefix=True)

    def forget_end(self, attempt: str) -> None:
        """Delete the record of an end."""
        self._delete(f"end/{attempt}")

    def live(self) -> tuple[list[Submission], list[str]]:
        """All submissions that have not ended, and the attempts of which records are left that should not be."""
        ends = self.ends()
        parts: dict[str, dict[str, Record]] = {}
        for key, record in self._read("live/").items():
            attempt, _, name = key.partition("/")
            parts.setdefault(attempt, {})[name] = record
        found, remains = [], []
        for attempt, named in parts.items():
            if "job" not in named or attempt in ends:
                remains.append(attempt)
                continue
            submission = Submission(attempt, named["job"], "created" in named, named.get("stop"))
            for name, record in named.items():
                kind, _, number = name.partition("/")
                if kind == "lost":
                    submission.lost = {int(index): why for index, why in record.items()}
                elif kind == "run":
                    submission.runs[int(number)] = record
                elif kind == "exit":
                    submission.exits[int(number)] = record
            found.append(submission)
        return found, remains

    def ends(self) -> dict[str, Record]:
        """The recorded ends, by attempt."""
        return self._read("end/")

    def _is_there(self, name: str) -> bool:
        return self._store.internal_kv_get(self._key(name), _SPACE, timeout=_CALL_S) is not None

    def _read(self, prefix: str) -> dict[str, Record]:
        keys = self._store.internal_kv_keys(self._key(prefix), _SPACE, timeout=_CALL_S)
        found = self._store.internal_kv_multi_get(keys, _SPACE, timeout=_CALL_S) if keys else {}
        return {key.decode().removeprefix(self._prefix + prefix): json.loads(value) for key, value in found.items()}

    def _put(self, name: str, value: bytes, *, overwrite: bool = True) -> None:
        self._store.internal_kv_put(self._key(name), value, overwrite, _SPACE, timeout=_CALL_S)

    def _delete(self, name: str, *, by_prefix: bool = False) -> None:
        self._store.internal_kv_del(self._key(name), by_prefix, _SPACE, timeout=_CALL_S)

    def _key(self, name: str) -> bytes:
        return (self._prefix + name).encode()


def _packed(record: Record) -> bytes:
    return json.dumps(record).encode()
