"""Slurm's answers, recorded from a running 22.05.8, and the same in the shape of later versions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.slurm.cluster import Slurm, duration_s
from service.slurm.commands import SlurmAway, SlurmCommands, SlurmRefused, SlurmUnreadable
from service.slurm.jobs import SlurmJob, parse_jobs
from service.slurm.nodes import SlurmNode, parse_nodes
from service.slurm.text import Gpus, expand_hosts, parse_gpus, parse_shown, parse_tres, tres_gpus

ANSWERS = Path(__file__).parent / "answers"
LIST = "squeue --all --noheader --states=all"
WORD = "<word>"
"""Stands in a recorded list for the word of its call, with which each entry begins."""


def recorded(name: str) -> str:
    return (ANSWERS / name).read_text()


class RecordedCommands(SlurmCommands):
    """Answers with text instead of running a command."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(environ={})
        self._answers = answers

    def run(self, command: str, *arguments: str, variables: Mapping[str, str] | None = None, **_: Any) -> str:
        answer = self._answers[" ".join((command, *arguments))]
        # The real squeue writes what stands before the first field at the begin of each entry.
        return answer.replace(WORD, (variables or {}).get("SQUEUE_FORMAT", "").partition("%")[0])


def jobs_by_id(name: str) -> dict[int, SlurmJob]:
    return {job.id: job for job in parse_jobs(json.loads(recorded(name)))}


def test_a_running_gang() -> None:
    gang = jobs_by_id("squeue-22.05.8.json")[1]
    assert gang == SlurmJob(
        id=1,
        name="gang",
        user="root",
        state="RUNNING",
        user_id=0,
        partition="main",
        priority=4294901759,
        time_limit_s=365 * 86_400.0,
        submit_s=gang.submit_s,
        eligible_s=gang.submit_s,
        start_s=gang.start_s,
        end_s=gang.end_s,
        nodes=("node2", "node3"),
        required_nodes=("node2", "node3"),
        node_count=2,
        cpus=2,
        gpus=4,
        gpu_type="a100",
        gpu_ids={"node2": (0, 1), "node3": (0, 1)},
        comment="7.1",
        exit_code=0,
        tres={"cpu": "2", "mem": "2000M", "node": "2", "billing": "2"},
    )
    assert gang.submit_s is not None and gang.start_s is not None and gang.end_s is not None
    assert gang.submit_s <= gang.start_s < gang.end_s


def test_waiting_jobs() -> None:
    jobs = jobs_by_id("squeue-22.05.8.json")
    first, second = jobs[2], jobs[3]
    assert (first.het_job_id, first.het_offset, second.het_job_id, second.het_offset) == (2, 0, 2, 1)
    assert (first.gpus, second.gpus, second.required_nodes) == (1, 3, ("node4",))
    assert (jobs[7].gpus, jobs[7].gpu_type, jobs[7].nice) == (16, "a100", 5)
    assert jobs[7].time_limit_s == 26 * 3600.0
    assert jobs[7].name == "pends for, resources"
    assert (jobs[8].reason, jobs[8].dependency) == ("DependencyNeverSatisfied", "afterok:6(failed)")
    assert (jobs[9].array_job_id, jobs[9].array_tasks, jobs[9].tasks_waiting) == (9, "1-40%2", 40)
    assert (jobs[10].reason, jobs[10].priority) == ("JobHeldUser", 0)
    assert jobs[11].reason == "BeginTime" and jobs[11].eligible_s is not None
    assert jobs[5].time_limit_s == 60.0 and jobs[4].time_limit_s is None
    assert jobs[4].start_s is None and jobs[4].nodes == ()


