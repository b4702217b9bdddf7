"""Keys, users, services, webhooks and the audit log."""

import asyncio
from typing import Any, Final, get_args

from service.domain.access import Role
from service.web.page import Asked
from service.wire.bodies import JOB_ENDS, JobEventName

KEYS: Final = 200
"""Rows of keys, of users and of webhooks."""

CHANGES: Final = 50
"""Rows of a page of the audit log."""


async def admin(asked: Asked) -> dict[str, Any]:
    """What the caller may manage: everyone their own keys, admins all."""
    nothing: dict[str, Any] = {"items": [], "next": None}
    after = asked.query("after")
    is_admin = asked.caller.role.covers(Role.ADMIN)
    me, keys, webhooks, services = await asyncio.gather(
        asked.read.get("v1/me"),
        asked.read.get("v1/keys", {"limit": asked.rows(KEYS)}),
        asked.read.get_or(nothing, "v1/webhooks", {"limit": asked.rows(KEYS)}),
        asked.read.get_or(None, "v1/services"),
    )
    users, audit = nothing, nothing
    if is_admin:
        users, audit = await asyncio.gather(
            asked.read.get("v1/users", {"limit": asked.rows(KEYS)}),
            asked.read.get("v1/audit", {"limit": asked.rows(CHANGES), "after": after}),
        )
    return {
        "me": me,
        "keys": keys,
        "users": users,
        "webhooks": webhooks,
        "services": services["services"] if services else [],
        "audit": audit,
        "after": after,
        "is_admin": is_admin,
        "roles": [role.value for role in Role],
        "job_events": get_args(JobEventName),
        "job_ends": JOB_ENDS,
        "json": "v1/me",
    }
