"""The page of permissions, from the rules that the service itself enforces."""

from docs.generate.markdown import code, join, opening, table
from service.api.app import route_rules
from service.api.permissions import About, Rule
from service.domain.access import Role

_INTRODUCTION = """
An API key has a role; each role may do all that those before it may. The token in the data folder counts as an admin's. A job
that the caller does not see is answered as one that does not exist (404); what the caller sees but may not do, with 403. A
route without a rule would be for admins alone, and a test fails until it states one.

How to make keys: [Let people in](../how-to/access.md). What this does not protect: [Security](../explanation/security.md).
"""

_ROLES = {
    Role.VIEWER: "Reads the jobs of its user's projects.",
    Role.SUBMITTER: "Submits jobs in its user's name, and changes the user's own.",
    Role.OPERATOR: "Sees and changes everybody's jobs, submits for others, runs servers, queue and models.",
    Role.ADMIN: "Makes keys, users and projects, and reads the log of changes.",
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
        f"`{_SOME}`: where the job or key is the caller's own; see the last column.",
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
