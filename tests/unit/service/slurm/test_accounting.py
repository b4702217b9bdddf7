"""Rows of sacct: the recorded answer of a running 22.05.8, and what other forms mean."""

import csv
from pathlib import Path

import pytest

from service.domain.source_rows import SkipRow
from service.slurm.accounting import FIELDS, AccountedJob, answered_rows, parse_row, sacct_arguments
from service.slurm.commands import SlurmUnreadable

ANSWERS = Path(__file__).parent / "answers"


def cells(**given: str) -> dict[str, str]:
    """A row of a job that ran for an hour, with some cells replaced."""
    row = dict.fromkeys(FIELDS, "") | {
        "JobID": "7",
        "State": "COMPLETED",
        "Submit": "1000",
        "Eligible": "1000",
        "Start": "1100",
        "End": "4700",
        "ElapsedRaw": "3600",
        "AllocTRES": "billing=8,gres/gpu:a100=4,gres/gpu=4",
        "NNodes": "2",
        "NodeList": "node[1-2]",
        "JobName": "train",
    }
    return row | given


def test_the_recorded_answer() -> None:
    rows = [parse_row(row) for _, row in answered_rows((ANSWERS / "sacct-22.05.8.txt").read_text())]
    assert [(row.id, row.state, row.final_state, row.gpus, row.gpu_type, row.name) for row in rows] == [
        ("1", "COMPLETED", "succeeded", 2, "a100", "ok"),
        ("2", "FAILED", "failed", 1, "a100", "a|b"),
        ("3", "COMPLETED", "succeeded", 0, "", "no gpu"),
        ("5", "CANCELLED", "killed", 4, "a100", "gang"),
        ("6", "REQUEUED", None, 4, "a100", "again"),
        ("7", "CANCELLED", "killed", 16, "", "never"),
        ("4_1", "COMPLETED", "succeeded", 1, "a100", "sweep"),
        ("4_2", "COMPLETED", "succeeded", 1, "a100", "sweep"),
        ("6", "COMPLETED", "succeeded", 4, "a100", "again"),
    ]
    by_state = {(row.id, row.state): row for row in rows}
    ok = by_state["1", "COMPLETED"]
    assert (ok.user, ok.account, ok.partition, ok.time_limit_s, ok.node_count) == ("root", "root", "main", 300.0, 1)
    assert ok.priority is not None
    never = by_state["7", "CANCELLED"]
    assert (never.start_s, never.run_s, never.nodes) == (None, 0.0, ())
    assert by_state["6", "COMPLETED"].continues(by_state["6", "REQUEUED"])
    assert not by_state["6", "REQUEUED"].continues(by_state["6", "COMPLETED"])


def test_a_carriage_return_in_a_name_spoils_no_answer() -> None:
    rows = [cells(JobID="7", JobName="a\rb"), cells(JobID="8")]
    text = "\n".join(["|".join(FIELDS), *("|".join(row[name] for name in FIELDS) for row in rows), ""])
    assert [(row["JobID"], row["JobName"]) for _, row in answered_rows(text)] == [("7", "a b"), ("8", "train")]


