"""Recorded cycles as JSON documents (``sooner.cycle/1``), and back.

Commands, environments and working directories are left out: no policy reads them, and a bug report must not contain a job's
secrets.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policies.model.cluster import Cluster
from policies.model.server_reservation import ServerReservation
from service.db.codec import (
    CodecError,
    decode,
    decode_actions,
    decode_changes,
    encode,
    encode_actions,
    encode_changes,
)
from service.engine.record import JobRecord, ServerRecord
from service.engine.world import Costs
from service.history.cycles import CycleSnapshot
from service.history.snapshot import WorldSnapshot

SCHEMA = "sooner.cycle/1"


class CycleFileError(ValueError):
    """The document is not a recorded cycle. The message is one line."""


def cycle_document(snapshot: CycleSnapshot) -> dict[str, Any]:
    """The document of a recorded cycle."""
    world = snapshot.world
    return {
        "schema": SCHEMA,
        "cycle": snapshot.cycle,
        "now_s": world.now_s,
        "policy": snapshot.policy,
        "options": dict(snapshot.options),
        "cluster": encode(world.cluster),
        "costs": encode(world.costs),
        "servers": [encode(record) for record in world.servers],
        "jobs": [encode(_public(job)) for job in world.jobs],
        "windows": [encode(window) for window in world.windows],
        "dump": snapshot.dump,
        "changes": encode_changes(snapshot.changes),
        "actions": encode_actions(snapshot.actions),
        "wake_at_s": snapshot.wake_at_s,
    }


def read_cycle(document: object) -> CycleSnapshot:
    """The cycle of a document. Raises :class:`CycleFileError`."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise CycleFileError(f"not a recorded cycle: the key 'schema' must be {SCHEMA!r}")
    try:
        return _read(document)
    except KeyError as error:
        raise CycleFileError(f"the key {error.args[0]!r} is missing") from error
    except CodecError as error:
        raise CycleFileError(str(error)) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CycleFileError(f"a value has the wrong type: {error}") from error


def _read(document: Mapping[str, Any]) -> CycleSnapshot:
    world = WorldSnapshot(
        now_s=float(document["now_s"]),
        cluster=decode(Cluster, document["cluster"]),
        costs=decode(Costs, document["costs"]),
        servers=tuple(decode(ServerRecord, each) for each in document["servers"]),
        jobs=tuple(decode(JobRecord, each) for each in document["jobs"]),
        windows=tuple(decode(ServerReservation, each) for each in document.get("windows", ())),
    )
    return CycleSnapshot(
        cycle=int(document["cycle"]),
        policy=str(document["policy"]),
        options={str(name): str(value) for name, value in document["options"].items()},
        world=world,
        dump=dict(document["dump"]),
        changes=decode_changes(document["changes"]),
        actions=decode_actions(document["actions"]),
        wake_at_s=document["wake_at_s"],
    )


def _public(job: JobRecord) -> JobRecord:
    copy = job.copy()
    copy.spec = replace(job.spec, command=(), env={}, working_dir=None)
    return copy
