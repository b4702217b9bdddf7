"""What a policy of fair shares has counted, for those who look at it."""

from typing import NamedTuple


class ShareAccount(NamedTuple):
    """What a user or a project has used, in GPU-seconds; jobs of smaller levels come first."""

    name: str
    weight: float
    used_gpu_s: float
    level: int


class Shares(NamedTuple):
    """The accounts by name; None: the policy does not share use between them. ``half_life_s``: after it half of the use of a
    project has decayed (None: use of projects is not shared). That of users does not decay.
    """

    users: tuple[ShareAccount, ...] | None = None
    projects: tuple[ShareAccount, ...] | None = None
    half_life_s: float | None = None
