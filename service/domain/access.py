"""Who asks, and what that person may see and change.

Pure: no framework and no database, so that every side (the request guard, the routes, the statements, another server to which a
request is forwarded) means the same by it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Role(Enum):
    """What an API key is good for. Each role may do all that those before it may."""

    VIEWER = "viewer"
    """Reads the jobs of its own projects."""
    SUBMITTER = "submitter"
    """Submits jobs, and changes its own."""
    OPERATOR = "operator"
    """Sees and changes everybody's jobs, and runs the cluster: servers, queue, models."""
    ADMIN = "admin"
    """Decides who may do what, and reads who did what."""

    @property
    def rank(self) -> int:
        """0 for the least."""
        return _RANKS[self]

    def covers(self, least: "Role") -> bool:
        """Whether this role may do what ``least`` may."""
        return self.rank >= least.rank


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}

NO_PROJECT: Final = ""
"""The project of jobs that name none. They belong to their user alone, so a member of it sees his own and nobody else's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a request.

    ``user`` is None for the local token: it opens this service for whoever may read its data folder, without a name.
    ``projects`` are those whose jobs may be seen, :data:`NO_PROJECT` among them; None = all. ``key_id`` is the public part
    of the API key.
    """

    user: str | None
    role: Role
    projects: frozenset[str] | None
    key_id: str | None

    def sees(self, project: str, user: str) -> bool:
        """Whether a job of this project and user exists for the caller."""
        if self.projects is None:
            return True
        return project in self.projects and (project != NO_PROJECT or user == self.user)

    def owns(self, user: str) -> bool:
        """Whether a job of this user is the caller's own."""
        return self.user is not None and self.user == user

    def changes(self, user: str) -> bool:
        """Whether the caller may change a job of this user that he sees."""
        return self.role.covers(Role.OPERATOR) or (self.role.covers(Role.SUBMITTER) and self.owns(user))

    def reads_output(self, user: str) -> bool:
        """Whether the caller may read the log of a job of this user that he sees."""
        return self.role.covers(Role.OPERATOR) or self.owns(user)

    def reads_environment(self, user: str) -> bool:
        """Whether the caller may read what a job of this user that he sees was given in its environment."""
        return self.role.covers(Role.ADMIN) or self.owns(user)

    @property
    def acts_for_others(self) -> bool:
        """Whether the caller may submit in another user's name."""
        return self.role.covers(Role.OPERATOR)


LOCAL: Final = Identity(user=None, role=Role.ADMIN, projects=None, key_id=None)
"""Whoever holds the token in the data folder."""
