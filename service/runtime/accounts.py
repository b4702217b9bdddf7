"""The system's users that jobs run as, when they run as those who submitted them (setting ``run_as``)."""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass


class NoAccount(Exception):
    """A submitting user has no system user that jobs may run as; the message says why and repeats no name of a client."""


@dataclass(frozen=True, slots=True)
class Account:
    """A system user with the numbers of its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def account_of(user: str, names: Mapping[str, str]) -> Account:
    """The system user of a submitting user: the one that ``names`` gives, else the one of the same name.

    Raises :class:`NoAccount` if it does not exist on this machine, or if it is root.
    """
    if not user:
        raise NoAccount("jobs run as their users (setting run_as), and this job has no user")
    name = names.get(user, user)
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise NoAccount(
            "jobs run as their users (setting run_as), and this machine has no system user for this one"
        ) from None
    if entry.pw_uid == 0:
        raise NoAccount("jobs run as their users (setting run_as), and none runs as root")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
