"""The contracts of the ports beside :class:`service.engine.ports.Executor` that a live service needs of an executor.

Every executor of a live service subclasses :class:`LiveExecutorContract`. One that keeps files, takes progress over HTTP, or has
attempts that can outlive the service subclasses the contracts of those ports as well.
"""

from collections.abc import Callable
from typing import Protocol

import pytest

from policies.model.cluster import Cluster, Server
from policies.model.ids import AttemptId, JobId
from service.engine.commands import Launch, Stop
from service.engine.events import ReportKind
from service.engine.ports import Abilities, AttemptStatus, LiveExecutor
from tests.conformance.executor_suite import Watcher

FIRST, AGAIN, SECOND = AttemptId("1.1"), AttemptId("1.2"), AttemptId("2.1")


class LiveBench(Protocol):
    """A live executor with a way to let time pass."""

    executor: LiveExecutor
    cluster: Cluster
    """What the executor was made for."""

    def launch(self, attempt: AttemptId, *, ends: bool) -> Launch:
        """As :meth:`tests.conformance.executor_suite.Bench.launch`."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until the condition holds; fails if it never does."""

    def settle(self) -> None:
        """Let time pass until whatever was sent would have had its effect."""


class PrintingBench(LiveBench, Protocol):
    """Its attempts can print."""

    def launch_printing(self, attempt: AttemptId, text: str, *, ends: bool) -> Launch:
        """A job that prints the text at its start."""


class ProgressBench(LiveBench, Protocol):
    """Its attempts have tokens."""

    def token(self, attempt: AttemptId) -> str:
        """The token that a running attempt was given."""


class LeaseBench(LiveBench, Protocol):
    """Its attempts have a lease of ``lease_s``, renewed by ``renew_leases`` alone."""

    def miss_renewals(self) -> None:
        """Let the lease run out."""

    def renew_for_longer_than_the_lease(self) -> None:
        """Renew it until it would have run out without."""


