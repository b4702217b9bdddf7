"""Building: compiles the hot modules of the same source with mypyc. See docs/explanation/decisions/0036-compiled-modules.md."""