def test_ended_jobs_stay_for_a_while() -> None:
    jobs = jobs_by_id("squeue-after-22.05.8.json")
    assert {job.id: job.state for job in jobs.values() if job.ended} == {
        1: "NODE_FAIL",
        6: "CANCELLED",
        12: "FAILED",
        13: "FAILED",
    }
    assert (jobs[1].exit_code, jobs[1].exit_signal, jobs[1].nodes) == (0, 15, ("node2", "node3"))
    assert (jobs[12].reason, jobs[12].nodes) == ("BadConstraints", ())
    assert (jobs[14].array_job_id, jobs[14].array_task_id, jobs[14].tasks_waiting) == (9, 1, 1)
    assert jobs[9].tasks_waiting == 39


def test_nodes_in_every_state() -> None:
    first, mixed, dead, drained = parse_nodes(json.loads(recorded("sinfo-22.05.8.json")))
    assert first == SlurmNode(
        name="node1",
        address="127.0.0.1",
        state="idle",
        flags=frozenset({"PLANNED"}),
        gpu_types={"a100": 4},
        cpus=16,
        threads=1,
        memory_mib=64000,
        partitions=("main",),
        version="22.05.8",
    )
    assert (first.down, first.drained, mixed.down, mixed.drained) == (False, False, False, False)
    assert dead.down and dead.why == "DOWN+NOT_RESPONDING: Not responding"
    assert drained.drained and not drained.down and drained.why == "IDLE+DRAIN: disk"


def _later(value: int | None) -> dict[str, object]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def test_shapes_of_later_versions() -> None:
    row = {
        "job_id": 7,
        "name": "n",
        "user_name": "ada",
        "job_state": ["RUNNING", "COMPLETING"],
        "time_limit": {"set": False, "infinite": True, "number": 0},
        "priority": _later(5),
        "nice": 0,
        "submit_time": _later(100),
        "start_time": _later(None),
        "exit_code": {"return_code": _later(3), "signal": {"id": _later(None), "name": ""}},
        "array_job_id": _later(9),
        "array_task_id": _later(2),
        "node_count": _later(1),
        "tres_per_node": "gres/gpu:h100:8",
        "comment": "c",
    }
    (job,) = parse_jobs({"jobs": [row]})
    assert (job.state, job.time_limit_s, job.priority, job.submit_s, job.start_s) == (
        "COMPLETING",
        None,
        5,
        100.0,
        None,
    )
    assert (job.exit_code, job.exit_signal, job.array_job_id, job.array_task_id) == (3, None, 9, 2)
    assert (job.gpus, job.gpu_type) == (8, "h100")
    (node,) = parse_nodes(
        {"nodes": [{"name": "n1", "address": "n1.site", "state": ["MIXED", "DRAIN"], "gres": "gpu:h100:8(S:0-1)",
                    "cpus": 64, "effective_cpus": 62, "real_memory": 1000, "specialized_memory": 100, "version": "24.11.3"}]}
    )  # fmt: skip
    assert (node.state, node.drained, node.gpus, node.cpus, node.memory_mib) == ("mixed", True, 8, 62, 900)


@pytest.mark.parametrize("document", [{}, {"jobs": {}}, {"jobs": [{}]}, {"jobs": [{"job_id": "x", "job_state": "R"}]}])
def test_an_unknown_form_is_an_error(document: dict[str, Any]) -> None:
    with pytest.raises(SlurmUnreadable):
        parse_jobs(document)


def test_a_controller_that_is_away_ends_with_code_0_and_an_error() -> None:
    slurm = Slurm(RecordedCommands({"squeue --all --states=all --json": recorded("squeue-away-22.05.8.json")}))
    with pytest.raises(SlurmAway, match="squeue: Failed while looking for jobs: Unspecified error"):
        slurm.jobs()


def test_an_answer_that_is_no_json() -> None:
    with pytest.raises(SlurmUnreadable, match="wrote no JSON"):
        Slurm(RecordedCommands({"squeue --all --states=all --json": "JOBID PARTITION"})).jobs()


