"""The driver of Slurm on scripted answers: what it asks, and what it makes of each state and end.

``tests/engines`` has the same driver on a real Slurm.
"""

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import AttemptId
from service.config.settings import load_settings
from service.executors.cluster.driver import (
    EngineEnd,
    EngineJob,
    EngineJobState,
    EngineNotNow,
    EngineRefused,
    EngineUnavailable,
    NodeLaunch,
    NodeShare,
    NodeState,
)
from service.executors.cluster.slurm import SlurmDriver, SlurmOptions, slurm_driver
from service.slurm.cluster import Slurm
from service.slurm.commands import SlurmAway, SlurmMissing, SlurmNotNow, SlurmRefused
from service.slurm.jobs import ENDED_STATES
from tests.local_executor import wait_for
from tests.scripted_slurm import Scripted, node, row


@pytest.fixture
def commands() -> Scripted:
    return Scripted()


def driver(commands: Scripted, **options: Any) -> SlurmDriver:
    return SlurmDriver(Slurm(commands), "c1", SlurmOptions(**options))


def launch(*shares: tuple[str, int], plan: bytes = b"{}", user: str | None = None) -> NodeLaunch:
    nodes = tuple(NodeShare(*share) for share in shares or (("n1", 1),))
    return NodeLaunch(AttemptId("7.2"), nodes, ("python3", "-c", "it's $HOME"), plan, user)


def test_what_is_submitted(commands: Scripted) -> None:
    assert driver(commands, account="ml").submit(launch(("n2", 2), ("n1", 2))) == "77"
    assert commands.last("sbatch") == (
        "--parsable", "--job-name=sooner-7.2", "--comment=sooner:c1:7.2", "--no-requeue", "--export=ALL", "--propagate=NONE",
        "--chdir=/", "--input=/dev/null", "--output=/dev/null", "--error=/dev/null", "--time=UNLIMITED", "--partition=main",
        "--account=ml", "--nodes=2", "--nodelist=n2,n1", "--ntasks-per-node=1", "--cpus-per-task=32", "--mem=500M",
        "--gres=gpu:a100:2",
    )  # fmt: skip


def test_what_a_job_asks_for_beside_gpus(commands: Scripted) -> None:
    share = NodeShare("n1", 1, cpus=3, memory_mib=700)
    driver(commands).submit(NodeLaunch(AttemptId("7.2"), (share,), ("python3",), b"{}"))
    assert {"--cpus-per-task=3", "--mem=700M"} <= set(commands.last("sbatch"))


PLAN = b"$(id) `id` 'quoted' \\ \n" + b"x" * 100_000
SHOW = '#!/bin/sh\nprintf "%s\\n" "$SOONER_LAUNCH" "$SOONER_NODE" "$@"\necho END\ncat\n'
"""A program that shows its environment, its arguments and its input."""


def run_script(script: bytes) -> tuple[list[str], bytes]:
    """What :data:`SHOW` in the script shows: word, name of the node and arguments; its input."""
    environ = {"SLURMD_NODENAME": "n1"}
    done = subprocess.run(["/bin/sh"], input=script, capture_output=True, check=True, env=environ)
    shown, _, given = done.stdout.partition(b"\nEND\n")
    return shown.decode().splitlines(), given


def test_the_script_gives_srun_the_plan_and_the_program_unread_by_the_shell(commands: Scripted, tmp_path: Path) -> None:
    several = launch(("n1", 1), ("n2", 1), plan=PLAN)
    driver(commands).submit(several)
    (tmp_path / "srun").write_text(SHOW)
    (tmp_path / "srun").chmod(0o755)
    (word, _, *arguments), given = run_script(
        commands.script.replace(b"/opt/slurm/bin/srun", str(tmp_path / "srun").encode())
    )
    assert len(word) == 32
    assert arguments[-4:] == ["sooner", "python3", "-c", "it's $HOME"]
    assert arguments[-6:-4] == ["-c", 'SOONER_NODE=$SLURMD_NODENAME; export SOONER_NODE; exec "$@"']
    assert "--kill-on-bad-exit=1" in arguments and "--wait=0" in arguments
    assert given == PLAN + b"\n"
    driver(commands).submit(several)
    assert word.encode() not in commands.script


