"""The interface of a notebook's data source, and the values that it returns."""

from dataclasses import dataclass
from typing import Protocol

from policies.model.cluster import Cluster
from service.notebooks.scored import Scored
from service.sim.jobs import SimJobs
from service.sim.results import Result
from service.sim.workloads.model import Workload


class SourceError(Exception):
    """A named source that cannot be read; one line."""


@dataclass(frozen=True, slots=True)
class Past:
    """Jobs that a simulation can run again. ``actual`` is their real outcome, where it is known; ``recorded`` says whether the
    predictor ``recorded`` can be used with them.
    """

    jobs: SimJobs
    cluster: Cluster
    actual: Result | None = None
    recorded: bool = False


class Source(Protocol):
    """The data of one cluster."""

    @property
    def origin(self) -> str:
        """Where the data comes from, for people."""

    @property
    def synthetic(self) -> bool:
        """Whether the data was generated and says nothing about a real cluster."""

    def predictions(self) -> list[Scored]:
        """Predictions whose jobs have ended, in the order in which the jobs were submitted."""

    def workload(self) -> Workload:
        """The jobs that ended, with their true durations."""

    def cluster(self) -> Cluster:
        """The servers that they ran on, or could run on."""

    def past(self) -> Past:
        """The jobs as the simulator takes them."""
