"""Which folders of the server a job's container may not see."""

import os
from collections.abc import Sequence


def closed_volume(sources: Sequence[str], data_dir: str | os.PathLike[str]) -> int | None:
    """The position of the first source that would show the service's data folder, which holds its keys; None if there is none."""
    if not sources:
        return None
    secret = os.path.realpath(data_dir)
    for position, source in enumerate(sources):
        path = os.path.realpath(source)
        if os.path.commonpath([path, secret]) in (path, secret):
            return position
    return None
