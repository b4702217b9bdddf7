"""Users, API keys, projects, the audit log, usage and webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.client.flow import Flow, Many
from service.client.noun import C, Noun, call, segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.wire.access import (
        AuditDocument,
        DeliveryDocument,
        KeyDocument,
        MembershipDocument,
        NewKeyDocument,
        NewWebhookDocument,
        ProjectDocument,
        SignInCodeDocument,
        UsageDocument,
        UserDocument,
        WebhookDocument,
    )


class Keys(Noun[C]):
    """``client.keys``: API keys."""

    @call
    def list(self, user: str | None = None) -> Many[KeyDocument]:
        """API keys, newest first; of one user if given."""
        return self._pages("/v1/keys", {"user": user})

    @call
    def make(
        self,
        user: str,
        role: str,
        projects: Sequence[str] = (),
        expires_in_s: float | None = None,
        note: str = "",
    ) -> Flow[NewKeyDocument]:
        """A new key; its text is in this answer and nowhere else (None if the first answer was lost: revoke it then)."""
        given = {"projects": list(projects) or None, "expires_in_s": expires_in_s}
        return self._post("/v1/keys", {"user": user, "role": role, **given, "note": note})

    @call
    def revoke(self, key_id: str) -> Flow[KeyDocument]:
        """Revoke a key."""
        return self._post(f"/v1/keys/{segment(key_id)}/revoke")

    @call
    def sign_in_code(self) -> Flow[SignInCodeDocument]:
        """A code that signs a browser in as the caller, once, within a minute."""
        return self._post("/v1/sign-in-codes")


class Users(Noun[C]):
    """``client.users``."""

    @call
    def list(self) -> Many[UserDocument]:
        """Users by name."""
        return self._pages("/v1/users")

    @call
    def put(self, name: str, *, disabled: bool | None = None, known: bool = False) -> Flow[UserDocument]:
        """Add a user, or disable or enable one; None leaves a known one as it is. ``known``: an unknown one is an error."""
        headers = {"If-Match": "*"} if known else {}
        body = {} if disabled is None else {"disabled": disabled}
        return self._change("PUT", f"/v1/users/{segment(name)}", body, headers=headers)


class Projects(Noun[C]):
    """``client.projects``."""

    @call
    def list(self) -> Many[ProjectDocument]:
        """Projects with members, by name."""
        return self._pages("/v1/projects")

    @call
    def add_member(self, project: str, user: str) -> Flow[MembershipDocument]:
        """Add a user to a project."""
        return self._change("PUT", f"/v1/projects/{segment(project)}/members/{segment(user)}")

    @call
    def remove_member(self, project: str, user: str) -> Flow[MembershipDocument]:
        """Remove a user from a project."""
        return self._change("DELETE", f"/v1/projects/{segment(project)}/members/{segment(user)}")


class Audit(Noun[C]):
    """``client.audit``: the audit log."""

    @call
    def list(
        self, *, user: str | None = None, target: str | None = None, limit: int | None = None
    ) -> Many[AuditDocument]:
        """Changes, newest first; all of them, or at most ``limit``."""
        return self._pages("/v1/audit", {"user": user, "target": target}, limit)


class Usage(Noun[C]):
    """``client.usage``: GPU-hours of users and projects."""

    @call
    def show(
        self,
        group: Sequence[str] = ("user",),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        user: str | None = None,
        project: str | None = None,
    ) -> Flow[UsageDocument]:
        """Sums by ``group`` (``user``, ``project``, ``day``).

        ``first_day`` and ``last_day`` as ``2026-01-31`` (UTC, both included).
        """
        return self._get("/v1/usage", _usage(group, first_day, last_day, user, project))

    @call
    def csv(
        self,
        group: Sequence[str] = ("user",),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        user: str | None = None,
        project: str | None = None,
    ) -> Flow[str]:
        """The same as CSV with a header."""
        query = {**_usage(group, first_day, last_day, user, project), "format": "csv"}
        answer = yield from self._answer("GET", "/v1/usage", query)
        return answer.text


def _usage(
    group: Sequence[str], first_day: str | None, last_day: str | None, user: str | None, project: str | None
) -> dict[str, Any]:
    return {"group": ",".join(group), "from": first_day, "to": last_day, "user": user, "project": project}


class Webhooks(Noun[C]):
    """``client.webhooks``."""

    @call
    def list(self) -> Many[WebhookDocument]:
        """Those that the caller sees, oldest first."""
        return self._pages("/v1/webhooks")

    @call
    def show(self, webhook_id: int) -> Flow[WebhookDocument]:
        """One webhook."""
        return self._get(f"/v1/webhooks/{webhook_id}")

    @call
    def add(self, webhook: Mapping[str, Any], idempotency_key: str | None = None) -> Flow[NewWebhookDocument]:
        """Add one (keys as in the API: ``url``, ``events``, ...)."""
        return self._post("/v1/webhooks", webhook, idempotency_key)

    @call
    def remove(self, webhook_id: int) -> Flow[WebhookDocument]:
        """Remove one with its secret and its pending deliveries."""
        return self._change("DELETE", f"/v1/webhooks/{webhook_id}")

    @call
    def test(self, webhook_id: int) -> Flow[DeliveryDocument]:
        """Send it ``webhook.test``."""
        return self._post(f"/v1/webhooks/{webhook_id}/test")

    @call
    def deliveries(self, webhook_id: int, *, limit: int | None = None) -> Many[DeliveryDocument]:
        """Its deliveries, newest first; all pages, or at most ``limit``."""
        return self._pages(f"/v1/webhooks/{webhook_id}/deliveries", limit=limit)
