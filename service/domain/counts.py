"""Numbers of things as people write them."""


def count_of(count: int, what: str = "job") -> str:
    """``1 job``, ``20,070 jobs``; or as many of something else."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def gpu_hours(value: float) -> str:
    """``1,234.5``; ``0.0`` is none at all, ``<0.1`` less than shown."""
    return "<0.1" if 0.0 < value < 0.05 else f"{value:,.1f}"


def skipped_rows(count: int) -> str:
    """``1 row was skipped.``, ``0 rows were skipped.``"""
    return f"{count_of(count, 'row')} {'was' if count == 1 else 'were'} skipped."
