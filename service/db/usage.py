"""Usage in the database: summed as attempts end, read by day, user and project with running attempts counted until now."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, func, select

from policies.lifecycle import AttemptState
from service.db.access import seen
from service.db.dialects import upsert
from service.db.pages import equal
from service.db.rows import OPEN_ATTEMPTS
from service.db.tables import ATTEMPTS, JOBS, USAGE, columns
from service.domain.access import Identity
from service.domain.usage import Held, Usage, UsageKey, day_of, usage_of
from service.engine.ports import JobWrite

GROUPS = ("day", "user", "project")
"""What usage can be grouped by, in the order of every result."""

_SUMS = ("held_gpu_s", "useful_gpu_s", "attempts", "preemptions", "jobs")


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """Which usage: by ``groups`` of :data:`GROUPS`, on the days ``first_day`` <= day < ``end_day``, of what ``caller`` sees."""

    groups: Collection[str]
    first_day: int
    end_day: int
    caller: Identity
    user: str | None = None
    project: str | None = None


Group = tuple[int | str, ...]
"""The values of the requested groups, in the order of :data:`GROUPS`."""


def add_usage(connection: Connection, writes: Sequence[JobWrite]) -> None:
    """Add the attempts and jobs that end with these writes, in the transaction that ends them. Only the leader calls this."""
    sums = usage_of(held for write in writes for held in _ended(write))
    for write in writes:
        if write.label is not None:
            spec, ended_at_s = write.job.spec, write.job.finished_at_s
            assert ended_at_s is not None
            sums.setdefault(UsageKey(day_of(ended_at_s), spec.user, spec.project), Usage()).jobs += 1
    if sums:
        upsert(connection, USAGE, [key._asdict() | asdict(more) for key, more in sums.items()], summed=_SUMS)


def _ended(write: JobWrite) -> Iterator[Held]:
    """The attempts that this write ends, at most one; a successor in the same cycle resumes from it."""
    spec = write.job.spec
    for attempt in write.attempts:
        if not attempt.open and attempt.ended_at_s is not None:
            yield Held(
                spec.user,
                spec.project,
                spec.gpus,
                attempt.opened_at_s,
                attempt.ended_at_s,
                write.job.service_s - attempt.resume_service_s,
                preempted=attempt.state is AttemptState.PREEMPTED,
            )


def usage(
    connection: Connection, wanted: UsageWanted, now_s: float, groups_max: int
) -> list[tuple[Group, Usage]] | None:
    """The sums by group, ordered by group; None if there are more than ``groups_max`` groups.

    O(days x users x projects of the interval + open attempts), whatever the number of ended jobs.
    """
    keys = [USAGE.c[name] for name in GROUPS if name in wanted.groups]
    statement = (
        select(*keys, *(func.sum(USAGE.c[name]) for name in _SUMS))
        .where(USAGE.c.day >= wanted.first_day, USAGE.c.day < wanted.end_day)
        .where(*equal(USAGE, user=wanted.user, project=wanted.project))
        .where(seen(wanted.caller, USAGE.c.project, USAGE.c.user))
        .group_by(*keys)
        .limit(groups_max + 1)
    )
    sums: defaultdict[Group, Usage] = defaultdict(Usage)
    for row in connection.execute(statement):
        values = row[len(keys) :]
        # Without groups there is one row even where nothing was used, and its sums are NULL.
        if values[0] is not None:
            sums[tuple(row[: len(keys)])] = Usage(float(values[0]), float(values[1]), *map(int, values[2:]))
    for key, more in _running(connection, wanted, now_s).items():
        named: Mapping[str, int | str] = key._asdict()
        sums[tuple(named[name] for name in GROUPS if name in wanted.groups)].add(more)
    return sorted(sums.items(), key=lambda pair: pair[0]) if len(sums) <= groups_max else None


def _running(connection: Connection, wanted: UsageWanted, now_s: float) -> dict[UsageKey, Usage]:
    """The usage of the open attempts until now."""
    jobs, attempts = JOBS.c, ATTEMPTS.c
    statement = (
        select(
            *columns(JOBS, "user project gpus service_s anchor_s progressing"),
            *columns(ATTEMPTS, "opened_at_s resume_service_s"),
        )
        .join_from(ATTEMPTS, JOBS, attempts.job_id == jobs.id)
        .where(attempts.state.in_(OPEN_ATTEMPTS))
        .where(seen(wanted.caller, jobs.project, jobs.user))
    )
    held = []
    for row in connection.execute(statement):
        if wanted.user not in (None, row.user) or wanted.project not in (None, row.project):
            continue
        service_s = row.service_s + (max(0.0, now_s - row.anchor_s) if row.progressing else 0.0)
        counted_s = service_s - row.resume_service_s
        held.append(Held(row.user, row.project, row.gpus, row.opened_at_s, now_s, counted_s, ended=False))
    return {key: more for key, more in usage_of(held).items() if wanted.first_day <= key.day < wanted.end_day}
