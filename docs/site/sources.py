"""The files that the site is made of."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

PROJECT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages outside ``docs/``."""


def sources(root: Path = ROOT) -> list[Path]:
    """Pages, pictures, the style sheet, and the examples that pages link to, in a stable order."""
    docs = [path for path in (root / "docs").rglob("*") if path.suffix in (".md", ".svg", ".png", ".css")]
    examples = [path for path in (root / "examples").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted([*docs, *examples, *(root / name for name in PROJECT_PAGES)])


def target(source: str) -> str:
    """Where a source goes in the site, both as paths from their roots. Examples are text, so that a browser shows them."""
    if source.startswith("examples/"):
        return f"{source}.txt"
    inside = source.removeprefix("docs/") if source.startswith("docs/") else f"project/{source}"
    return f"{inside.removesuffix('.md')}.html" if inside.endswith(".md") else inside