def test_a_row_with_every_field() -> None:
    row = cells(User="ann", Account="nlp", Partition="gpu", TimelimitRaw="120", Priority="4294901759", Eligible="1050")
    assert parse_row(row) == AccountedJob(
        id="7",
        state="COMPLETED",
        submit_s=1000.0,
        eligible_s=1050.0,
        start_s=1100.0,
        end_s=4700.0,
        run_s=3600.0,
        name="train",
        user="ann",
        account="nlp",
        partition="gpu",
        gpus=4,
        gpu_type="a100",
        time_limit_s=7200.0,
        node_count=2,
        nodes=("node1", "node2"),
        priority=4294901759,
    )
    assert parse_row(row).waits_from_s == 1050.0
    assert parse_row(cells(Eligible="900")).waits_from_s == 1000.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"JobID": "7.batch"}, "a step of a job"),
        ({"Submit": "Unknown"}, "Submit is not a date and time"),
        ({"End": "Unknown"}, "End is not a date and time"),
        ({"Start": "yesterday"}, "Start is not a date and time"),
        ({"ElapsedRaw": "-1"}, "ElapsedRaw is not a time of at least 0 s"),
        ({"AllocTRES": "gres/gpu=0.5"}, "AllocTRES is not a whole number of at least 1"),
        ({"NodeList": "node[1-"}, "NodeList: a list of hosts has an open bracket: 'node[1-'"),
    ],
)
def test_a_damaged_row_says_which_cell(given: dict[str, str], reason: str) -> None:
    with pytest.raises(SkipRow) as refused:
        parse_row(cells(**given))
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("state", "ended", "final"),
    [
        ("CANCELLED by 1000", True, "killed"),
        ("TIMEOUT", True, "killed"),
        ("NODE_FAIL", True, "failed"),
        ("OUT_OF_MEMORY", True, "failed"),
        ("REQUEUED", True, None),
        ("RUNNING", False, None),
    ],
)
def test_states(state: str, ended: bool, final: str | None) -> None:
    end = "4700" if ended else "Unknown"
    job = parse_row(cells(State=state, End=end))
    assert (job.has_ended, job.final_state) == (ended, final)


@pytest.mark.parametrize("start", ["None", "Unknown", "4700"])
def test_a_job_that_was_cancelled_while_it_waited_has_no_start(start: str) -> None:
    job = parse_row(cells(State="CANCELLED by 0", Start=start, ElapsedRaw="0", NodeList="None assigned"))
    assert (job.start_s, job.run_s, job.nodes) == (None, 0.0, ())
    short = parse_row(cells(State="COMPLETED", ElapsedRaw="0", NodeList="node1", Start="4700"))
    assert (short.start_s, short.nodes) == (4700.0, ("node1",))


def test_another_job_with_the_same_number_is_no_next_run() -> None:
    cut = parse_row(cells(State="NODE_FAIL"))
    assert parse_row(cells(Submit="4700", Start="4800", End="5000")).continues(cut)
    assert not parse_row(cells(Submit="4700", Start="4800", End="5000", JobName="other")).continues(cut)
    assert not parse_row(cells(Submit="4700", Start="4800", End="5000")).continues(parse_row(cells()))
    assert not parse_row(cells(Submit="1000", Start="1200", End="5000")).continues(cut)


def test_bars_in_a_name_belong_to_it_and_a_short_row_is_damaged() -> None:
    header, line = "|".join(FIELDS), "|".join(cells().values())
    rows = [row for _, row in answered_rows(f"{header}\n{line}|a|b\n{line.rpartition('|')[0]}\n")]
    assert parse_row(rows[0]).name == "train|a|b"
    with pytest.raises(SkipRow, match="not as many cells"):
        parse_row(rows[1])


@pytest.mark.parametrize("text", ["", "Slurm accounting storage is disabled\n", "JobID|State\n1|COMPLETED\n"])
def test_another_answer_is_refused(text: str) -> None:
    with pytest.raises(SlurmUnreadable, match="no table of the columns"):
        list(answered_rows(text))


def test_a_cell_that_is_too_large_is_refused() -> None:
    text = "|".join(FIELDS) + "\n" + "x" * (csv.field_size_limit() + 1) + "\n"
    with pytest.raises(SlurmUnreadable, match="line 2: field larger"):
        list(answered_rows(text))


def test_the_arguments_name_two_instants() -> None:
    arguments = list(sacct_arguments(1000.9, 2000.0))
    assert arguments[4:8] == ["--starttime", "uts1000", "--endtime", "uts2000"]


def test_the_documented_command_has_these_fields() -> None:
    page = Path(__file__).parents[4] / "docs" / "reference" / "workloads.md"
    assert f"\n{','.join(FIELDS)} > jobs.txt\n" in page.read_text()
