"""The workload table: what is read, what is refused, and the position that an error names."""

import csv
import gzip
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.cluster import Cluster, Server
from policies.registry import BUILT_IN, make_policy
from service.sim.experiment import run
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import COLUMNS, read_workload, write_workload

HEADER = "job_id,submit_time_s,gpus,duration_s"


def _write(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_a_table_with_only_the_required_columns_is_read(tmp_path: Path) -> None:
    workload = read_workload(_write(tmp_path / "w.csv", "a,0,1,10", "b,2.5,8,3.25"))
    assert workload.jobs == (WorkloadJob("a", 0.0, 1, 10.0), WorkloadJob("b", 2.5, 8, 3.25))
    assert workload.skipped == ()


def test_columns_may_have_any_order_and_empty_cells(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "w.csv",
        "10,ada,vision,resnet,4,0,j1,20.5,1000.0,resnet50,,3600,A100,killed",
        header="duration_s,user,project,name,gpus,submit_time_s,job_id,end_time_s,iterations,model,"
        "declared_iterations,walltime_s,gpu_type,final_state",
    )
    assert read_workload(path).jobs == (
        WorkloadJob(
            "j1", 0.0, 4, 10.0, "ada", "vision", "resnet", 20.5, 1000, "resnet50", None, 3600.0, "A100", "killed"
        ),
    )


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (",0,1,10", "job_id"),
        ("a,,1,10", "submit_time_s"),
        ("a,-1,1,10", "submit_time_s"),
        ("a,nan,1,10", "submit_time_s"),
        ("a,inf,1,10", "submit_time_s"),
        ("a,1.7e18,1,10", "submit_time_s"),
        ("a,soon,1,10", "submit_time_s"),
        ("a,1_000,1,10", "submit_time_s"),
        ("a,0,0,10", "gpus"),
        ("a,0,-4,10", "gpus"),
        ("a,0,1.5,10", "gpus"),
        ("a,0,1e300,10", "gpus"),
        ("a,0,1,0", "duration_s"),
        ("a,0,1,-5", "duration_s"),
        ("a,0,1,1e16", "duration_s"),
        ("a,0,1,9.9e-7", "duration_s"),
        ("a,0,1,NaN", "duration_s"),
        ("a,0,1", "duration_s"),
        ("a,0,1,5,extra", "duration_s"),
        ("first,5,1,5", "job_id"),
        ("late,3,1,5", "submit_time_s"),
    ],
)
def test_an_error_names_file_line_and_column_of_an_invalid_row(tmp_path: Path, row: str, column: str) -> None:
    path = _write(tmp_path / "w.csv", "first,4,1,10", row, "last,9,1,10")
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert (caught.value.line, caught.value.column) == (3, column)
    assert str(caught.value).startswith(f"{path}:3: {column}: ")
    workload = read_workload(path, skip_invalid=True)
    assert [job.job_id for job in workload.jobs] == ["first", "last"]
    assert [skipped.line for skipped in workload.skipped] == [3]
    assert workload.skipped[0].reason.startswith(f"{column}: ")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("end_time_s", "-1"),
        ("end_time_s", "3"),
        ("iterations", "0"),
        ("iterations", "1.5"),
        ("declared_iterations", "many"),
        ("end_time_s", "1e300"),
        ("walltime_s", "0"),
        ("walltime_s", "1e12"),
        ("final_state", "done"),
    ],
)
def test_a_broken_optional_cell_is_an_error(tmp_path: Path, column: str, cell: str) -> None:
    path = _write(tmp_path / "w.csv", f"a,4,1,10,{cell}", header=f"{HEADER},{column}")
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert (caught.value.line, caught.value.column) == (2, column)


def test_a_time_beyond_the_limit_is_shown_with_it(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.csv", "a,1.7e18,1,10")
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert str(caught.value) == f"{path}:2: submit_time_s: 1.7e18 s is above the limit of 100,000,000,000 s"
    path = _write(tmp_path / "w.csv", "a,0,1,5e-324")
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert str(caught.value) == f"{path}:2: duration_s: 5e-324 s is below the limit of 0.000001 s"


def test_the_shortest_jobs_of_a_table_can_be_simulated(tmp_path: Path) -> None:
    """Also at the latest time, where such a job ends at the instant of its start."""
    path = _write(tmp_path / "w.csv", "a,0,1,0.000001", "b,0,2,0.000001", "c,1e11,1,0.000001")
    cluster = Cluster("c", (Server("s", 1000),))
    for policy in sorted(BUILT_IN):
        result = run(read_workload(path), cluster, make_policy(policy), "oracle").result
        assert (result.finished, result.lower_bound_mean_jct_s) == (3, pytest.approx(1e-6)), policy


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("job_id,submit_time_s,duration_s", "gpus"),
        (f"{HEADER},iteration", "iteration"),
        (f"{HEADER},gpus", "gpus"),
        ("", "job_id"),
    ],
)
def test_a_broken_header_is_an_error_even_with_skip_invalid(tmp_path: Path, header: str, column: str) -> None:
    path = _write(tmp_path / "w.csv", "a,0,1,10", header=header)
    with pytest.raises(WorkloadError) as caught:
        read_workload(path, skip_invalid=True)
    assert (caught.value.line, caught.value.column) == (1, column)


