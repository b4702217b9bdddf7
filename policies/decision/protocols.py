"""What the parts of a decision need to know of a policy."""

from typing import Protocol

from policies.choose import Candidate
from policies.model.view import ClusterView, JobView
from policies.options import Options
from policies.placement.pool import FreePool
from policies.rank import Rank
from policies.state.scheduler_state import SchedulerState


class Ranking(Protocol):
    """Ranks jobs and places them."""

    options: Options
    ranks_keep_to_lines: bool

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank: ...

    def rank_per_s(self, job: JobView, state: SchedulerState) -> float: ...

    def find(self, pool: FreePool, view: ClusterView, job: JobView) -> Candidate | None: ...


class Indexing(Protocol):
    """Indexes running jobs by their rank."""

    def index_running(self, view: ClusterView, job: JobView, state: SchedulerState) -> float: ...