def test_configuration_partitions_and_topology() -> None:
    answers = {
        "scontrol show config": recorded("config-22.05.8.txt"),
        "scontrol --all --oneliner show partition": recorded("partition-22.05.8.txt"),
        "scontrol --oneliner show topology": recorded("topology-22.05.8.txt"),
        "squeue --version": "slurm-wlm 22.05.8\n",
    }
    slurm = Slurm(RecordedCommands(answers))
    config = slurm.config()
    assert (config["ClusterName"], config["KillWait"], config["MinJobAge"]) == ("demo", "2 sec", "300 sec")
    assert "Prolog" not in config
    (partition,) = slurm.partitions()
    assert (partition.name, partition.default, partition.up, partition.time_limit_s) == ("main", True, True, 108_000.0)
    assert partition.nodes == ("node1", "node2", "node3", "node4")
    assert slurm.racks() == {"node1": "rack1", "node2": "rack1", "node3": "rack2", "node4": "rack2"}
    assert slurm.version() == "22.05.8"


def test_a_cluster_without_topology_has_no_racks() -> None:
    class Refusing(RecordedCommands):
        def run(self, command: str, *arguments: str, **_: Any) -> str:
            raise SlurmRefused("scontrol: No topology information available")

    assert Slurm(Refusing({})).racks() == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("node1", ("node1",)),
        ("node[1-3,07],login", ("node1", "node2", "node3", "node07", "login")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("r[1-2]n[1-2]-ib", ("r1n1-ib", "r2n1-ib", "r1n2-ib", "r2n2-ib")),
    ],
)
def test_lists_of_hosts(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[1-999999999]"])
def test_lists_of_hosts_that_are_none(text: str) -> None:
    with pytest.raises(SlurmUnreadable):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", []),
        ("gpu:4", [Gpus("", 4)]),
        ("gpu", [Gpus("", 1)]),
        ("gpu:a100", [Gpus("a100", 1)]),
        ("gres:gpu:a100:2", [Gpus("a100", 2)]),
        ("gres/gpu:a100=2", [Gpus("a100", 2)]),
        ("gpu:a100:4(S:0-1),nic:1,gpu:t4:2", [Gpus("a100", 4), Gpus("t4", 2)]),
        ("gpu:a100:3(IDX:0-1,3)", [Gpus("a100", 3, (0, 1, 3))]),
        ("gpu:a100:0(IDX:N/A)", [Gpus("a100", 0)]),
        ("(null)", []),
        ("craynetwork:4", []),
    ],
)
def test_generic_resources(text: str, gpus: list[Gpus]) -> None:
    assert parse_gpus(text) == gpus


def test_tracked_resources() -> None:
    tres = parse_tres("billing=8,gres/gpu:a100=4,gres/gpu=4,mem=62.50G")
    assert tres["mem"] == "62.50G"
    assert tres_gpus(tres) == (4, "a100")
    assert tres_gpus(parse_tres("gres/gpu:a100=4,gres/gpu:t4=1")) == (5, "")
    assert tres_gpus(parse_tres("gres/gpu=1K")) == (1024, "")
    assert tres_gpus({}) == (0, "")


