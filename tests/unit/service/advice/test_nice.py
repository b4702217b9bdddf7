"""The order of waiting jobs by nice values: what is written, what is left alone, and that all of it is undone."""

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.ids import JobId
from service.advice import live
from service.advice.mirror import Mirrored, mirror
from service.advice.nice import NiceError, NiceOrder, Outcome, Rights, Waiting, kept_values, locked, values
from service.slurm.cluster import Slurm
from service.slurm.commands import SlurmRefused, SlurmTimeout
from service.slurm.jobs import SlurmJob
from service.slurm.nodes import SlurmNode

NOW_S = 1_700_000_000.0
NODES = [SlurmNode("node1", "h1", "idle", gpu_types={"a100": 4}, partitions=("main",))]
ROOT = Rights("root", operator=True)


class FakeSlurm(Slurm):
    """Keeps priorities and nice values as Slurm does, and counts what is written."""

    def __init__(self, priorities: Mapping[int, int], owner: str = "ann") -> None:
        super().__init__()
        self.queue = {
            number: SlurmJob(
                id=number, name="train", user=owner, state="PENDING", partition="main", reason="Priority", gpus=1,
                node_count=1, priority=priority, submit_s=NOW_S - 100.0 + number, time_limit_s=600.0,
            )
            for number, priority in priorities.items()
        }  # fmt: skip
        self.writes: list[tuple[int, int]] = []
        self.refuses: set[int] = set()
        self.dies_after: int | None = None
        self.during_write: signal.Signals | None = None

    def jobs(self, comment: str = "") -> list[SlurmJob]:
        return list(self.queue.values())

    def update_job(self, job: int | str, changes: Mapping[str, str]) -> None:
        number, nice = int(job), int(changes["Nice"])
        if self.dies_after is not None and len(self.writes) >= self.dies_after:
            raise KeyboardInterrupt
        if number in self.refuses:
            raise SlurmRefused("scontrol: Access/permission denied")
        if self.during_write is not None:
            signal.raise_signal(self.during_write)
        self.writes.append((number, nice))
        self.set_nice(number, nice)

    def set_nice(self, number: int, nice: int) -> None:
        old = self.queue[number]
        self.queue[number] = replace(old, nice=nice, priority=(old.priority or 0) + old.nice - nice)

    @property
    def order(self) -> list[int]:
        return sorted(self.queue, key=lambda number: (-(self.queue[number].priority or 0), number))


def _mirrored(slurm: FakeSlurm, order: list[int]) -> tuple[Mirrored, list[JobId]]:
    found = mirror(live.seen(NOW_S, NODES, slurm.jobs()), 1000)
    numbers = {job.key: number for number, job in found.jobs.items()}
    return found, [numbers[str(number)] for number in order if str(number) in numbers]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_write_is_handled_after_it(tmp_path: Path, number: signal.Signals) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    nice = NiceOrder(slurm, tmp_path, ROOT)
    slurm.during_write = number
    handler = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            nice.apply(*_mirrored(slurm, [3, 1, 2]))
    finally:
        signal.signal(number, handler)
    assert len(slurm.writes) == 1 and slurm.order != [1, 2, 3], "it is whole, and no other follows"
    slurm.during_write = None
    nice.undo()
    assert slurm.order == [1, 2, 3] and kept_values(tmp_path) == 0


