"""Pictures and self-contained HTML pages. Nothing that serves requests imports this package."""
