"""Servers that an executor reports: added, down, up, drained, returned; and the GPUs that attempts really get."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Server
from policies.model.ids import ServerIndex
from service.engine.cycle import EngineSettings
from service.engine.events import Report, ReportKind, RequestKind, ServerEventKind
from service.engine.ports import CycleBatch
from service.engine.record import ServerRecord
from tests.scenarios.dsl import Story, cluster, policy

FIRST, SECOND = ServerIndex(0), ServerIndex(1)


def says(story: Story, kind: ReportKind, server: ServerIndex = FIRST, detail: str = "") -> Story:
    return story.says(Report(kind, story.clock.now_s(), server=server, detail=detail))


def events(story: Story) -> list[tuple[int, str, str]]:
    """All changes of servers that were committed, without cycles and times."""
    seen: list[tuple[int, str, str]] = []
    commit = story.memory.commit

    def noting(batch: CycleBatch):  # type: ignore[no-untyped-def]
        seen.extend((int(event.server), event.kind.value, event.detail) for event in batch.server_events)
        return commit(batch)

    story.memory.commit = noting  # type: ignore[method-assign]
    return seen


def test_a_server_that_the_engine_drains_gets_no_new_job_until_it_returns() -> None:
    story = cluster("1x4", policy("fifo"))
    seen = events(story)
    story.job("stays", gpus=2, runs_s=100).until(0).starts("stays")
    says(story, ReportKind.SERVER_DRAINED, detail="disk is replaced").job("next", gpus=2, at_s=1).until(1).starts()
    assert story.engine.world.servers[FIRST] == ServerRecord(engine_drained=True, detail="disk is replaced")
    says(story, ReportKind.SERVER_RETURNED).until(2).starts("next")
    assert story.engine.world.servers[FIRST] == ServerRecord()
    assert seen == [(0, "engine_drained", "disk is replaced"), (0, "engine_returned", "")]


@pytest.mark.parametrize("engine_first", [True, False])
def test_neither_side_ends_the_drain_of_the_other(engine_first: bool) -> None:
    story = cluster("1x4", policy("fifo")).until(0)
    says(story, ReportKind.SERVER_DRAINED).drain(0).job("waits", at_s=1).until(1).starts()
    if engine_first:
        says(story, ReportKind.SERVER_RETURNED).until(2).starts()
        story.resume(0).until(3).starts("waits")
    else:
        story.resume(0).until(2).starts()
        says(story, ReportKind.SERVER_RETURNED).until(3).starts("waits")


def test_a_server_that_is_up_again_stays_drained() -> None:
    story = cluster("1x4", policy("fifo")).until(0)
    says(story, ReportKind.SERVER_DRAINED, detail="disk").until(1)
    says(story, ReportKind.SERVER_DOWN, detail="no answer").until(2)
    assert story.engine.world.servers[FIRST].detail == "no answer"
    says(story, ReportKind.SERVER_UP).job("waits", at_s=3).until(3).starts()
    assert story.engine.world.servers[FIRST].engine_drained
    says(story, ReportKind.SERVER_RETURNED).until(4).starts("waits")


def test_a_repeated_report_changes_nothing_and_a_new_reason_is_kept() -> None:
    story = cluster("1x4", policy("fifo")).until(0)
    seen = events(story)
    for _ in range(3):
        says(story, ReportKind.SERVER_DOWN, detail="no answer").until(story.clock.now_s() + 1)
    says(story, ReportKind.SERVER_DOWN, detail="kernel panic").until(9)
    assert seen == [(0, "down", "no answer"), (0, "down", "kernel panic")]
    assert not story.wire.said, "all are acknowledged"


def test_reports_of_servers_outlive_a_restart() -> None:
    story = cluster("2x4", policy("fifo")).until(0)
    says(story, ReportKind.SERVER_DRAINED, FIRST, "disk")
    says(story, ReportKind.SERVER_DOWN, SECOND, "no answer").until(1).restart()
    assert story.engine.world.servers == [
        ServerRecord(engine_drained=True, detail="disk"),
        ServerRecord(down=True, detail="no answer"),
    ]
    story.job("waits", at_s=2).until(2).starts()


def test_a_server_that_the_executor_finds_is_added_once_and_takes_work_once_it_is_up() -> None:
    story = cluster("1x2", policy("asrpt"))
    seen = events(story)
    story.job("one", gpus=2, runs_s=100).job("two", gpus=2, runs_s=200).until(0).starts("one")
    for _ in range(2):
        story.says(Report(ReportKind.SERVER_ADDED, story.clock.now_s(), server_spec=Server("found", 2)))
        story.until(story.clock.now_s() + 5).starts()
    says(story, ReportKind.SERVER_UP, SECOND).until(story.clock.now_s() + 5).starts("two").on("two", 1)
    assert [server.name for server in story.engine.world.cluster.servers] == ["s0", "found"]
    assert seen == [(1, "added", ""), (1, "up", "")]
    story.restart()
    assert [server.name for server in story.engine.world.cluster.servers] == ["s0", "found"]


def test_a_request_for_a_server_that_was_just_found_adds_no_second_one() -> None:
    story = cluster("1x2", policy("fifo")).until(0)
    story.says(Report(ReportKind.SERVER_ADDED, 0.0, server_spec=Server("n1", 8)))
    story.add_server(2).until(1)
    assert [(server.name, server.gpus) for server in story.engine.world.cluster.servers] == [("s0", 2), ("n1", 8)]


def test_a_report_of_a_server_that_the_cluster_does_not_have_is_acknowledged() -> None:
    story = cluster("1x2", policy("fifo")).until(0)
    says(story, ReportKind.SERVER_DOWN, ServerIndex(7)).until(1)
    assert not story.wire.said


def test_drains_and_resumes_of_an_operator_are_events_too() -> None:
    story = cluster("1x2", policy("fifo")).until(0)
    seen = events(story)
    story.drain(0).until(1).resume(0).until(2)
    assert seen == [(0, ServerEventKind.DRAINED.value, ""), (0, ServerEventKind.RESUMED.value, "")]


def test_a_drain_of_a_drained_server_and_a_resume_of_another_one_are_no_events() -> None:
    story = cluster("2x2", policy("fifo")).until(0)
    seen = events(story)
    story.resume(1).until(1).drain(0).drain(0).until(2).drain(0).until(3).resume(0).resume(0).until(4)
    assert seen == [(0, ServerEventKind.DRAINED.value, ""), (0, ServerEventKind.RESUMED.value, "")]
    assert not story.memory.pending_requests(10)
    seen.clear()
    unhealthy(story, 0, "Xid 79", drain=True).until(5)
    story.drain(0).until(6).drain(0).until(7)
    assert seen[-2:] == [(0, "drained", "Xid 79"), (0, "drained", "")], "an operator takes over the drain for a fault"


def test_the_gpus_that_an_attempt_got_are_stored_with_it_and_take_no_other_jobs_gpus() -> None:
    story = cluster("1x4", policy("fifo")).job("a", gpus=2, runs_s=100).until(0)
    got = Report(ReportKind.STARTED, 0.0, story.attempt("a"), gpu_ids=((2, 3),))
    story.says(got).until(1)
    attempt = story.record("a").attempt
    assert attempt is not None and (attempt.gpu_ids, attempt.got_gpu_ids) == (((0, 1),), ((2, 3),))
    story.job("b", gpus=2, runs_s=10, at_s=1).until(1).starts("b").restart()
    attempt = story.record("a").attempt
    assert attempt is not None and attempt.got_gpu_ids == ((2, 3),)
    story.until(200).finishes("b", "a")


def test_the_gpus_that_an_attempt_got_stay_although_its_start_is_reported_again_with_others() -> None:
    """After a restart an executor may have only the names that the program saw, which count from zero in a device cgroup."""
    story = cluster("1x4", policy("fifo")).job("a", gpus=2, runs_s=100).until(0)
    got = Report(ReportKind.STARTED, 0.0, story.attempt("a"), gpu_ids=((2, 3),))
    story.says(got).until(1).restart()
    story.says(replace(got, gpu_ids=((0, 1),))).until(2)
    attempt = story.record("a").attempt
    assert attempt is not None and attempt.got_gpu_ids == ((2, 3),)


def test_gpus_that_are_not_as_many_as_launched_are_not_believed() -> None:
    story = cluster("1x4", policy("fifo")).job("a", gpus=2, runs_s=100).until(0)
    report = Report(ReportKind.STARTED, 0.0, story.attempt("a"), gpu_ids=((1,),))
    story.says(report).says(replace(report, gpu_ids=((1, 2), (0,)))).until(1)
    attempt = story.record("a").attempt
    assert attempt is not None and attempt.got_gpu_ids is None


def unhealthy(story: Story, server: int, reason: str, drain: bool) -> Story:
    """A sign of a fault, as the service notes it."""
    return story._fact(RequestKind.SERVER_UNHEALTHY, server=ServerIndex(server), note=reason, drain=drain)


def test_a_sign_of_a_fault_is_an_event_and_drains_only_if_that_is_wanted() -> None:
    story = cluster("2x4", policy("fifo")).until(0)
    seen = events(story)
    unhealthy(story, 0, "Xid 79", drain=False).until(1)
    assert story.engine.world.servers[FIRST] == ServerRecord()
    unhealthy(story, 0, "Xid 79", drain=True).until(2)
    assert story.engine.world.servers[FIRST] == ServerRecord(drained=True, health_reason="Xid 79")
    unhealthy(story, 0, "Xid 94", drain=True).job("a", gpus=4, at_s=3).until(3).on("a", 1)
    assert story.engine.world.servers[FIRST].health_reason == "Xid 79", "the reason of the drain stays"
    story.resume(0).until(4)
    assert story.engine.world.servers[FIRST] == ServerRecord()
    assert [(kind, detail) for _, kind, detail in seen] == [
        ("unhealthy", "Xid 79"),
        ("unhealthy", "Xid 79"),
        ("drained", "Xid 79"),
        ("unhealthy", "Xid 94"),
        ("resumed", ""),
    ]


def test_an_operators_drain_replaces_that_of_the_service() -> None:
    story = cluster("2x4", policy("fifo")).until(0)
    unhealthy(story, 0, "Xid 79", drain=True).drain(0).until(1)
    assert story.engine.world.servers[FIRST] == ServerRecord(drained=True)


@pytest.mark.parametrize(
    ("servers", "down", "least", "drained"), [(4, 0, 0.5, 2), (4, 2, 0.5, 1), (10, 0, 0.8, 2), (1, 0, 0.0, 0)]
)
def test_signs_of_faults_never_drain_the_last_servers(servers: int, down: int, least: float, drained: int) -> None:
    story = cluster(f"{servers}x1", policy("fifo"), settings=EngineSettings(usable_servers_min=least)).until(0)
    seen = events(story)
    for server in range(servers - down, servers):
        says(story, ReportKind.SERVER_DOWN, ServerIndex(server))
    for server in range(servers - down):
        unhealthy(story, server, "Xid 79", drain=True).until(1 + server)
    assert [record.drained for record in story.engine.world.servers] == [index < drained for index in range(servers)]
    refused = [detail for _, kind, detail in seen if kind == "unhealthy" and "not drained" in detail]
    assert len(refused) == servers - down - drained


@given(
    signs=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=30), least=st.floats(0.0, 1.0)
)
@settings(max_examples=50, deadline=None)
def test_whatever_is_reported_enough_servers_stay_usable(signs: list[tuple[int, bool, bool]], least: float) -> None:
    """Without drains by operators, the share of usable servers never falls below the limit, nor their number below one."""
    story = cluster("5x1", policy("fifo"), settings=EngineSettings(usable_servers_min=least)).until(0)
    for at_s, (server, drain, resume) in enumerate(signs, start=1):
        story.resume(server) if resume else unhealthy(story, server, "sign", drain)
        story.until(at_s)
        usable = sum(record.usable for record in story.engine.world.servers)
        assert usable >= max(1, least * 5)
