"""Timelines as documents: columns filled row by row, without a model of each bar."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from policies.model.job import JobSpec
from policies.model.placement import Placement
from policies.model.server_reservation import ServerReservation
from policies.placement.seats import seats
from service.api.documents import instant
from service.db.codec import decode
from service.db.timeline import Run, StoredAttempt, StoredServer, runs
from service.domain.access import Identity
from service.wire.timeline import (
    GpuDocument,
    GpusDocument,
    GpuServerDocument,
    TimelineAttemptsDocument,
    TimelineBarsDocument,
    TimelineMergedDocument,
    TimelineReservationDocument,
    TimelineServerDocument,
)

RESOLUTION_S_MIN = 0.001
"""Times are given in milliseconds: nothing is merged below."""

Ends = Mapping[int, tuple[float, float, float]]
"""The predicted ends of jobs: the 10%, 50% and 90% points."""


class Shown(NamedTuple):
    """The attempts of one answer: those that are listed and their bars, and those that are merged with their neighbours.

    ``taken`` of the rows were read: with the next one the answer would have had too many bars.
    """

    rows: list[StoredAttempt]
    bars: TimelineBarsDocument
    left_out: int
    merged: TimelineMergedDocument
    taken: int


def shown(rows: Sequence[StoredAttempt], places: Mapping[int, int], resolution_s: float, limit: float) -> Shown:
    """The first of the ``rows`` whose bars are at most ``limit`` together, and always one.

    ``places``: the servers of the answer, by position among all servers. Bars on others are left out, and attempts without a bar.
    """
    listed: list[StoredAttempt] = []
    bars = TimelineBarsDocument(attempt=[], server=[], first_gpu=[], gpus=[])
    merged: dict[tuple[Run, float], list[float]] = {}
    left_out = counted = taken = 0
    for row in rows:
        held = [run for run in runs(row.placement, row.gpu_ids) if run.server in places]
        counted += len(held)
        if counted > limit and taken:
            break
        taken += 1
        if not held:
            continue
        starts_s, ends_s = row.opened_at_s, row.ended_at_s
        if ends_s is not None and ends_s - starts_s < resolution_s:
            left_out += 1
            for run in held:
                # The rows are in the order of their start, so the first of a group has the least.
                group = merged.setdefault((run, starts_s // resolution_s), [starts_s, ends_s, 0])
                group[1] = max(group[1], ends_s)
                group[2] += 1
            continue
        for server, first_gpu, gpus in held:
            bars["attempt"].append(len(listed))
            bars["server"].append(places[server])
            bars["first_gpu"].append(first_gpu)
            bars["gpus"].append(gpus)
        listed.append(row)
    return Shown(listed, bars, left_out, _merged_document(merged, places), taken)


def _merged_document(
    merged: Mapping[tuple[Run, float], Sequence[float]], places: Mapping[int, int]
) -> TimelineMergedDocument:
    groups = merged.values()
    return TimelineMergedDocument(
        server=[places[run.server] for run, _ in merged],
        first_gpu=[run.first_gpu for run, _ in merged],
        gpus=[run.gpus for run, _ in merged],
        starts_s=[round(starts_s, 3) for starts_s, _, _ in groups],
        ends_s=[round(ends_s, 3) for _, ends_s, _ in groups],
        attempts=[int(attempts) for _, _, attempts in groups],
    )


def attempts_document(
    rows: Sequence[StoredAttempt], ends: Ends, caller: Identity, pseudonym: Callable[[str], str]
) -> TimelineAttemptsDocument:
    """The attempts as ``caller`` may see them. ``pseudonym`` replaces the ids of those of hidden jobs."""
    seen = [True] * len(rows) if caller.projects is None else [caller.sees(row.project, row.user) for row in rows]
    everything = all(seen)

    def visible(values: Iterable[Any]) -> list[Any]:
        """Null for hidden jobs."""
        return (
            list(values) if everything else [each if known else None for each, known in zip(values, seen, strict=True)]
        )

    nothing = (None, None, None)
    points = [ends.get(row.job_id, nothing) if row.ended_at_s is None else nothing for row in rows]
    p10_s, p50_s, p90_s = (visible(_milliseconds(point[at]) for point in points) for at in range(3))
    return TimelineAttemptsDocument(
        id=[row.id if known else f"~{pseudonym(row.id)}" for row, known in zip(rows, seen, strict=True)],
        job=visible(row.job_id for row in rows),
        name=visible(row.name for row in rows),
        user=visible(row.user or None for row in rows),
        project=visible(row.project or None for row in rows),
        state=visible(row.state for row in rows),
        reason=visible(row.reason for row in rows),
        starts_s=[round(row.opened_at_s, 3) for row in rows],
        stop_requested_s=visible(_milliseconds(row.stop_requested_at_s) for row in rows),
        ends_s=[_milliseconds(row.ended_at_s) for row in rows],
        p10_s=p10_s,
        p50_s=p50_s,
        p90_s=p90_s,
    )


def _milliseconds(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s, 3)


def open_jobs(rows: Sequence[StoredAttempt], caller: Identity) -> Collection[int]:
    """The jobs of open attempts that the caller sees."""
    return {row.job_id for row in rows if row.ended_at_s is None and caller.sees(row.project, row.user)}


def current(reservations: Sequence[ServerReservation], now_s: float) -> Mapping[int, int]:
    """The number of the current reservation of each server that has one."""
    return {int(server): each.id for each in reservations if each.active(now_s) for server in each.servers}


def server_documents(
    servers: Sequence[StoredServer], places: Mapping[int, int], reserved: Mapping[int, int]
) -> list[TimelineServerDocument]:
    """The servers of an answer, in the order of ``places``."""
    return [
        TimelineServerDocument(
            name=servers[index].server.name,
            rack=servers[index].server.rack,
            gpus=servers[index].server.gpus,
            gpu_type=servers[index].server.gpu_type,
            state=servers[index].state,
            reservation=reserved.get(index),
        )
        for index in places
    ]


def reservation_documents(
    reservations: Sequence[ServerReservation], places: Mapping[int, int]
) -> list[TimelineReservationDocument]:
    """The reservations of servers of the answer."""
    found = ((each, [places[int(server)] for server in each.servers if int(server) in places]) for each in reservations)
    return [
        TimelineReservationDocument(
            id=each.id, starts_s=round(each.starts_at_s, 3), ends_s=round(each.ends_at_s, 3), servers=servers
        )
        for each, servers in found
        if servers
    ]


def gpus_document(
    servers: Sequence[StoredServer],
    places: Mapping[int, int],
    reserved: Mapping[int, int],
    held: Mapping[int, Mapping[int, GpuDocument]],
    now_s: float,
) -> GpusDocument:
    """All GPUs of the servers in ``places``; ``held`` are those of open attempts, by server and index."""
    found = []
    for position in places:
        each = servers[position]
        idle: Literal["free", "unusable"] = "free" if each.state == "up" else "unusable"
        gpus = {index: _gpu_document(index, idle) for index in range(each.server.gpus)}
        # An engine may report indices beyond those.
        gpus |= held.get(position, {})
        found.append(
            GpuServerDocument(
                server=each.server.name,
                rack=each.server.rack,
                gpu_type=each.server.gpu_type,
                state=each.state,
                reservation=reserved.get(position),
                gpus=[gpus[index] for index in sorted(gpus)],
            )
        )
    return GpusDocument(at=instant(now_s), servers=found)


def held_gpus(
    attempts: Sequence[StoredAttempt], specs: Mapping[int, JobSpec], caller: Identity, places: Collection[int]
) -> Mapping[int, Mapping[int, GpuDocument]]:
    """The GPUs of open attempts on the servers in ``places``, as ``caller`` may see them. ``specs``: of visible jobs that have
    stages.
    """
    found: dict[int, dict[int, GpuDocument]] = {}
    for attempt in attempts:
        known = caller.sees(attempt.project, attempt.user)
        name, job = (attempt.id, attempt.job_id) if known else (None, None)
        for server, first_gpu, gpus in runs(attempt.placement, attempt.gpu_ids):
            if server not in places:
                continue
            of_server = found.setdefault(server, {})
            for index in range(first_gpu, first_gpu + gpus):
                of_server[index] = _gpu_document(index, "held", name, job)
        spec = specs.get(attempt.job_id)
        if spec is not None:
            placement, gpu_ids = decode(Placement, json.loads(attempt.placement)), json.loads(attempt.gpu_ids)
            for seat in seats(spec, placement):
                of_seat = found.get(placement.shares[seat.share].server)
                if of_seat is None:
                    continue
                gpu = of_seat[gpu_ids[seat.share][seat.gpu]]
                gpu["stage"], gpu["replica"] = seat.stage, seat.replica
    return found


def _gpu_document(
    index: int, state: Literal["held", "free", "unusable"], attempt: str | None = None, job: int | None = None
) -> GpuDocument:
    return GpuDocument(index=index, state=state, attempt=attempt, job_id=job, stage=None, replica=None)
