"""A job whose start is refused again and again does not keep others from starting, nor the loop from resting."""

from collections.abc import Sequence

import pytest

from policies.lifecycle import JobState
from policies.model.ids import JobId
from policies.model.reasons import Reason
from policies.registry import BUILT_IN
from service.engine.ports import CycleBatch
from tests.scenarios.chance import Flaky
from tests.scenarios.dsl import Story, policy

UNLUCKY = JobId(2)


class Refusing(Flaky):
    """A store in which somebody always changes one job just before its start is committed."""

    def __init__(self, refuse_until: int) -> None:
        super().__init__(0, failing=0.0, stale=0.0)
        self.refuse_until = refuse_until
        self.refused = 0

    def commit(self, batch: CycleBatch) -> frozenset[JobId]:
        write = batch.writes.get(UNLUCKY)
        if write is not None and write.job.state is JobState.STARTING and self.refused < self.refuse_until:
            self.refused += 1
            self.inner.bump(UNLUCKY)
        return self.inner.commit(batch)


def crowded(name: str, store: Refusing, jobs: Sequence[tuple[int, float]]) -> Story:
    story = Story("2x4", policy(name), store=store)
    story.memory = store.inner
    for number, (gpus, runs_s) in enumerate(jobs):
        story.job(f"j{number}", gpus=gpus, runs_s=runs_s, at_s=number)
    return story


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"fifo"}))
def test_others_start_and_end_while_one_start_is_always_refused(name: str) -> None:
    store = Refusing(refuse_until=10**9)
    story = crowded(name, store, [(4, 50), (2, 5), (4, 30), (1, 10), (8, 5), (2, 40)])
    story.until(400)
    others = [f"j{number}" for number in range(6) if JobId(number + 1) != UNLUCKY]
    assert [story.state(other) for other in others] == [JobState.SUCCEEDED] * 5
    assert store.refused > 3
    store.refuse_until = 0
    story.to_the_end()
    assert story.state("j1") is JobState.SUCCEEDED


def test_a_refused_job_under_a_quota_pauses_and_starts_later() -> None:
    store = Refusing(refuse_until=4)
    story = crowded("fifo_backfill", store, [(4, 3), (4, 5)]).quota(4, user="u")
    story.until(2).until(3).until(4).until(6)
    paused = story.engine.world.jobs[UNLUCKY]
    assert (paused.not_before_s, paused.reason) == (10.0, Reason.REFUSED)
    assert story.engine.world.admission.why(paused)[1]["gpus_promised"] == 0, "it is not let through meanwhile"
    story.until(60)
    assert story.state("j1") is JobState.SUCCEEDED