@pytest.mark.parametrize(("text", "found"), [('"a\nb"', "a line break"), ("a\0b", "a NUL character")])
def test_what_tools_would_read_otherwise_is_named(tmp_path: Path, text: str, found: str) -> None:
    path = _write(tmp_path / "w.csv", f"{text},0,1,10")
    with pytest.raises(WorkloadError, match=f"must not contain {found}") as caught:
        read_workload(path)
    assert caught.value.column == "job_id"


@pytest.mark.parametrize("rows_before", [0, 1000])
def test_bytes_that_are_not_utf_8_break_their_row_alone(tmp_path: Path, rows_before: int) -> None:
    """Also far behind the first block of the file."""
    path = tmp_path / "w.csv"
    before = [f"{number},0,1,5,ada" for number in range(rows_before)]
    _write(path, *before, "@,0,1,5,@", "z,1,1,5,Zo\u00eb", header=HEADER + ",user")
    path.write_bytes(path.read_bytes().replace(b"@", b"\xeb"))
    line = rows_before + 2
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert str(caught.value) == rf"{path}:{line}: job_id: b'\xeb' is not UTF-8"
    workload = read_workload(path, skip_invalid=True)
    assert [row.line for row in workload.skipped] == [line]
    assert (len(workload.jobs), workload.jobs[-1].user) == (rows_before + 1, "Zo\u00eb")


def test_a_header_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(f"{HEADER}\na,0,1,5\n".encode("utf-16"))
    with pytest.raises(WorkloadError, match=r"w\.csv:1: the header is not UTF-8"):
        read_workload(path, skip_invalid=True)


def test_first_takes_the_first_rows_of_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "w.csv", "a,0,1,10", "b,1,0,10", "c,2,1,10", "broken")
    workload = read_workload(path, first=2, skip_invalid=True)
    assert [job.job_id for job in workload.jobs] == ["a"]
    assert len(workload.skipped) == 1
    assert read_workload(path, first=1).jobs[0].job_id == "a"


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x1f\x8bnot gzip at all", b'job_id,submit_time_s,gpus,duration_s\n"a']
)
def test_a_file_that_is_not_a_table_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=r"w\.csv"):
        read_workload(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        read_workload(tmp_path / "none.csv")


_texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)
_seconds = st.floats(0.0, 1e9)
_positive = st.floats(1e-3, 1e9)
_jobs = st.lists(
    st.builds(
        WorkloadJob,
        job_id=_texts.filter(bool),
        submit_time_s=_seconds,
        gpus=st.integers(1, 4096),
        duration_s=_positive,
        user=_texts,
        project=_texts,
        name=_texts,
        end_time_s=st.none() | st.floats(1e9, 2e9),
        iterations=st.none() | st.integers(1, 10**12),
        model=_texts,
        declared_iterations=st.none() | st.integers(1, 10**12),
        walltime_s=st.none() | _positive,
        gpu_type=_texts,
        final_state=st.sampled_from(["", "succeeded", "failed", "killed"]),
    ),
    max_size=6,
    unique_by=lambda job: job.job_id,
)


@given(jobs=_jobs, suffix=st.sampled_from([".csv", ".csv.gz", ".parquet"]))
@settings(max_examples=60, deadline=None)
def test_a_written_workload_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[WorkloadJob], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("w") / f"w{suffix}"
    ordered = tuple(sorted(jobs, key=lambda job: job.submit_time_s))
    write_workload(Workload("w", ordered), path)
    assert read_workload(path).jobs == ordered


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    steering = ("=1+1", "+a", "-a", "@sum", "\tcmd", "'=1", "''@x")
    jobs = tuple(
        WorkloadJob(text, 0.0, 1, 10.0, user=text, project=text, name=text, gpu_type=text, end_time_s=20.0)
        for text in steering
    )
    write_workload(Workload("w", jobs), tmp_path / "w.csv")
    with (tmp_path / "w.csv").open(newline="") as stream:
        written = [word for row in csv.reader(stream) for word in row]
    assert not [word for word in written if word.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert read_workload(tmp_path / "w.csv").jobs == jobs


def test_equal_workloads_give_equal_bytes(tmp_path: Path) -> None:
    workload = Workload("w", (WorkloadJob("a", 0.0, 1, 10.0),))
    for name in ("1.csv.gz", "2.csv.gz", "1.csv"):
        write_workload(workload, tmp_path / name)
    plain = (tmp_path / "1.csv").read_bytes()
    assert plain.decode().splitlines() == [",".join(COLUMNS), "a,0.0,,,,1,10.0,,,,,,,"]
    assert gzip.decompress((tmp_path / "1.csv.gz").read_bytes()) == plain
    # The header of a gzip file holds the name; all that follows must be equal.
    assert (tmp_path / "1.csv.gz").read_bytes()[-40:] == (tmp_path / "2.csv.gz").read_bytes()[-40:]


def test_parquet_without_pyarrow_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(WorkloadError, match=r"sooner\[parquet\]"):
        read_workload(tmp_path / "w.parquet")


def test_a_broken_parquet_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(WorkloadError, match=r"w\.parquet"):
        read_workload(path)


def test_parquet_rows_are_checked_like_csv_rows(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    write_workload(Workload("w", (WorkloadJob("a", 0.0, 1, 10.0), WorkloadJob("b", 1.0, 0, 10.0))), path)
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert (caught.value.line, caught.value.column) == (2, "gpus")
