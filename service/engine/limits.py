"""What an operator allows a user, a project or the whole queue: how many GPUs at a time, and whether anything starts at all."""

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


@value
class Owner:
    """The user or project of that name, or the whole queue."""

    scope: Scope
    name: str = ""

    @property
    def title(self) -> str:
        """For people, at the beginning of a sentence."""
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


def owners_of(spec: JobSpec) -> tuple[Owner, Owner, Owner]:
    """Everyone whose limits a job is under."""
    return (QUEUE, Owner(Scope.USER, spec.user), Owner(Scope.PROJECT, spec.project))
