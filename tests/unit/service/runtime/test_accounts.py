"""The system users of jobs."""

import os
import pwd

import pytest

from service.runtime.accounts import NoAccount, account_of

ENTRY = next(entry for entry in pwd.getpwall() if entry.pw_uid != 0)


@pytest.mark.parametrize(("user", "names"), [(ENTRY.pw_name, {}), ("alice", {"alice": ENTRY.pw_name})])
def test_of_the_same_name_or_of_the_one_in_the_setting(user: str, names: dict[str, str]) -> None:
    account = account_of(user, names)
    assert (account.name, account.uid, account.gid) == (ENTRY.pw_name, ENTRY.pw_uid, ENTRY.pw_gid)
    assert account.gid in account.groups
    assert set(account.groups) == set(os.getgrouplist(ENTRY.pw_name, ENTRY.pw_gid))
    assert account.home == ENTRY.pw_dir


@pytest.mark.parametrize(
    ("user", "names", "reason"),
    [
        ("", {}, "no user"),
        ("no-such-user-here", {}, "no system user"),
        ("a\0b", {}, "no system user"),
        ("alice", {"alice": "no-such-user-here"}, "no system user"),
        (ENTRY.pw_name, {ENTRY.pw_name: "no-such-user-here"}, "no system user"),
        ("root", {}, "none runs as root"),
        ("alice", {"alice": "root"}, "none runs as root"),
    ],
)
def test_that_does_not_exist_or_is_root(user: str, names: dict[str, str], reason: str) -> None:
    with pytest.raises(NoAccount, match=reason):
        account_of(user, names)
