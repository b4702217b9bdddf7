"""Support for the notebooks in ``notebooks/``: data sources, the scoring of predictions, pictures and tables.

A notebook uses :func:`open_source`, the functions of :mod:`.judging` and :mod:`.replaying`, and the :class:`Picture` and
:class:`Table` that a cell ends with.
"""

from service.notebooks.judging import (
    Score,
    against_others,
    answered_by,
    by_group,
    by_history,
    calibration_curve,
    over_time,
    score,
)
from service.notebooks.pictures import Picture, Table
from service.notebooks.replaying import corrected_run, drift_curve, who_answered
from service.notebooks.source import Scored, Source, SourceError, history_words
from service.notebooks.sources import open_source

__all__ = [
    "Picture",
    "Score",
    "Scored",
    "Source",
    "SourceError",
    "Table",
    "against_others",
    "answered_by",
    "by_group",
    "by_history",
    "calibration_curve",
    "corrected_run",
    "drift_curve",
    "history_words",
    "open_source",
    "over_time",
    "score",
    "who_answered",
]
