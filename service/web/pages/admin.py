"""Keys, users, services, webhooks and the audit log."""

import asyncio
from typing import Any

from service.domain.access import Role
from service.web.page import Asked


async def admin(asked: Asked) -> dict[str, Any]:
    """What the caller may manage: everyone their own keys, admins all."""
    nothing: dict[str, Any] = {"items": [], "next": None}
    after = asked.query("after")
    me, keys, users, webhooks, services, audit = await asyncio.gather(
        asked.read.get("v1/me"),
        asked.read.get("v1/keys", {"limit": 200}),
        asked.read.get_or(nothing, "v1/users", {"limit": 200}),
        asked.read.get_or(nothing, "v1/webhooks", {"limit": 100}),
        asked.read.get_or(None, "v1/services"),
        asked.read.get_or(nothing, "v1/audit", {"limit": 50, "after": after}),
    )
    return {
        "me": me,
        "keys": keys["items"],
        "users": users["items"],
        "webhooks": webhooks["items"],
        "services": services["services"] if services else [],
        "audit": audit,
        "after": after,
        "is_admin": asked.caller.role.covers(Role.ADMIN),
        "roles": [role.value for role in Role],
        "json": "v1/me",
    }
