"""The identity of a caller, and what the caller may see and change.

Pure: no framework and no database. The request guard, the routes, the statements and a server that receives a forwarded request
use the same rules.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Role(Enum):
    """The role of an API key. Each role includes the rights of those before it."""

    VIEWER = "viewer"
    """Reads the jobs of its own projects."""
    SUBMITTER = "submitter"
    """Submits jobs, and changes its own."""
    OPERATOR = "operator"
    """Sees and changes all jobs, and manages the cluster: servers, queue, models."""
    ADMIN = "admin"
    """Manages users and keys, and reads the audit log."""

    @property
    def rank(self) -> int:
        """The position in the order of rights; 0 is the least."""
        return _RANKS[self]

    def covers(self, least: "Role") -> bool:
        """Whether this role includes the rights of ``least``."""
        return self.rank >= least.rank


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}

NO_PROJECT: Final = ""
"""The project of jobs without one. A member of it sees only the own jobs there."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request.

    ``user`` is None for the local token, which any reader of the data folder can use.
    ``projects`` are those whose jobs are visible, possibly with :data:`NO_PROJECT`; None = all. ``key_id`` is the public part
    of the API key.
    """

    user: str | None
    role: Role
    projects: frozenset[str] | None
    key_id: str | None

    def sees(self, project: str, user: str) -> bool:
        """Whether a job of this project and user is visible to the caller."""
        if self.projects is None:
            return True
        return project in self.projects and (project != NO_PROJECT or user == self.user)

    @property
    def sight(self) -> "Identity":
        """Equal for callers of one role who see the same jobs and limits, whatever their names: all who see everything."""
        return Identity(None, self.role, None, None) if self.projects is None else self

    def owns(self, user: str) -> bool:
        """Whether a job of this user is the caller's own."""
        return self.user is not None and self.user == user

    def changes(self, user: str) -> bool:
        """Whether the caller may change a visible job of this user."""
        return self.role.covers(Role.OPERATOR) or (self.role.covers(Role.SUBMITTER) and self.owns(user))

    def reads_output(self, user: str) -> bool:
        """Whether the caller may read the log of a visible job of this user."""
        return self.role.covers(Role.OPERATOR) or self.owns(user)

    def reads_environment(self, user: str) -> bool:
        """Whether the caller may read the environment of a visible job of this user."""
        return self.role.covers(Role.ADMIN) or self.owns(user)

    @property
    def acts_for_others(self) -> bool:
        """Whether the caller may submit in another user's name."""
        return self.role.covers(Role.OPERATOR)


LOCAL: Final = Identity(user=None, role=Role.ADMIN, projects=None, key_id=None)
"""The sender that uses the token in the data folder."""
