"""Importers, on a few rows for each rule of their format."""

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers import IMPORTERS, import_trace
from service.sim.workloads.model import WorkloadJob

SWF = """\
; Version: 2.2
; MaxProcs: 128
    7   100   5    60   4  -1 -1   8  3600  64  1   3   2   11  1  2 -1 -1

    8    40  -1    30  -1  -1 -1  16    -1  -1  0  -1  -1   12 -1 -1 -1 -1
    9    50   0   0.9   1  -1 -1   1    10  -1  1   3   2   11  1  1 -1 -1
    7   100   5    20   4  -1 -1   8  3600  64  2   3   2   11  1  2 -1 -1
   10   120   0    10  -1  -1 -1  -1    10  -1  1   3   2   11  1  1 -1 -1
   11   130   0    10   1
   12   140   0    10   2  -1 -1   2    10  -1  5   4   2   -1  1  1 -1 -1
"""


def _trace(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_swf(tmp_path: Path, name: str) -> None:
    workload = import_trace("swf", _trace(tmp_path, name, SWF))
    assert workload.jobs == (
        WorkloadJob("8", 0.0, 16, 30.0, name="12", end_time_s=30.0, final_state="failed"),
        WorkloadJob(
            "7",
            60.0,
            4,
            60.0,
            user="3",
            project="2",
            name="11",
            end_time_s=125.0,  # submit + wait + run
            walltime_s=3600.0,
            final_state="succeeded",
        ),
        WorkloadJob(
            "12",
            100.0,
            2,
            10.0,
            user="4",
            project="2",
            name="",  # the column holds executables, this row none
            end_time_s=110.0,
            walltime_s=10.0,
            final_state="killed",
        ),
    )
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (6, "the run time is under 1 s"),
        (7, "the job id appears twice"),
        (8, "neither allocated nor requested processors are known"),
        (9, "fewer than 18 fields"),
    ]


def test_swf_without_executables_takes_the_request_as_the_name(tmp_path: Path) -> None:
    row = "{job} 0 0 10 {allocated} -1 -1 {requested} {walltime} {memory} 1 1 1 {executable} {queue} {partition} -1 -1{more}\n"
    base = {
        "allocated": 4,
        "requested": 8,
        "walltime": 60,
        "memory": 5,
        "executable": 1,
        "queue": 2,
        "partition": 3,
        "more": "",
    }
    variants = [
        base,
        base | {"allocated": 2},  # what was granted is no part of the request
        base | {"requested": 16},
        base | {"walltime": 61},
        base | {"memory": 6},
        base | {"queue": 7},
        base | {"partition": 9},
        base | {"more": " gpu"},
    ]
    text = "".join(row.format(job=number, **variant) for number, variant in enumerate(variants))
    names = [job.name for job in import_trace("swf", _trace(tmp_path, "log.swf", text)).jobs]
    assert names[0] == names[1]
    assert len(set(names)) == len(variants) - 1


@pytest.fixture
def new_york_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york_time")
def test_philly_is_sorted_and_shifted_and_its_naive_times_are_utc(tmp_path: Path) -> None:
    # In New York a clock change lies between the first row and the others.
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-11-06 00:00:00,66.0,1,66.0,11cb48\n"
        "2017-11-05 00:00:00,30.5,8,244.0,6214e9\n"
        "2017-11-05 00:00:00,1.0,2,2.0,6214e9\n"
        "2017-11-05 00:00:00,0.0,2,2.0,6214e9\n"
        "yesterday,3.0,2,2.0,6214e9\n"
        "2017-11-05 00:00:00,3.0,0,2.0,6214e9\n"
    )
    workload = import_trace("philly", _trace(tmp_path, "philly.csv.gz", text))
    assert workload.jobs == (
        WorkloadJob("philly-3", 0.0, 8, 30.5, project="6214e9"),
        WorkloadJob("philly-4", 0.0, 2, 1.0, project="6214e9"),
        WorkloadJob("philly-2", 86400.0, 1, 66.0, project="11cb48"),
    )
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (5, "duration is not positive"),
        (6, "timestamp is not a date and time"),
        (7, "num_gpus is not a whole number of at least 1"),
    ]
    assert workload.skipped_by_reason()["duration is not positive"] == 1


def test_elasticflow(tmp_path: Path) -> None:
    text = "job_id,submission_time,duration,num_gpu\nb,20,5,64\na,10,7,1\na,30,7,1\n,30,7,1\nc,30,inf,1\n"
    workload = import_trace("elasticflow", _trace(tmp_path, "e.csv", text))
    assert workload.jobs == (WorkloadJob("a", 0.0, 1, 7.0), WorkloadJob("b", 10.0, 64, 5.0))
    assert [row.line for row in workload.skipped] == [4, 5, 6]


def test_sooner_sorts_its_own_table(tmp_path: Path) -> None:
    text = "job_id,submit_time_s,gpus,duration_s,end_time_s\nb,20,2,5,30\na,10,1,7,\nc,10,0,7,\n"
    workload = import_trace("sooner", _trace(tmp_path, "w.csv", text))
    assert workload.jobs == (WorkloadJob("a", 0.0, 1, 7.0), WorkloadJob("b", 10.0, 2, 5.0, end_time_s=20.0))
    assert [row.line for row in workload.skipped] == [4]


def test_an_unknown_format_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="unknown format 'lsf'") as caught:
        import_trace("lsf", tmp_path)
    assert all(name in str(caught.value) for name in IMPORTERS)


@pytest.mark.parametrize("trace_format", ["philly", "elasticflow"])
def test_a_missing_column_is_named(tmp_path: Path, trace_format: str) -> None:
    with pytest.raises(WorkloadError, match="duration: this column is missing"):
        import_trace(trace_format, _trace(tmp_path, "x.csv", "job_id,timestamp,submission_time\n1,2,3\n"))


def test_a_truncated_archive_is_an_error_not_a_shorter_trace(tmp_path: Path) -> None:
    path = _trace(tmp_path, "log.swf.gz", SWF * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WorkloadError, match=r"log\.swf\.gz"):
        import_trace("swf", path)
