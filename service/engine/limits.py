"""Limits of a user, a project, the whole queue or a job array: the GPUs held at a time, and pauses."""

from enum import StrEnum

from policies.model.job import JobSpec
from policies.model.value import value


class Scope(StrEnum):
    """The kinds of owners that a limit can apply to."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    QUEUE = "queue"
    """All jobs; the owner's name is empty."""
    USER = "user"
    PROJECT = "project"
    ARRAY = "array"
    """One job array; the owner's name is its number. The submission sets its limit, so the limit is not stored."""


@value
class LimitOwner:
    """A user, project or job array by name, or the whole queue."""

    scope: Scope
    name: str = ""

    @property
    def title(self) -> str:
        """The owner at the beginning of a sentence."""
        if self.scope is Scope.ARRAY:
            return f"Job array {self.name}"
        return "The queue" if self.scope is Scope.QUEUE else f"{self.scope.value.capitalize()} {self.name!r}"


QUEUE = LimitOwner(Scope.QUEUE)


@value
class OwnerLimit:
    """``gpus_running_max``: GPUs that the owner's jobs may hold at a time (None: no limit). ``paused``: no job starts, for
    ``pause_reason``; running jobs continue."""

    gpus_running_max: int | None = None
    paused: bool = False
    pause_reason: str = ""

    @property
    def limits(self) -> bool:
        """Whether the limit restricts anything."""
        return self.paused or self.gpus_running_max is not None


def owners_of(spec: JobSpec) -> tuple[LimitOwner, ...]:
    """The owners whose limits apply to a job."""
    owners = (QUEUE, LimitOwner(Scope.USER, spec.user), LimitOwner(Scope.PROJECT, spec.project))
    return owners if spec.array is None else (*owners, array_of(spec))


def array_of(spec: JobSpec) -> LimitOwner:
    """The job's array as an owner. Only for elements of arrays."""
    assert spec.array is not None
    return LimitOwner(Scope.ARRAY, str(spec.array.id))


def limit_of_array(spec: JobSpec) -> OwnerLimit | None:
    """The limit of the job's array; None without one. All elements have equal gangs."""
    if spec.array is None or spec.array.max_running is None:
        return None
    return OwnerLimit(spec.array.max_running * spec.gpus)
