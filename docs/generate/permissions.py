"""The page of permissions, from the rules that the service itself enforces."""

from docs.generate.markdown import code, join, opening, table
from service.api.app import route_rules
from service.api.permissions import About, Rule
from service.domain.access import Role

_INTRODUCTION = """
An API key has a role. Each role includes the rights of the roles before it. The token in the data folder has the role `admin`.
A job that the caller may not see is reported as not found (404); an action that the caller may not take, as forbidden (403). A
route without a rule is for admins only.

How to create keys: [access](../how-to/access.md). What this does not protect: [security](../explanation/security.md).
"""

_ROLES = {
    Role.VIEWER: "Reads the jobs of its user's projects.",
    Role.SUBMITTER: "Submits jobs as its user, and changes that user's jobs.",
    Role.OPERATOR: "Sees and changes all jobs, submits for other users, manages servers, queue and models.",
    Role.ADMIN: "Manages keys, users and projects, and reads the audit log.",
}

_YES, _NO, _SOME = "yes", "", "own"

_FOR_ANYBODYS = {
    About.CHANGE: Role.OPERATOR,
    About.OUTPUT: Role.OPERATOR,
    About.SUBMISSION: Role.OPERATOR,
    About.KEY: Role.ADMIN,
}
"""The least role for what is not the caller's own."""


def page() -> str:
    """``reference/permissions.md``."""
    lines = opening("Permissions", "service.api.permissions", _INTRODUCTION)
    lines += ["## Roles", ""]
    lines += table(("Role", "What it is for"), [(code(role.value), words) for role, words in _ROLES.items()])
    lines += [
        "## Routes",
        "",
        f"`{_SOME}`: only for the caller's own job or key, as the last column says.",
        "",
    ]
    lines += table(
        ("Request", *(role.value for role in Role), "About"),
        [
            (code(f"{method} {path}"), *(_may(rule, role) for role in Role), rule.about.value)
            for (method, path), rule in route_rules().items()
        ],
    )
    return join(lines)


def _may(rule: Rule, role: Role) -> str:
    if rule.least is None:
        return _YES
    if not role.covers(rule.least):
        return _NO
    least = _FOR_ANYBODYS.get(rule.about)
    return _YES if least is None or role.covers(least) else _SOME
