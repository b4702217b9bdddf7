"""What an operator allows a user, a project or the whole queue, and a user a job array of his own: how many GPUs at a time, and
whether anything starts at all."""

from enum import StrEnum

from policies.model.job import JobSpec
from policies.model.value import value


class Scope(StrEnum):
    """Whose jobs a limit is about."""

    __hash__ = str.__hash__  # an Enum's own is a call of Python code

    QUEUE = "queue"
    """Everybody's; its name is empty."""
    USER = "user"
    PROJECT = "project"
    ARRAY = "array"
    """One job array; its name is its number. Limited by its submission alone, so it is nowhere stored."""


@value
class Owner:
    """The user or project of that name, or the whole queue."""

    scope: Scope
    name: str = ""

    @property
    def title(self) -> str:
        """For people, at the beginning of a sentence."""
        if self.scope is Scope.ARRAY:
            return f"Job array {self.name}"
        return "The queue" if self.scope is Scope.QUEUE else f"{self.scope.value.capitalize()} {self.name!r}"


QUEUE = Owner(Scope.QUEUE)


@value
class OwnerLimit:
    """``gpus_running_max``: GPUs that the owner's jobs may hold at a time (None: any number). ``paused``: no job starts,
    for ``pause_reason``; what runs goes on."""

    gpus_running_max: int | None = None
    paused: bool = False
    pause_reason: str = ""

    @property
    def limits(self) -> bool:
        """Whether it forbids anything."""
        return self.paused or self.gpus_running_max is not None


def owners_of(spec: JobSpec) -> tuple[Owner, ...]:
    """Everyone whose limits a job is under."""
    owners = (QUEUE, Owner(Scope.USER, spec.user), Owner(Scope.PROJECT, spec.project))
    return (*owners, Owner(Scope.ARRAY, str(spec.array.id))) if spec.array is not None else owners


def limit_of_array(spec: JobSpec) -> OwnerLimit | None:
    """How much the job's array may hold at a time; None where it is not limited. Its elements are all of one size."""
    if spec.array is None or spec.array.max_running is None:
        return None
    return OwnerLimit(spec.array.max_running * spec.gpus)
