"""Whether the modules of the scheduler run compiled. Both builds come from one source and give the same results."""

from importlib.util import find_spec


def compiled() -> bool:
    """Whether the installed policies, engine and simulator are native code (see docs/how-to/compile.md)."""
    spec = find_spec("policies.ranked")
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
