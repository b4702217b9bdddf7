"""Texts in CSV files that people open in a spreadsheet, which takes some texts for formulas and runs them.

Names of jobs, users and servers are chosen by others. A text that a spreadsheet would take for a formula gets an apostrophe, the
spreadsheets' own mark of a text; reading removes it. So every text comes back as it was, and numbers are written as numbers.
"""

import re
from collections.abc import Sequence
from typing import Final

_STEERS: Final = re.compile(r"'*[=+\-@\t\r]")
"""The beginning of a formula, or what only its apostrophes keep from being one."""


def cell(value: object) -> object:
    """The cell of a value. Only texts change."""
    return f"'{value}" if isinstance(value, str) and _STEERS.match(value) else value


def cells(values: Sequence[object]) -> list[object]:
    """A row of cells."""
    return [cell(value) for value in values]


def text_of(written: str) -> str:
    """The text of a cell."""
    return written[1:] if written.startswith("'") and _STEERS.match(written) else written
