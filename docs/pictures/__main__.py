"""``python -m docs.pictures``: write every picture; says which ones changed."""

from pathlib import Path

from docs.pictures import PICTURES

DOCS = Path(__file__).parents[1]


def main() -> None:
    """Write what differs."""
    for name, draw in PICTURES.items():
        path, text = DOCS / name, draw()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
