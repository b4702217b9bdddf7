"""The little Markdown that generated pages need."""

from collections.abc import Iterable, Sequence


def opening(title: str, source: str, introduction: str) -> list[str]:
    """The first lines of a generated page. ``source`` names the modules that it was made from."""
    note = f"<!-- Made by `python -m docs.generate` from {source}. Change the code, not this page. -->"
    return [note, "", f"# {title}", "", introduction.strip(), ""]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, followed by an empty line; nothing at all without rows."""
    lines = ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    if not lines:
        return []
    return ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers), *lines, ""]


def cell(text: str) -> str:
    """Text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Inline code; empty text stays empty."""
    return f"`{text}`" if text else ""


def join(lines: Iterable[str]) -> str:
    """The page, with one line end at its end."""
    return "\n".join(lines).rstrip("\n") + "\n"
