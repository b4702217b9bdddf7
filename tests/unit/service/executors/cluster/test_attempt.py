"""What follows from the folder of one attempt and the answers of the engine, with a clock that the tests set."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.model.ids import AttemptId, ServerIndex
from policies.model.reasons import Reason
from service.engine.events import ReportKind
from service.engine.ports import AttemptStatus
from service.executors import folder as names
from service.executors.cluster import folder as shared
from service.executors.cluster.attempt import START_S, STUCK_S, ClusterAttempt
from service.executors.cluster.driver import EngineEnd, EngineJob, EngineJobState
from service.executors.cluster.shared import LAUNCH, AttemptFolder, LaunchRecord
from service.executors.cluster.submissions import Submissions
from service.executors.cluster.surroundings import MARGIN_S, Dropped, StopOrder, Surroundings
from service.executors.files import write_json
from service.executors.seal import Seal
from tests.local_executor import launch

ATTEMPT = AttemptId("1.1")
LEASE_S = 60.0
GRACE_S = 300.0


class Bench:
    """An attempt on server ``a`` with a launch record. ``now_s``: both clocks.

    ``before_fence``: what another service does just before this one holds the fence.
    """

    def __init__(self, attempts: Path) -> None:
        self.now_s = 1000.0
        self.before_fence: Callable[[], object] = lambda: None
        self.attempts = attempts
        self.inbox = shared.make_inbox(attempts, ATTEMPT)
        self.folder = AttemptFolder(attempts / ATTEMPT, Seal("key"))
        self.folder.write_launch(LaunchRecord(("a",), shared.INBOX, None, GRACE_S))
        around = Surroundings(
            engine="the engine",
            now_s=lambda: self.now_s,
            elapsed_s=lambda: self.now_s,
            prepare=lambda launch: pytest.fail(f"{launch.attempt} is prepared already"),
            open=lambda attempt: shared.make_inbox(attempts, attempt),
            close=lambda attempt: None,
            fenced=self.fenced,
            call=lambda attempt: None,
            ask=lambda: None,
            position=lambda name: ServerIndex("abc".index(name)),
            running_pause_s=lambda: 1.0,
            exact_gpus=True,
            lease_s=LEASE_S,
            poll_s=1.0,
        )
        self.attempt = ClusterAttempt(ATTEMPT, self.folder, around)

    @contextlib.contextmanager
    def fenced(self, token: int) -> Iterator[None]:
        """The fence of token 0 alone."""
        self.before_fence()
        if token < 0:
            raise Dropped(refused=True)
        yield

    def forget_launch(self) -> None:
        """No service has prepared the launch."""
        (self.folder.path / LAUNCH).unlink()

    def write_launch(self, inbox: str, *submissions: str | None) -> None:
        """Another service prepares the launch, and has submitted it."""
        shared.make_inbox(self.attempts, ATTEMPT, inbox)
        self.folder.write_launch(LaunchRecord(("a",), inbox, None, GRACE_S, submissions))

    def answer(self, *jobs: EngineJob) -> None:
        """The engine answers now with these submissions."""
        self.attempt.observe(jobs, self.now_s)

    def look_at(self, now_s: float) -> None:
        """Let time pass, and look."""
        self.now_s = now_s
        self.attempt.look()


def job(
    engine_id: str, state: EngineJobState, end: EngineEnd | None = None, *, user: str | None = None, stuck: str = ""
) -> EngineJob:
    return EngineJob(engine_id, ATTEMPT, state, ("a",), {}, end, user=user, stuck=stuck)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_part_whose_lease_was_not_renewed_was_lost_with_its_server(bench: Bench) -> None:
    shared.claim(bench.inbox, "a launch")
    node = names.make_private(shared.node_folder(bench.inbox, 0))
    record = names.end_record("lost", 1000.0, exit_code=143, stop_signalled=True, server="a")
    write_json(node / names.EXIT, Seal("key").sealed(names.EXIT, record))
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.COMPLETED))
    bench.look_at(1001.0)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.server) == (ReportKind.LOST, 0)


def test_a_lost_server_has_the_grace_period_of_the_launch_although_a_stop_has_a_shorter_one(bench: Bench) -> None:
    shared.claim(bench.inbox, "a launch")
    bench.attempt.order_stop(StopOrder(None, 0.0, 0))
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.NODE_FAILED))
    bench.look_at(1001.0)
    limit_s = 1001.0 + LEASE_S + 2.0 * GRACE_S + MARGIN_S
    bench.look_at(limit_s - 0.1)
    assert bench.attempt.end is None, "its processes may still have their grace period"
    bench.look_at(limit_s)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.server) == (ReportKind.LAUNCH_FAILED, 0)


@pytest.mark.parametrize("never", [False, True])
def test_a_submit_that_returns_during_a_look_is_not_overlooked(bench: Bench, never: bool) -> None:
    class ReturnsWhenRead(Submissions):
        """The submit returns just after the submissions were read."""

        @property
        def alive(self) -> list[str]:
            found = super().alive
            self.add("7", bench.now_s)
            bench.attempt.submitting = False
            return found

    bench.attempt.submissions = ReturnsWhenRead()
    bench.attempt.submitting = True
    if never:
        shared.claim(bench.inbox, shared.STOPPED)
    bench.look_at(1001.0)
    assert bench.attempt.end is None, "its submission waits in the engine"
    assert bench.attempt.never is never


def test_submissions_that_all_wait_in_an_answer_are_kept_although_one_has_begun(bench: Bench) -> None:
    bench.answer(job("7", EngineJobState.PENDING), job("8", EngineJobState.PENDING))
    shared.claim(bench.inbox, "a launch")
    bench.look_at(1001.0)
    bench.now_s = 1002.0
    bench.answer(job("7", EngineJobState.PENDING), job("8", EngineJobState.PENDING))
    bench.look_at(1002.0)
    assert bench.attempt.to_cancel == frozenset(), "one of them runs"
    bench.now_s = 1003.0
    bench.answer(job("7", EngineJobState.RUNNING), job("8", EngineJobState.PENDING))
    bench.look_at(1003.0)
    assert bench.attempt.to_cancel == {"8"}


def test_an_attempt_that_its_server_does_not_take_is_lost_with_the_server(bench: Bench) -> None:
    bench.answer(job("7", EngineJobState.PENDING))
    bench.look_at(1000.0 + START_S - 0.1)
    assert not bench.attempt.never
    bench.look_at(1000.0 + START_S)
    assert (bench.attempt.never, bench.attempt.to_cancel) == (True, {"7"})
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.CANCELLED))
    bench.look_at(1000.0 + START_S + 1.0)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.server, end.reason) == (ReportKind.LOST, 0, Reason.NODE_LOST), "so it uses up no retry"
    assert end.detail == "the engine has not started it for 120 s"


def test_an_attempt_that_can_never_start_is_a_failed_launch(bench: Bench) -> None:
    bench.answer(job("7", EngineJobState.PENDING, stuck="its QOS may not be used here"))
    bench.look_at(1001.0)
    bench.look_at(1001.0 + STUCK_S - 0.1)
    assert not bench.attempt.never
    bench.look_at(1001.0 + STUCK_S)
    assert (bench.attempt.never, bench.attempt.to_cancel) == (True, {"7"})
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.CANCELLED))
    bench.look_at(1001.0 + STUCK_S + 1.0)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.server, end.reason) == (ReportKind.LAUNCH_FAILED, None, Reason.LAUNCH_FAILED)
    assert end.detail == "the engine will never start it: its QOS may not be used here"


def test_a_reason_to_wait_for_ever_that_passes_ends_no_attempt(bench: Bench) -> None:
    for at_s, stuck in ((1000.0, "it is held"), (1010.0, ""), (1011.0, "it is held")):
        bench.now_s = at_s
        bench.answer(job("7", EngineJobState.PENDING, stuck=stuck))
        bench.look_at(at_s)
    bench.look_at(1011.0 + STUCK_S - 0.1)
    assert not bench.attempt.never
    bench.answer(job("7", EngineJobState.RUNNING))
    bench.look_at(1011.0 + STUCK_S)
    assert not bench.attempt.never


def test_what_another_user_submits_in_the_name_of_an_attempt_is_not_of_it(bench: Bench) -> None:
    bench.folder.write_launch(LaunchRecord(("a",), shared.INBOX, None, GRACE_S, (None,), "ada"))
    bench.answer(job("6", EngineJobState.RUNNING, user="mallory"))
    bench.look_at(1001.0)
    bench.now_s = 1002.0
    bench.answer(job("7", EngineJobState.RUNNING, user="mallory"), job("8", EngineJobState.RUNNING, user="ada"))
    assert bench.attempt.submissions.ids == ["8"]


def test_a_launch_takes_over_what_another_leader_has_prepared_meanwhile(bench: Bench) -> None:
    inbox = "nodes-of-the-former-leader"
    bench.forget_launch()
    bench.before_fence = lambda: bench.write_launch(inbox, "7", None)
    bench.attempt.launch = launch(("true",))
    bench.look_at(1001.0)
    assert bench.attempt.record == LaunchRecord(("a",), inbox, None, GRACE_S, ("7", None))
    assert bench.attempt.submissions.ids == ["7"]
    assert not bench.attempt.submissions.certain, "another one may be on its way"
    assert not bench.attempt.to_submit


def test_a_stop_closes_the_folder_that_another_leader_has_prepared_meanwhile(bench: Bench) -> None:
    bench.forget_launch()
    bench.before_fence = lambda: bench.write_launch("nodes-of-the-former-leader")
    bench.attempt.order_stop(StopOrder(None, 1.0, 0))
    bench.look_at(1001.0)
    inbox = bench.attempts / ATTEMPT / "nodes-of-the-former-leader"
    assert shared.claimed(inbox) == shared.STOPPED
    assert shared.read_stop(inbox, bench.folder.seal) == (None, 1.0)


@pytest.mark.parametrize("command", ["launch", "stop"])
def test_a_former_leader_writes_nothing(bench: Bench, command: str) -> None:
    bench.forget_launch()
    if command == "launch":
        bench.attempt.launch = launch(("true",), fencing_token=-1)
    else:
        bench.attempt.order_stop(StopOrder(None, 1.0, -1))
    with pytest.raises(Dropped) as drop:
        bench.attempt.look()
    assert drop.value.refused
    assert list(bench.inbox.iterdir()) == []
    assert list(bench.folder.path.iterdir()) == [bench.inbox]


@pytest.mark.parametrize("prepared", [True, False])
def test_a_stop_that_a_full_disk_has_interrupted_claims_the_attempt_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    if not prepared:
        bench.forget_launch()
    with monkeypatch.context() as full:
        full.setattr(shared, "claim", lambda inbox, word: no_space())
        bench.attempt.order_stop(StopOrder(None, 1.0, 0))
        bench.look_at(1001.0)
    assert (shared.read_stop(bench.inbox, bench.folder.seal), bench.attempt.end) == ((None, 1.0), None)
    bench.answer()
    bench.look_at(1002.0)
    assert_never_ran(bench)


@pytest.mark.parametrize("submitted", [True, False])
def test_a_stop_that_a_dead_service_has_only_written_claims_the_attempt_when_it_is_ordered_again(
    bench: Bench, submitted: bool
) -> None:
    if submitted:
        bench.write_launch(shared.INBOX, "7")
        bench.answer(job("7", EngineJobState.PENDING))
    else:
        bench.forget_launch()
    shared.write_stop(bench.inbox, None, 1.0, bench.folder.seal)
    bench.before_fence = lambda: pytest.fail("no leader has ordered it here, so there is no token")
    bench.look_at(1001.0)
    assert (bench.attempt.status, bench.attempt.never) == (AttemptStatus.STOPPING, False)
    bench.before_fence = lambda: None
    bench.attempt.order_stop(StopOrder(None, 1.0, 0))
    bench.look_at(1002.0)
    if submitted:
        assert (bench.attempt.never, bench.attempt.to_cancel) == (True, {"7"})
        bench.answer(job("7", EngineJobState.ENDED, EngineEnd.CANCELLED))
        bench.look_at(1003.0)
    assert_never_ran(bench)


def test_a_stop_that_comes_too_late_to_claim_the_attempt_is_carried_out_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.claim(bench.inbox, "a launch")
    bench.answer(job("7", EngineJobState.RUNNING))
    fenced: list[float] = []
    bench.before_fence = lambda: fenced.append(bench.now_s)
    monkeypatch.setattr(shared, "claim", lambda inbox, word: no_space())
    for now_s in (1001.0, 1002.0, 1003.0):
        bench.attempt.order_stop(StopOrder(None, 1.0, 0))
        bench.look_at(now_s)
    assert (fenced, bench.attempt.never) == ([1001.0], False)
    bench.look_at(1001.0 + 1.0 + MARGIN_S)
    assert bench.attempt.to_cancel == frozenset()
    bench.look_at(1001.5 + 1.0 + MARGIN_S)
    assert bench.attempt.to_cancel == {"7"}, "the time for it counts from the first look"


@pytest.mark.parametrize(
    ("code", "stopped", "reason", "detail"),
    [
        (137, False, Reason.OUT_OF_MEMORY, "the engine has ended it; rank 0: exit code 137"),
        (137, True, None, "rank 0: exit code 137"),
        (75, False, None, ""),
        (0, False, None, ""),
    ],
)
def test_an_attempt_that_has_used_too_much_memory(
    bench: Bench, code: int, stopped: bool, reason: Reason | None, detail: str
) -> None:
    ran(bench, code)
    if stopped:
        bench.attempt.order_stop(StopOrder(None, 1.0, 0))
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.OUT_OF_MEMORY))
    bench.look_at(1002.0)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.exit_code, end.reason, end.detail) == (ReportKind.EXITED, code, reason, detail)


def test_a_supervisor_that_has_ended_with_a_program_that_used_too_much_memory(bench: Bench) -> None:
    ran(bench, None)
    bench.answer(job("7", EngineJobState.ENDED, EngineEnd.OUT_OF_MEMORY))
    bench.look_at(1002.0)
    bench.look_at(1020.0)
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.reason, end.server) == (ReportKind.LOST, Reason.OUT_OF_MEMORY, None)


def ran(bench: Bench, code: int | None) -> None:
    """The attempt has started, and its node has recorded an exit code."""
    shared.claim(bench.inbox, "a launch")
    folder, seal = shared.node_folder(bench.inbox, 0), bench.folder.seal
    folder.mkdir()
    write_json(folder / names.STARTED, seal.sealed(names.STARTED, {"at_s": 1000.5}))
    if code is not None:
        told = f"rank 0: exit code {code}" if code not in (0, 75) else ""
        end = names.end_record("exited", 1001.0, exit_code=code, detail=told)
        write_json(folder / names.EXIT, seal.sealed(names.EXIT, end))
    bench.answer(job("7", EngineJobState.RUNNING))
    bench.look_at(1001.0)


def no_space() -> str:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def assert_never_ran(bench: Bench) -> None:
    end = bench.attempt.end
    assert end is not None
    assert (end.kind, end.detail, end.stop_signalled) == (ReportKind.EXITED, names.STOPPED_FIRST, True)
    assert shared.claimed(bench.inbox) == shared.STOPPED