def test_on_one_node_the_script_becomes_the_program(
    commands: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "it's $HOME"
    program.write_text(SHOW)
    program.chmod(0o755)
    submitter = driver(commands)
    configure(submitter, monkeypatch, {"PreemptMode": "OFF"})
    submitter.submit(replace(launch(plan=PLAN), program=(str(program), "`id`")))
    (word, *shown), given = run_script(commands.script)
    assert len(word) == 32 and shown == ["n1", "`id`"]
    assert given == PLAN + b"\n"
    assert b"srun" not in commands.script


@pytest.mark.parametrize(
    "config",
    [
        {"PreemptMode": "OFF", "TaskProlog": "/etc/slurm/task.sh"},
        {"PreemptMode": "OFF", "TaskEpilog": "/etc/slurm/task.sh"},
        {"PreemptMode": "REQUEUE"},
        {"PreemptMode": "GANG,SUSPEND"},
        {},
        None,
    ],
    ids=["prolog", "epilog", "preemption", "suspension", "not named", "not read"],
)
def test_what_slurm_does_for_steps_alone_needs_srun(
    commands: Scripted, config: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs programs of its own for tasks, and warns steps at the begin of a preemption."""
    one = driver(commands)
    if config is not None:
        configure(one, monkeypatch, config)
    one.submit(launch())
    assert b"\nexec /opt/slurm/bin/srun " in commands.script


def configure(one: SlurmDriver, monkeypatch: pytest.MonkeyPatch, config: dict[str, str]) -> None:
    """Have the driver read this configuration."""
    monkeypatch.setattr(Slurm, "version", lambda _: "22.05.8")
    monkeypatch.setattr(Slurm, "config", lambda _: config)
    one.check()


def test_a_share_of_processors_is_of_whole_cores(commands: Scripted) -> None:
    """Three processors of one GPU out of four would be rounded up to four by Slurm: 4 x 4 do not fit into 12."""
    commands.node_rows = [node("n1", cpus=12), node("n2", cpus=16, real_memory=800, gres="gpu:8")]
    driver(commands).submit(launch(("n1", 1)))
    assert "--cpus-per-task=2" in commands.last("sbatch")
    driver(commands).submit(launch(("n1", 1), ("n2", 1)))
    arguments = commands.last("sbatch")
    assert "--cpus-per-task=2" in arguments and "--mem=100M" in arguments


def test_gpus_without_a_type(commands: Scripted) -> None:
    commands.node_rows = [node("n1", gres="gpu:4")]
    one = driver(commands)
    assert [found.server.gpu_type for found in one.nodes()] == ["gpu"]
    one.submit(launch())
    assert "--gres=gpu:1" in commands.last("sbatch")


def test_the_partitions_limit_is_the_jobs_limit(commands: Scripted) -> None:
    commands.limit = "1-00:00:00"
    driver(commands).submit(launch())
    assert "--time=1440" in commands.last("sbatch")


def test_extra_options_come_last_in_every_part(commands: Scripted) -> None:
    driver(commands, uneven_gangs=True, extra_args=("--mem=0",)).submit(launch(("n1", 1), ("n2", 3)))
    first, second = " ".join(commands.last("sbatch")).split(" : ")
    assert first.endswith("--gres=gpu:a100:1 --mem=0") and second.endswith("--gres=gpu:a100:3 --mem=0")
    assert commands.script.count(b"--het-group=") == 2


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (launch(("n1", 1), ("n2", 2)), r"n1: 1, n2: 2\) need slurm_uneven_gangs"),
        (launch(("n1", 5)), "5 GPUs are wanted on the node 'n1', which has 4 GPUs"),
        (launch(("n9", 1)), "1 GPU is wanted on the node 'n9', which is not known to Slurm"),
        (launch(plan=b"\0"), "holds a zero byte"),
        (launch(plan=b"x" * 5_000_000), r"would have 5000\d+ bytes; the limit is 4194304"),
    ],
)
def test_refusals_before_anything_is_submitted(commands: Scripted, order: NodeLaunch, message: str) -> None:
    with pytest.raises(EngineRefused, match=message):
        driver(commands).submit(order)
    assert "sbatch" not in {call[0] for call in commands.calls}


def test_errors_of_slurm_are_those_of_the_port(commands: Scripted) -> None:
    one = driver(commands)
    one.nodes()
    commands.fault = SlurmNotNow("sbatch: not now")
    with pytest.raises(EngineNotNow, match="sbatch: not now"):
        one.submit(launch())
    commands.fault = SlurmRefused("sbatch: no")
    with pytest.raises(EngineRefused, match="sbatch: no"):
        one.submit(launch())
    with pytest.raises(EngineUnavailable):
        one.jobs()
    commands.fault = SlurmAway("sbatch: away")
    for call in (lambda: one.submit(launch()), lambda: one.cancel(["1"]), one.jobs, one.nodes, one.check):
        with pytest.raises(EngineUnavailable, match="away"):
            call()


@pytest.mark.parametrize(
    ("values", "end", "detail", "failed"),
    [
        ({"job_state": "COMPLETED"}, EngineEnd.COMPLETED, "", ()),
        ({"job_state": "FAILED", "exit_code": 3 << 8}, EngineEnd.COMPLETED, "exit code 3", ()),
        ({"job_state": "FAILED", "exit_code": 9}, EngineEnd.COMPLETED, "signal 9", ()),
        ({"job_state": "FAILED", "state_reason": "JobLaunchFailure"}, EngineEnd.NOT_STARTED, "JobLaunchFailure", ()),
        (
            {"job_state": "FAILED", "nodes": "", "state_reason": "BadConstraints"},
            EngineEnd.NOT_STARTED,
            "BadConstraints",
            (),
        ),
        ({"job_state": "CANCELLED"}, EngineEnd.CANCELLED, "was cancelled", ()),
        ({"job_state": "PREEMPTED"}, EngineEnd.CANCELLED, "another Slurm job preempted it", ()),
        ({"job_state": "TIMEOUT", "state_reason": "TimeLimit"}, EngineEnd.TIME_LIMIT, r"time limit \(TimeLimit\)", ()),
        ({"job_state": "DEADLINE"}, EngineEnd.TIME_LIMIT, "deadline", ()),
        (
            {"job_state": "NODE_FAIL", "nodes": "n[1-2]"},
            EngineEnd.NODE_FAILED,
            "a node of the Slurm job failed",
            ("n2",),
        ),
        ({"job_state": "BOOT_FAIL"}, EngineEnd.NOT_STARTED, "could not be booted", ()),
        ({"job_state": "OUT_OF_MEMORY"}, EngineEnd.OUT_OF_MEMORY, "it used more memory than its share", ()),
    ],
)
def test_ends(
    commands: Scripted, values: dict[str, object], end: EngineEnd, detail: str, failed: Sequence[str]
) -> None:
    commands.node_rows[1] = node("n2", state="down")
    commands.rows = [row(5, "", **values)]
    (job,) = driver(commands).jobs()
    assert (job.id, job.attempt, job.state, job.end, job.failed_servers) == (
        "5",
        "5.1",
        EngineJobState.ENDED,
        end,
        failed,
    )
    assert subprocess.run(["grep", "-qE", detail], input=job.detail.encode() + b"\n", check=False).returncode == 0


def test_the_component_of_a_heterogeneous_job_that_ran_out_of_memory_tells_its_end(commands: Scripted) -> None:
    part = {"het_job_id": 5}
    commands.rows = [row(5, "FAILED", het_job_offset=0, **part), row(6, "OUT_OF_MEMORY", het_job_offset=1, **part)]
    assert [job.end for job in driver(commands).jobs()] == [EngineEnd.OUT_OF_MEMORY]


def test_a_failed_node_that_has_returned_is_still_named(commands: Scripted) -> None:
    commands.node_rows[1] = node("n2", state="down")
    commands.rows = [row(5, "NODE_FAIL", nodes="n[1-2]")]
    one = driver(commands)
    assert one.jobs()[0].failed_servers == ("n2",)
    commands.node_rows[1] = node("n2")
    commands.rows = [*commands.rows, row(6, "RUNNING")]
    assert one.jobs()[0].failed_servers == ("n2",)


@pytest.mark.parametrize(
    ("slurm", "state"),
    [
        ("PENDING", EngineJobState.PENDING),
        ("CONFIGURING", EngineJobState.PENDING),
        ("RUNNING", EngineJobState.RUNNING),
        ("SUSPENDED", EngineJobState.RUNNING),
        ("COMPLETING", EngineJobState.ENDING),
    ],
)
def test_states_of_jobs_that_have_not_ended(commands: Scripted, slurm: str, state: EngineJobState) -> None:
    commands.rows = [row(5, slurm, state_reason="Resources", gres_detail=["gpu:a100:1(IDX:2)"])]
    (job,) = driver(commands).jobs()
    detail = "Resources" if state is EngineJobState.PENDING else ""
    assert job == EngineJob("5", AttemptId("5.1"), state, ("n1",), {"n1": (2,)}, detail=detail)


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        (("PENDING", "PENDING"), EngineJobState.PENDING),
        (("RUNNING", "CONFIGURING"), EngineJobState.PENDING),
        (("RUNNING", "RUNNING"), EngineJobState.RUNNING),
        (("COMPLETED", "COMPLETING"), EngineJobState.ENDING),
        (("CANCELLED", "RUNNING"), EngineJobState.ENDING),
        (("CANCELLED", "CANCELLED"), EngineJobState.ENDED),
    ],
)
def test_parts_of_a_heterogeneous_job_are_one_submission(
    commands: Scripted, states: tuple[str, str], whole: EngineJobState
) -> None:
    parts = [
        row(8 + offset, state, het_job_id=8, het_job_offset=offset, comment="sooner:c1:3.1", nodes=f"n{offset + 1}")
        for offset, state in enumerate(states)
    ]
    commands.rows = parts[::-1]
    (job,) = driver(commands).jobs()
    assert (job.id, job.attempt, job.state, job.servers) == ("8", "3.1", whole, ("n1", "n2"))


def test_jobs_of_others_are_not_seen(commands: Scripted) -> None:
    commands.rows = [
        row(1, "RUNNING"),
        row(2, "RUNNING", comment="sooner:c2:2.1"),
        row(3, "RUNNING", comment=""),
        row(4, "RUNNING", user_name="mallory", user_id=os.geteuid() + 1),
    ]
    assert [job.id for job in driver(commands).jobs()] == ["1"]
    assert [job.user for job in driver(commands).jobs()] == [None]
    assert [(job.id, job.user) for job in driver(commands, users=True).jobs()] == [("1", "svc"), ("4", "mallory")]


@pytest.mark.parametrize("attempt", ["", "7", "/etc/passwd", "../../7.1", "7.1\n", "7.1 ", "7.1|x"])
def test_comments_that_name_no_attempt_are_not_seen(commands: Scripted, attempt: str) -> None:
    """The attempt names files, which a service that runs as root would read and delete."""
    forged = row(4, "RUNNING", user_name="mallory", user_id=os.geteuid() + 1, comment=f"sooner:c1:{attempt}")
    commands.rows = [row(1, "RUNNING"), forged]
    one = driver(commands, users=True)
    assert [job.id for job in one.jobs()] == ["1"]  # all jobs, read as JSON
    commands.rows = [row(1, "COMPLETING"), forged | {"job_id": 5}]
    assert [job.id for job in one.jobs()] == ["1"]  # the list
    assert full_readings(commands) == 1


@pytest.mark.parametrize("state", sorted(ENDED_STATES))
def test_a_job_that_has_ended_is_not_taken_for_a_forgotten_one(commands: Scripted, state: str) -> None:
    commands.rows = [row(1, "RUNNING")]
    one = driver(commands)
    one.jobs()
    commands.rows = [row(1, state)]
    one._next_reading_s = 0.0
    [ended] = one.jobs()
    assert (ended.id, ended.state) == ("1", EngineJobState.ENDED)


def test_a_job_that_waits_for_ever_says_why(commands: Scripted) -> None:
    part = {"het_job_id": 5, "required_nodes": "n2"}
    commands.rows = [
        row(4, "PENDING", state_reason="Resources"),
        row(5, "PENDING", het_job_offset=0, state_reason="Priority", **part),
        row(6, "PENDING", het_job_offset=1, state_reason="InvalidQOS", **part),
        row(7, "RUNNING", state_reason="InvalidQOS"),
    ]
    found = [(job.id, job.detail, job.stuck) for job in driver(commands).jobs()]
    stuck = "its QOS may not be used here (InvalidQOS)"
    assert found == [("4", "Resources", ""), ("5", "Priority", stuck), ("7", "", "")]


def full_readings(commands: Scripted) -> int:
    return sum("--json" in call for call in commands.calls if call[0] == "squeue")


def test_a_few_changes_are_followed_without_reading_all_jobs(commands: Scripted) -> None:
    commands.rows = [row(1, "RUNNING"), row(2, "RUNNING")]
    one = driver(commands)
    assert one.jobs() is one.jobs() and full_readings(commands) == 1
    held = {"gres_detail": ["gpu:a100:2(IDX:1,3)"], "nodes": "n2"}
    commands.rows = [row(1, "COMPLETED"), row(3, "PENDING", nodes="", required_nodes="n[1-2]")]
    ended, waits = one.jobs()
    assert (ended.id, ended.state, ended.end) == ("1", EngineJobState.ENDED, EngineEnd.COMPLETED)
    assert (waits.id, waits.attempt, waits.state) == ("3", "3.1", EngineJobState.PENDING)
    assert waits.servers == ("n1", "n2")
    commands.rows[1] = row(3, "RUNNING", **held)
    assert one.jobs()[1] == EngineJob("3", AttemptId("3.1"), EngineJobState.RUNNING, ("n2",), {"n2": (1, 3)})
    commands.rows[1] = row(3, "COMPLETING", nodes="n2")
    assert one.jobs()[1] == EngineJob("3", AttemptId("3.1"), EngineJobState.ENDING, ("n2",), {"n2": (1, 3)})
    assert full_readings(commands) == 1


def test_a_followed_part_of_a_heterogeneous_job(commands: Scripted) -> None:
    parts = [row(5, "PENDING", het_job_id=5, het_job_offset=0), row(6, "PENDING", het_job_id=5, het_job_offset=1)]
    one = driver(commands)
    commands.rows = [row(1, "RUNNING")]
    one.jobs()
    commands.rows += parts
    assert [(job.id, job.state) for job in one.jobs()][1:] == [("5", EngineJobState.PENDING)]
    commands.rows[1:] = [part | {"job_state": "COMPLETED"} for part in parts]
    assert [(job.id, job.state) for job in one.jobs()][1:] == [("5", EngineJobState.ENDED)]
    assert full_readings(commands) == 1


@pytest.mark.parametrize(
    "rows",
    [[row(1, "FAILED", exit_code=256)], [row(1, "NODE_FAIL")], [row(number, "PENDING") for number in range(1, 19)]],
    ids=["failed", "node failed", "many"],
)
def test_all_jobs_are_read_where_the_list_says_too_little(commands: Scripted, rows: list[dict[str, object]]) -> None:
    commands.rows = [row(1, "RUNNING")]
    one = driver(commands)
    one.jobs()
    commands.rows = rows
    one._next_reading_s = 0.0
    assert one.jobs() == driver(commands).jobs()
    assert full_readings(commands) == 3


def test_a_job_that_slurm_forgets_meanwhile(commands: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.rows = [row(1, "RUNNING")]
    one = driver(commands)
    one.jobs()
    lines = Slurm(commands).job_lines("")
    commands.rows = [row(2, "PENDING")]
    listed_now = Slurm(commands).job_lines("")
    commands.rows = []
    monkeypatch.setattr(one._slurm, "job_lines", lambda _: {**lines, **listed_now})

    def forgotten(*_: object) -> None:
        raise SlurmRefused("scontrol: slurm_load_jobs error: Invalid job id specified")

    monkeypatch.setattr(one._slurm, "job", forgotten)
    one._next_reading_s = 0.0
    assert list(one.jobs()) == []


def test_no_answer_is_older_than_the_question(commands: Scripted) -> None:
    """Also where reading all jobs takes so long that it is done rarely: an old answer would deny a submission made since."""
    one = driver(commands)
    commands.rows = [row(1, "RUNNING")]
    one.jobs()
    commands.rows = [row(1, "FAILED"), row(77, "PENDING")]
    one._next_reading_s = turn_s = time.monotonic() + 0.3
    assert [job.id for job in one.jobs()] == ["1", "77"]
    assert time.monotonic() >= turn_s


@pytest.mark.parametrize("call", [lambda one: one.submit(launch()), lambda one: one.close()], ids=["submit", "close"])
def test_a_submission_and_the_close_end_the_wait_for_the_next_reading(
    commands: Scripted, call: Callable[[SlurmDriver], object]
) -> None:
    one = driver(commands)
    commands.rows = [row(1, "RUNNING")]
    one.jobs()
    one._next_reading_s = time.monotonic() + 60.0
    commands.rows = [row(1, "FAILED"), row(77, "PENDING")]
    with ThreadPoolExecutor(1) as pool:
        asked = len(commands.calls)
        answer = pool.submit(one.jobs)
        wait_for(lambda: len(commands.calls) > asked, "the cheap list to be read")
        call(one)
        assert [job.id for job in answer.result(20.0)] == ["1", "77"]


def test_nodes_of_the_partition_with_gpus_of_one_type(commands: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    commands.node_rows = [
        node("n2", state="mixed", state_flags=["DRAIN"], reason="fan"),
        node("n1"),
        node("n3", gres="gpu:a100:2,gpu:t4:2"),
        node("n4", partitions=["other"]),
        node("n5", gres="nic:1"),
        node("n6", state="down", state_flags=["NOT_RESPONDING"], reason="Not responding"),
    ]
    one = driver(commands)
    found = [(each.server.name, each.state, each.address, each.detail) for each in one.nodes()]
    assert found == [
        ("n1", NodeState.UP, "n1.site", ""),
        ("n2", NodeState.DRAINED, "n2.site", "MIXED+DRAIN: fan"),
        ("n6", NodeState.DOWN, "n6.site", "DOWN+NOT_RESPONDING: Not responding"),
    ]
    one.nodes()
    assert [record.getMessage() for record in caplog.records] == ["nodes with GPUs of several types are left out: n3"]


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_no_node_is_up_while_the_partition_is_not(commands: Scripted, state: str) -> None:
    commands.node_rows = [node("n1"), node("n2", state="down"), node("n3", state_flags=["DRAIN"], reason="fan")]
    one = driver(commands)

    def states() -> list[tuple[NodeState, str]]:
        return [(each.state, each.detail) for each in one.nodes()]

    others = [(NodeState.DOWN, "DOWN"), (NodeState.DRAINED, "IDLE+DRAIN: fan")]
    assert states() == [(NodeState.UP, ""), *others]
    commands.state = state
    assert states() == [(NodeState.DRAINED, "the partition 'main' is not UP"), *others]
    commands.state = "UP"
    assert states() == [(NodeState.UP, ""), *others]


def test_a_deleted_partition_is_not_up(commands: Scripted) -> None:
    one = driver(commands)
    one.nodes()
    commands.partition = "PartitionName=other Default=YES State=UP MaxTime=UNLIMITED\n"
    assert {each.state for each in one.nodes()} == {NodeState.DRAINED}


def test_a_reserved_node_is_drained_for_jobs_without_a_reservation(commands: Scripted) -> None:
    commands.node_rows = [node("n1", state_flags=["RESERVED"])]
    [reserved] = driver(commands).nodes()
    assert (reserved.state, reserved.detail) == (NodeState.DRAINED, "IDLE+RESERVED")
    [own] = driver(commands, extra_args=("--reservation=ml",)).nodes()
    assert own.state is NodeState.UP


def test_cancelling_as_the_user_who_owns_the_job(commands: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may cancel the jobs of all; another service needs the rights of the owner, also after a restart."""
    for me, users in ((0, [None]), (1, [None, "ada"])):
        monkeypatch.setattr(os, "geteuid", lambda me=me: me)
        commands.rows = [row(1, "RUNNING", user_name="ada", user_id=4711), row(2, "RUNNING")]
        commands.users.clear()
        one = driver(commands, users=True)
        one.jobs()
        one.cancel(["1", "2", "3"])
        assert sorted(commands.users, key=str) == sorted(users, key=str)
        one.cancel([])
        assert len(commands.users) == len(users)


def test_variables_that_name_another_user_hide_no_job(commands: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user of the jobs is that of the process, whatever LOGNAME says."""
    monkeypatch.setenv("LOGNAME", "mallory")
    me = pwd.getpwuid(os.geteuid()).pw_name
    commands.rows = [row(1, "RUNNING", user_name=me), row(2, "RUNNING", user_name="mallory", user_id=os.geteuid() + 1)]
    one = driver(commands)
    assert [job.id for job in one.jobs()] == ["1"]
    one.cancel(["1"])
    assert commands.users == [None]


def test_a_launch_of_a_user_is_submitted_as_that_user(commands: Scripted) -> None:
    driver(commands, users=True).submit(launch(user="ada"))
    assert commands.users == ["ada"]


def test_the_settings_describe_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmMissing, match="sbatch is not installed"):
        slurm_driver(load_settings(), "c9")
    for command in ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    settings = load_settings(
        {
            "slurm_partition": "gpu",
            "slurm_extra_args": ["--qos=high"],
            "slurm_uneven_gangs": True,
            "run_as": "submitter",
        }
    )
    one = slurm_driver(settings, "c9")
    assert one._options == SlurmOptions("gpu", None, ("--qos=high",), True, True)
    assert one.abilities.users and one.abilities.uneven_shares and not one.abilities.exact_gpus
