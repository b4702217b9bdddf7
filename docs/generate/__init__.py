"""Reference pages made from the code: what can be read off the code is never written by hand.

``python -m docs.generate`` writes them; a test fails while a page on disk differs from what the code says now.
"""

from collections.abc import Callable, Mapping

from docs.generate import cli, http, metrics, permissions, words

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/cli.md": cli.page,
    "reference/http-api.md": http.page,
    "reference/permissions.md": permissions.page,
    "reference/problems.md": words.problems_page,
    "reference/settings.md": words.settings_page,
    "reference/policies.md": words.policies_page,
    "reference/metrics.md": metrics.page,
    "reference/reasons.md": words.reasons_page,
    "reference/states.md": words.states_page,
}
"""Path below ``docs/`` -> its text."""
