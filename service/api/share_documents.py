"""The shares of users and projects: what the policy has counted, beside quotas and present use."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from policies.model.shares import ShareAccount, Shares
from service.api.documents import document, instant
from service.api.limit_documents import concerns
from service.api.usage_documents import HOUR_S
from service.db.limits import StoredLimit, Use
from service.domain.access import Identity
from service.engine.limits import LimitOwner, OwnerLimit, Scope
from service.wire.shares import FairShareDocument, SharesDocument

PROJECTS_REASON = "The policy does not share use between projects: its option fair_share is not set."


class Owners(NamedTuple):
    """What the database knows of users and projects."""

    limits: Sequence[StoredLimit]
    uses: Mapping[LimitOwner, Use]


def shares_document(at_s: float, policy: str, shares: Shares, owners: Owners, caller: Identity) -> SharesDocument:
    """What the caller may see: all for those who see all projects, else itself and its projects."""
    users_reason = f"Policy {policy} does not rank jobs by the use of their users; policy fair does."
    return SharesDocument(
        at=instant(at_s),
        policy=policy,
        half_life_s=shares.half_life_s,
        users=_list(Scope.USER, shares.users, owners, caller),
        users_reason=users_reason if shares.users is None else None,
        projects=_list(Scope.PROJECT, shares.projects, owners, caller),
        projects_reason=PROJECTS_REASON if shares.projects is None else None,
    )


def _list(
    scope: Scope, accounts: Sequence[ShareAccount] | None, owners: Owners, caller: Identity
) -> list[FairShareDocument]:
    by_owner = {LimitOwner(scope, each.name): each for each in accounts or ()}
    limits = {each.owner: each for each in owners.limits if each.owner.scope is scope}
    used = {owner for owner in owners.uses if owner.scope is scope}
    weights = sum(each.weight for each in by_owner.values())
    used_gpu_s = sum(each.used_gpu_s for each in by_owner.values())
    found = []
    for owner in {*by_owner, *limits, *used}:
        # Jobs without a project are visible one by one, so their sum is only for those who see all.
        if not concerns(caller, owner) or (caller.projects is not None and not owner.name):
            continue
        account = by_owner.get(owner)
        counted = _counted(account, weights, used_gpu_s)
        use = owners.uses.get(owner, Use())
        limit = limits.get(owner) or StoredLimit(owner, OwnerLimit(), None)
        found.append(
            document(
                FairShareDocument,
                limit,
                limit.limit,
                name=owner.name or None,
                gpus=use.gpus_running,
                jobs=use.jobs,
                **counted,
            )
        )
    return sorted(found, key=lambda each: (each["level"] is None, each["level"] or 0, each["name"] or ""))


def _counted(account: ShareAccount | None, weights: float, used_gpu_s: float) -> dict[str, float | None]:
    if account is None:
        return dict.fromkeys(("weight", "share", "used_gpu_h", "used_share", "level"))
    return {
        "weight": account.weight,
        "share": account.weight / weights,
        "used_gpu_h": account.used_gpu_s / HOUR_S,
        "used_share": account.used_gpu_s / used_gpu_s if used_gpu_s > 0.0 else 0.0,
        "level": account.level,
    }
