"""Importers: one module per trace format, each a function from a path to a :class:`~service.sim.workloads.model.Workload`.

To add one: write ``<format>.py`` with such a function, name it in ``IMPORTERS``, and describe its columns in
``docs/reference/workloads.md``.
"""

from collections.abc import Callable
from pathlib import Path

from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers.acme import import_acme
from service.sim.workloads.importers.elasticflow import import_elasticflow
from service.sim.workloads.importers.helios import import_helios
from service.sim.workloads.importers.pai import import_pai
from service.sim.workloads.importers.philly import import_philly
from service.sim.workloads.importers.sacct import import_sacct
from service.sim.workloads.importers.sooner import import_sooner
from service.sim.workloads.importers.swf import import_swf
from service.sim.workloads.model import Workload

Importer = Callable[[Path], Workload]

IMPORTERS: dict[str, Importer] = {
    "acme": import_acme,
    "elasticflow": import_elasticflow,
    "helios": import_helios,
    "pai": import_pai,
    "philly": import_philly,
    "sacct": import_sacct,
    "sooner": import_sooner,
    "swf": import_swf,
}
"""Format name -> importer. Each streams the file (also gzip), lists the rows that it leaves out and sorts by submission."""


def import_trace(trace_format: str, path: Path) -> Workload:
    """Import a trace. An unknown format is a :class:`WorkloadError` that lists the known ones."""
    importer = IMPORTERS.get(trace_format)
    if importer is None:
        raise WorkloadError(f"unknown format {trace_format!r}; the formats are {', '.join(sorted(IMPORTERS))}")
    return importer(path)
