"""Pictures of pages, drawn from simulations: ``python -m docs.pictures`` writes them.

A test fails while a picture on disk differs from what the simulator does now.
"""

from collections.abc import Callable, Mapping

from docs.pictures import price, relaxation, schedules

PICTURES: Mapping[str, Callable[[], str]] = {
    "explanation/pictures/relaxation.svg": relaxation.picture,
    "explanation/pictures/virtual-completion.svg": schedules.virtual_completion,
    "explanation/pictures/one-preemption.svg": schedules.one_preemption,
    "explanation/pictures/price.svg": price.picture,
}
"""Path below ``docs/`` -> the file's text."""