def test_the_jobs_come_into_the_wanted_order(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    outcome = NiceOrder(slurm, tmp_path, ROOT).apply(*_mirrored(slurm, [3, 1, 2]))
    assert slurm.order == [3, 1, 2] and outcome.changed == 3
    assert sorted(job.priority or 0 for job in slurm.jobs()) == [300, 400, 500]


def test_nothing_is_written_if_the_order_is_right(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    written = len(slurm.writes)
    assert nice.apply(*_mirrored(slurm, [3, 1, 2])) == Outcome()
    assert len(slurm.writes) == written


def test_all_is_undone(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    slurm.set_nice(2, 7)
    before = dict(slurm.queue)
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    nice.apply(*_mirrored(slurm, [2, 3, 1]))
    assert nice.undo().changed == 3
    assert slurm.queue == before and kept_values(tmp_path) == 0


@pytest.mark.parametrize("after", range(4))
def test_all_is_undone_after_a_crash_between_any_two_writes(tmp_path: Path, after: int) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    before = dict(slurm.queue)
    slurm.dies_after = after
    try:
        NiceOrder(slurm, tmp_path, ROOT).apply(*_mirrored(slurm, [3, 1, 2]))
    except KeyboardInterrupt:
        pass
    slurm.dies_after = None
    NiceOrder(slurm, tmp_path, ROOT).undo()
    assert slurm.queue == before


def test_all_is_undone_after_a_crash_in_the_undoing(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    before = dict(slurm.queue)
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    slurm.dies_after = len(slurm.writes) + 1
    with pytest.raises(KeyboardInterrupt):
        nice.undo()
    slurm.dies_after = None
    NiceOrder(slurm, tmp_path, ROOT).undo()
    assert slurm.queue == before


def test_an_interrupted_run_is_continued(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    before = dict(slurm.queue)
    NiceOrder(slurm, tmp_path, ROOT).apply(*_mirrored(slurm, [3, 1, 2]))
    later = NiceOrder(slurm, tmp_path, ROOT)
    assert later.kept == 3
    later.apply(*_mirrored(slurm, [2, 1, 3]))
    assert slurm.order == [2, 1, 3]
    later.undo()
    assert slurm.queue == before


def test_a_value_that_another_has_changed_is_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    slurm.set_nice(1, 999)
    nice.apply(*_mirrored(slurm, [1, 2, 3]))
    assert slurm.queue[1].nice == 999
    outcome = nice.undo()
    assert (slurm.queue[1].nice, outcome.foreign) == (999, 1)
    assert slurm.queue[2].nice == slurm.queue[3].nice == 0


def test_a_number_that_slurm_has_given_to_a_new_job_is_not_undone(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400})
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [2, 1]))
    slurm.queue[1] = replace(slurm.queue[1], submit_s=NOW_S + 1e6, nice=5)
    written = len(slurm.writes)
    assert nice.undo().foreign == 0
    assert [number for number, _ in slurm.writes[written:]] == [2]


def test_a_requeued_job_gets_the_value_back_that_it_had_first(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    slurm.set_nice(2, 7)
    before = {number: job.nice for number, job in slurm.queue.items()}
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    assert slurm.queue[2].nice != 7
    # Slurm keeps the nice value of a job that it requeues, and sets a new time of submission.
    slurm.queue[2] = replace(slurm.queue[2], submit_s=NOW_S + 1000.0)
    nice.apply(*_mirrored(slurm, [2, 3, 1]))
    slurm.queue[3] = replace(slurm.queue[3], submit_s=NOW_S + 2000.0)
    assert NiceOrder(slurm, tmp_path, ROOT).undo().foreign == 0
    assert {number: job.nice for number, job in slurm.queue.items()} == before


def test_a_value_that_is_changed_after_a_requeue_is_left_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    slurm.queue[1] = replace(slurm.queue[1], submit_s=NOW_S + 1000.0)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    slurm.set_nice(1, 999)
    nice.apply(*_mirrored(slurm, [1, 2, 3]))
    assert nice.undo().foreign == 1
    assert slurm.queue[1].nice == 999


def test_a_value_whose_undoing_is_refused_is_undone_the_next_time(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    before = dict(slurm.queue)
    nice = NiceOrder(slurm, tmp_path, ROOT)
    nice.apply(*_mirrored(slurm, [3, 1, 2]))
    slurm.refuses = {1}
    done = nice.undo()
    assert (done.changed, done.refused, kept_values(tmp_path)) == (2, 1, 1)
    slurm.refuses = set()
    assert NiceOrder(slurm, tmp_path, ROOT).undo() == Outcome(changed=1)
    assert slurm.queue == before and kept_values(tmp_path) == 0


def test_without_the_right_only_own_jobs_and_only_upwards(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    slurm.queue[1] = replace(slurm.queue[1], user="bob")
    NiceOrder(slurm, tmp_path, Rights("ann", operator=False)).apply(*_mirrored(slurm, [3, 2, 1]))
    assert slurm.writes == [(2, 101)]
    assert slurm.order == [1, 3, 2]


def test_a_refused_job_is_not_tried_again(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 300})
    slurm.refuses = {1}
    nice = NiceOrder(slurm, tmp_path, ROOT)
    assert nice.apply(*_mirrored(slurm, [3, 2, 1])).refused == 1
    assert nice.apply(*_mirrored(slurm, [3, 2, 1])).refused == 0


def test_held_jobs_are_not_touched(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400, 3: 0})
    slurm.queue[3] = replace(slurm.queue[3], reason="JobHeldUser")
    NiceOrder(slurm, tmp_path, ROOT).apply(*_mirrored(slurm, [3, 2, 1]))
    assert 3 not in {number for number, _ in slurm.writes}


def test_a_slurm_that_does_not_answer_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm({1: 500, 2: 400})
    before = dict(slurm.queue)
    nice = NiceOrder(slurm, tmp_path, ROOT)

    def late(job: int | str, changes: Mapping[str, str]) -> None:
        FakeSlurm.update_job(slurm, job, changes)
        raise SlurmTimeout("scontrol did not end within 20 s")

    with monkeypatch.context() as patch:
        patch.setattr(slurm, "update_job", late)
        assert "did not end" in nice.apply(*_mirrored(slurm, [2, 1])).unreachable
        assert "did not end" in nice.undo().unreachable
    assert NiceOrder(slurm, tmp_path, ROOT).undo().unreachable == ""
    assert slurm.queue == before


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(NiceError, match="another"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("text", ["{", '{"schema": "x"}', '{"schema": "sooner.advice.nice/1", "jobs": {"a": 1}}'])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "nice.json").write_text(text)
    with pytest.raises(NiceError, match=r"nice\.json"):
        NiceOrder(FakeSlurm({}), tmp_path, ROOT)


def test_the_file_says_what_was_before(tmp_path: Path) -> None:
    slurm = FakeSlurm({1: 500, 2: 400})
    slurm.set_nice(1, 4)
    NiceOrder(slurm, tmp_path, ROOT).apply(*_mirrored(slurm, [2, 1]))
    kept = json.loads((tmp_path / "nice.json").read_text())["jobs"]
    assert {number: each["before"] for number, each in kept.items()} == {"1": 4, "2": 0}


_JOBS = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(-50, 50), st.sampled_from(["main", "debug"])), min_size=1, max_size=12
)


@given(_JOBS, st.booleans())
def test_values_bring_any_queue_into_the_order(jobs: list[tuple[int, int, str]], operator: bool) -> None:
    waiting = [
        Waiting(number, group, priority + 1000, nice, nice if operator else abs(nice))
        for number, (priority, nice, group) in enumerate(jobs)
    ]
    found = values(waiting, operator)
    for group in ("main", "debug"):
        after = [job.priority + job.nice - found.get(job.id, job.nice) for job in waiting if job.group == group]
        assert all(one > other for one, other in pairwise(after))
        if operator and after:
            assert max(after) <= max(job.base for job in waiting if job.group == group)
    if not operator:
        assert all(nice >= 0 for nice in found.values())


def test_values_stay_within_their_bounds() -> None:
    waiting = [Waiting(1, "main", 10, 0, 0), Waiting(2, "main", 1_000_000, 0, 0)]
    assert all(abs(nice) <= 100 for nice in values(waiting, True, 100).values())