def test_shown_blocks_keep_blanks_in_values() -> None:
    (block,) = parse_shown("NodeName=n1 OS=Linux 6.1 #1 SMP State=DOWN Reason=disk is full [root@1]\n")
    assert block == {"NodeName": "n1", "OS": "Linux 6.1 #1 SMP", "State": "DOWN", "Reason": "disk is full [root@1]"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("UNLIMITED", None),
        (None, None),
        ("10:00", 600.0),
        ("02:00:00", 7200.0),
        ("1-06:00:00", 108_000.0),
        ("x-1", None),
    ],
)
def test_durations(text: str | None, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def test_a_job_of_the_list_with_what_it_holds() -> None:
    """Its comment, which its user chooses, stands in place of no other value."""
    text = "<word>6|5+1|RUNNING|node[1-2],node4|1000|ada|None|sooner:c1:7.1|ROOT Nodes=node9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)\n"
    shown = (
        "JobId=5 HetJobId=5 HetJobOffset=0 JobName=gang ReqNodeList=node3   Nodes=node3 CPU_IDs=0 Mem=100 GRES=gpu:1(IDX:3)\n"
        "JobId=6 HetJobId=5 HetJobOffset=1 JobName=gang UserId=ada(1000) JobState=RUNNING ReqNodeList=node[1-2],node4"
        "   Nodes=node[1-2] CPU_IDs=0-1 Mem=100 GRES=gpu:a100:2(IDX:1-2)"
        "   Nodes=node4 CPU_IDs=7 Mem=100 GRES=gpu:a100:1(IDX:3),nic:1 MinCPUsNode=1 Comment=x\n"
    )
    answers = {
        LIST: text
        + "<word>7|7|PENDING||1000|ada|Priority|other\n"
        + "<word>8|8|PENDING||1000|ada|Priority|other |sooner:c1:8.1\n",
        "scontrol --details --oneliner show job 6": shown,
    }
    slurm = Slurm(RecordedCommands(answers))
    lines = slurm.job_lines("sooner:c1:")
    assert list(lines) == [6]
    assert slurm.job(lines[6]) == SlurmJob(
        id=6,
        name="gang",
        user="ada",
        state="RUNNING",
        user_id=1000,
        nodes=("node1", "node2", "node4"),
        required_nodes=("node1", "node2", "node4"),
        gpu_ids={"node1": (1, 2), "node2": (1, 2), "node4": (3,)},
        comment="sooner:c1:7.1|ROOT Nodes=node9 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)",
        het_job_id=5,
        het_offset=1,
    )


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_a_comment_makes_no_entry_of_the_list(end: str) -> None:
    """Neither one of the job of another user, nor one that cannot be read."""
    forged = f"{end}6|6|COMPLETED||1000|svc|None|sooner:c1:7.1{end}x|sooner:c1:{end}9|sooner:c1:"
    text = (
        f"<word>6|6|RUNNING|node1|1000|svc|None|sooner:c1:7.1\n<word>7|7|PENDING||1001|eve|Priority|{forged}\n"
        f"<word>8|8|PENDING||1001|eve|Priority|sooner:c1:8.1{forged}\n"
    )
    lines = Slurm(RecordedCommands({LIST: text})).job_lines("sooner:c1:")
    assert {line.id: (line.state, line.user_id, line.comment) for line in lines.values()} == {
        6: ("RUNNING", 1000, "sooner:c1:7.1"),
        8: ("PENDING", 1001, f"sooner:c1:8.1{forged}"),
    }


def test_the_word_of_a_list_is_new_each_time_and_no_argument() -> None:
    formats: list[str] = []

    class Noting(RecordedCommands):
        def run(self, command: str, *arguments: str, variables: Mapping[str, str] | None = None, **more: Any) -> str:
            formats.append((variables or {})["SQUEUE_FORMAT"])
            return super().run(command, *arguments, variables=variables, **more)

    slurm = Slurm(Noting({LIST: ""}))
    assert slurm.job_lines("sooner:c1:") == slurm.job_lines("sooner:c1:") == {}
    words = [each.partition("%")[0] for each in formats]
    assert words[0] != words[1] and [len(word) for word in words] == [32, 32]


@pytest.mark.parametrize(
    "line", ["6|6|RUNNING|n1|x|ada|None|sooner:c1:", "6|RUNNING|sooner:c1:", "6|5+|PENDING||1|a|None|sooner:c1:"]
)
def test_an_entry_of_an_unknown_form(line: str) -> None:
    """It is an error: a job that is left out would count as forgotten."""
    slurm = Slurm(RecordedCommands({LIST: f"<word>{line}\n"}))
    with pytest.raises(SlurmUnreadable, match="line of an unknown form"):
        slurm.job_lines("sooner:c1:")


def test_a_list_of_another_form() -> None:
    slurm = Slurm(RecordedCommands({LIST: "6 main x RUNNING\n"}))
    with pytest.raises(SlurmUnreadable, match="no list of the form that was asked for"):
        slurm.job_lines("sooner:c1:")