class LiveExecutorContract:
    """What a service relies on, whatever an executor keeps."""

    @pytest.fixture
    def watcher(self, bench: LiveBench) -> Watcher:
        """A watcher on the bench."""
        return Watcher(bench)

    def test_there_is_no_log_of_what_never_ran(self, bench: LiveBench) -> None:
        with pytest.raises(KeyError):
            bench.executor.read_logs(JobId(77), 1, 0, 100)

    def test_there_is_no_log_of_a_server_that_the_attempt_does_not_have(
        self, bench: LiveBench, watcher: Watcher
    ) -> None:
        bench.executor.send([bench.launch(FIRST, ends=True)])
        watcher.until_ended(FIRST)
        with pytest.raises(KeyError):
            bench.executor.read_logs(JobId(1), 1, 0, 100, node=1)

    def test_its_abilities_and_its_host_do_not_change(self, bench: LiveBench, watcher: Watcher) -> None:
        before = (bench.executor.abilities, bench.executor.attempts_host)
        assert isinstance(before[0], Abilities)
        bench.executor.send([bench.launch(FIRST, ends=True)])
        watcher.until_ended(FIRST)
        assert (bench.executor.abilities, bench.executor.attempts_host) == before

    def test_servers_that_it_finds_have_gpus_and_names_of_their_own_in_order(self, bench: LiveBench) -> None:
        found = bench.executor.find_servers()
        if found is not None:
            assert all(each.server.gpus >= 1 for each in found)
            assert [each.server.name for each in found] == sorted({each.server.name for each in found})

    def test_a_wrong_token_opens_no_attempt(self, bench: LiveBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        for attempt, token in (
            (FIRST, "wrong"),
            (FIRST, ""),
            (AttemptId("77.1"), "wrong"),
            (AttemptId("../1"), "wrong"),
        ):
            with pytest.raises(PermissionError):
                bench.executor.accept_progress(attempt, token, {"iteration": 1})

    def test_attempts_run_on_while_their_lease_is_renewed(self, bench: LiveBench, watcher: Watcher) -> None:
        bench.executor.renew_leases()
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        bench.executor.renew_leases()
        bench.settle()
        watcher.look()
        assert bench.executor.observed()[FIRST] is AttemptStatus.RUNNING

    def test_jobs_are_pruned_any_number_of_times(self, bench: LiveBench, watcher: Watcher) -> None:
        assert bench.executor.prune([]) == bench.executor.prune([JobId(77)]) == 0
        assert bench.executor.jobs_with_files() == set()
        bench.executor.send([bench.launch(FIRST, ends=True)])
        watcher.until_ended(FIRST)
        watcher.acknowledge_end(FIRST)
        for _ in range(2):
            bench.executor.prune([JobId(1)])
        assert bench.executor.jobs_with_files() == set()
        bench.executor.send([bench.launch(FIRST, ends=True)])
        bench.settle()
        watcher.look()
        assert watcher.started == [FIRST], "a pruned attempt never runs again"

    def test_another_cluster_changes_no_attempt_that_runs(self, bench: LiveBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        bench.executor.use_cluster(Cluster("larger", (*bench.cluster.servers, Server("added", 4))))
        bench.executor.send([bench.launch(SECOND, ends=True)])
        assert watcher.until_ended(SECOND).exit_code == 0
        assert bench.executor.observed()[FIRST] is AttemptStatus.RUNNING


class AttemptLogsContract:
    """Logs of attempts; needs a :class:`PrintingBench`."""

    def test_logs_are_read_in_parts(self, bench: PrintingBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch_printing(FIRST, "0123456789", ends=True)])
        watcher.until_ended(FIRST)
        read = bench.executor.read_logs
        whole = read(JobId(1), 1, 0, 100)
        assert (whole.data.rstrip(), whole.cut_bytes) == (b"0123456789", 0)
        assert whole.next_offset == whole.size_bytes == len(whole.data)
        part = read(JobId(1), 1, 2, 3)
        assert (part.data, part.next_offset, part.size_bytes) == (b"234", 5, whole.size_bytes)
        assert read(JobId(1), 1, -3, 100).data == whole.data[-3:]
        assert read(JobId(1), 1, -1000, 4).data == b"0123"
        beyond = read(JobId(1), 1, 1000, 100)
        assert (beyond.data, beyond.next_offset) == (b"", whole.size_bytes)

    def test_each_attempt_has_a_log(self, bench: PrintingBench, watcher: Watcher) -> None:
        for attempt, text in ((FIRST, "first"), (AGAIN, "second")):
            bench.executor.send([bench.launch_printing(attempt, text, ends=True)])
            watcher.until_ended(attempt)
        assert bench.executor.read_logs(JobId(1), 2, 0, 100).data.startswith(b"second")
        assert bench.executor.read_logs(JobId(1), 1, 0, 100).data.startswith(b"first")
        with pytest.raises(KeyError):
            bench.executor.read_logs(JobId(1), 3, 0, 100)


class AttemptFilesContract:
    """Files that attempts leave; needs a :class:`PrintingBench`."""

    def test_files_stay_until_the_end_is_acknowledged_and_the_job_is_pruned(
        self, bench: PrintingBench, watcher: Watcher
    ) -> None:
        assert bench.executor.keeps_files
        bench.executor.send([bench.launch_printing(FIRST, "text", ends=True)])
        watcher.until_ended(FIRST)
        assert bench.executor.prune([JobId(1)]) == 0, "the end is not acknowledged"
        assert bench.executor.jobs_with_files() == {JobId(1)}
        watcher.acknowledge_end(FIRST)
        assert bench.executor.prune([JobId(1), JobId(2)]) == 1
        assert bench.executor.jobs_with_files() == set()
        assert bench.executor.read_logs(JobId(1), 1, 0, 100).data == b""


class ProgressInputContract:
    """Progress over HTTP; needs a :class:`ProgressBench`."""

    def test_a_line_comes_back_as_a_report(self, bench: ProgressBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        token = bench.token(FIRST)
        assert bench.executor.accept_progress(FIRST, token, {"iteration": 3, "loss": 0.5, "input_s": 0.25})
        assert not bench.executor.accept_progress(FIRST, token, {"iteration": -1})
        with pytest.raises(PermissionError):
            bench.executor.accept_progress(SECOND, token, {"iteration": 4})
        found: list[tuple[float | None, ...]] = []

        def reported() -> bool:
            progress = [report for report in watcher.look() if report.kind is ReportKind.PROGRESS]
            found.extend((report.iteration, report.loss, report.input_s) for report in progress)
            return bool(found)

        bench.until(reported)
        assert found[0] == (3.0, 0.5, 0.25)

    def test_an_attempt_that_has_ended_takes_nothing(self, bench: ProgressBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        token = bench.token(FIRST)
        bench.executor.send([Stop(FIRST, graceful=False, grace_s=5.0)])
        watcher.until_ended(FIRST)
        with pytest.raises(PermissionError):
            bench.executor.accept_progress(FIRST, token, {"iteration": 5})


class AttemptLeasesContract:
    """Attempts that can outlive the service; needs a :class:`LeaseBench`."""

    def test_without_renewals_attempts_end_by_themselves(self, bench: LeaseBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        bench.miss_renewals()
        assert watcher.until_ended(FIRST).stop_signalled

    def test_with_renewals_attempts_run_on(self, bench: LeaseBench, watcher: Watcher) -> None:
        bench.executor.send([bench.launch(FIRST, ends=False)])
        watcher.until_started(FIRST)
        bench.renew_for_longer_than_the_lease()
        watcher.look()
        assert bench.executor.observed()[FIRST] is AttemptStatus.RUNNING
