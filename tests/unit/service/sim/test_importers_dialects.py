"""Importers and the variants of a format: marks, line ends, quotes, encodings, releases of a trace."""

from pathlib import Path

import pytest

from service.sim.workloads.importers import import_trace
from service.sim.workloads.model import Workload, WorkloadJob


def _import(trace_format: str, tmp_path: Path, content: str | bytes) -> Workload:
    path = tmp_path / "trace"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return import_trace(trace_format, path)


HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
    "1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
)
"""Two rows of the documentation of Helios, whose schema has no job names; here the later one comes first."""
HELIOS_JOBS = (
    WorkloadJob("1425511", 0.0, 1, 36848.0, user="uXBbc", project="vcJkd", end_time_s=36848.0, final_state="succeeded"),
    WorkloadJob("1425512", 26.0, 4, 249.0, user="uVMrF", project="vchbv", end_time_s=275.0, final_state="failed"),
)


@pytest.mark.parametrize(
    "content",
    [
        HELIOS,
        "\ufeff" + HELIOS,
        HELIOS.replace("\n", "\r\n"),
        HELIOS.removesuffix("\n"),
        HELIOS.replace("\n", "\n\n"),
        HELIOS.replace("user,vc", " user , vc"),
    ],
    ids=["plain", "byte order mark", "CRLF", "no last line end", "blank lines", "spaces in the header"],
)
def test_helios_as_published_in_every_dialect(tmp_path: Path, content: str) -> None:
    workload = _import("helios", tmp_path, content)
    assert (workload.jobs, workload.skipped) == (HELIOS_JOBS, ())


def test_quoted_commas_belong_to_the_name_and_unquoted_ones_skip_the_row(tmp_path: Path) -> None:
    text = (
        "job_id,user,vc,jobname,gpu_num,state,submit_time,start_time,end_time,duration\n"
        '1,u,v,"train, lr=0.1 ""b""",2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:02,1\n'
        "2,u,v,train, lr=0.1,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:02,1\n"
        '3,u,v,"two\nlines",2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:02,1\n'
        "4,u,v,short\n"
        "5,u,v,a\0b,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:02,1\n"
    )
    workload = _import("helios", tmp_path, text)
    assert [job.name for job in workload.jobs] == ['train, lr=0.1 "b"']
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (3, "the row has more cells than the header"),
        (5, "a text with a line break"),
        (6, "the job has not ended, its state is empty"),
        (7, "a text with a NUL character"),
    ]


def test_names_that_are_not_utf_8_are_replaced(tmp_path: Path) -> None:
    header = b"JobID|JobName|State|Submit|End|ElapsedRaw|ReqTRES\n"
    row = "1|Übung|COMPLETED|1735776000|1735776010|10|gres/gpu=1\n".encode("latin-1")
    (job,) = _import("sacct", tmp_path, header + row).jobs
    assert job.name == "\ufffdbung"


@pytest.mark.parametrize(
    ("states", "gpus", "expected"),
    [
        ("gres/gpu=1K,node=128", 1024, ""),
        ("billing=8,gres/gpu:h100=1.5K", 1536, "h100"),
        ("gres/gpu=16,mem=2M,cpu=1G", 16, ""),
    ],
)
def test_sacct_units(tmp_path: Path, states: str, gpus: int, expected: str) -> None:
    text = f"JobID|State|Submit|End|ElapsedRaw|AllocTRES\n1|COMPLETED|1735776000|1735776010|10|{states}\n"
    (job,) = _import("sacct", tmp_path, text).jobs
    assert (job.gpus, job.gpu_type) == (gpus, expected)


def test_sacct_parsable_ends_each_line_with_a_bar_and_arrays_are_jobs(tmp_path: Path) -> None:
    rows = [
        ("JobID", "State", "Submit", "End", "Elapsed", "Timelimit", "ReqTRES"),
        ("7_1", "COMPLETED", "2025-01-02T00:00:00", "2025-01-02T01:00:00", "01:00:00", "2-00:00:00", "gres/gpu=1"),
        ("7_1.extern", "COMPLETED", "2025-01-02T00:00:00", "2025-01-02T01:00:00", "01:00:00", "", "gres/gpu=1"),
        ("7_[2-9%2]", "PENDING", "2025-01-02T00:00:00", "Unknown", "00:00:00", "2-00:00:00", "gres/gpu=1"),
        ("8+0", "CANCELLED by 7", "2025-01-02T00:00:05", "2025-01-02T00:01:05", "01:00", "UNLIMITED", "gres/gpu=2"),
        ("9", "COMPLETED", "2025-01-02T00:00:05", "Unknown", "00:01:00", "UNLIMITED", "gres/gpu=2"),
        ("10", "COMPLETED", "2025-01-02T00:00:05", "2025-01-02T00:01:05", "01:00", "x", "gres/gpu=0.5"),
    ]
    workload = _import("sacct", tmp_path, "".join("|".join(row) + "|\n" for row in rows))
    assert [(job.job_id, job.gpus, job.duration_s, job.walltime_s) for job in workload.jobs] == [
        ("7_1", 1, 3600.0, 172_800.0),
        ("8+0", 2, 60.0, None),
    ]
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (3, "a step of a job"),
        (4, "the job has not ended, its state is PENDING"),
        (6, "End is not a date and time"),
        (7, "ReqTRES is not a whole number of at least 1"),
    ]


def test_sacct_without_any_run_time_in_a_row(tmp_path: Path) -> None:
    text = "JobID|State|Submit|End|ElapsedRaw|AllocTRES\n1|COMPLETED|0|9||gres/gpu=1\n"
    assert [row.reason for row in _import("sacct", tmp_path, text).skipped] == ["the run time is empty"]


def test_swf_of_other_machines(tmp_path: Path) -> None:
    """Headers in old encodings and between jobs, unknowns as fractions, floating point times, fields past the 18th."""
    text = (
        "; Installation: École\n;\n;;; Note: -1\n"
        "1 0 -1.00 30.5 8 -1 -1 -1 -1 -1 1 4 -1.0 -1.00 1 -1 -1 -1\n"
        "; Queue: 2 fast\n"
        "\t2\t10\t5\t60\t0\t-1\t-1\t16\t600\t-1\t0\t5\t1\t-1\t2\t-1\t-1\t-1\tgpu\tx\n"
        "3 -5 0 60 1 -1 -1 1 60 -1 1 4 1 -1 1 -1 -1 -1\n"
        "4 20 0 60 x -1 -1 1 60 -1 1 4 1 -1 1 -1 -1 -1\n"
        "5 20 0 nan 1 -1 -1 1 60 -1 1 4 1 -1 1 -1 -1 -1\n"
        "6 20 0 60 2000000 -1 -1 1 60 -1 1 4 1 -1 1 -1 -1 -1\n"
    )
    workload = _import("swf", tmp_path, text.encode("latin-1"))
    assert workload.jobs == (
        WorkloadJob("1", 0.0, 8, 30.5, user="4", name="p8:t-1:m-1:q1:c-1", end_time_s=30.5, final_state="succeeded"),
        WorkloadJob(
            *("2", 10.0, 16, 60.0),
            user="5",
            project="1",
            name="p16:t600:m-1:q2:c-1:gpu:x",
            end_time_s=75.0,
            walltime_s=600.0,
            final_state="failed",
        ),
    )
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (7, "the submit time is negative"),
        (8, "field 5 is not a number"),
        (9, "field 4 is not finite"),
        (10, "more than 1,000,000 GPUs"),
    ]


def test_pai_headers_in_their_own_files_or_as_first_rows(tmp_path: Path) -> None:
    job = "job_name,inst_id,user,status,start_time,end_time\n"
    task = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    # A later release might order its columns in another way: the header file says so.
    (tmp_path / "pai_group_tag_table.header").write_text("inst_id,group,user,gpu_type_spec,workload\n")
    (tmp_path / "pai_group_tag_table.csv").write_text("i,fbeb14d6,u,V100,nmt\n")
    (tmp_path / "pai_job_table.csv").write_text(f"{job}j,i,u,Terminated,1000.0,1300.0\n")
    (tmp_path / "pai_task_table.csv").write_text(
        f"{task}j,tensorflow,1.0,Terminated,1010.0,1300.0,600.0,29.3,200.0,T4\n"
    )
    workload = import_trace("pai", tmp_path)
    assert (workload.skipped, len(workload.jobs)) == ((), 1)
    (found,) = workload.jobs
    assert (found.gpus, found.duration_s, found.name, found.gpu_type) == (2, 290.0, "fbeb14d6", "V100")


def test_alibabas_pods_of_2023(tmp_path: Path) -> None:
    text = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437497\n"
        "openb-pod-0025,4000,15258,1,110,T4,LS,Failed,9437507,9437607,9437527\n"
        "openb-pod-0095,4152,10600,1,810,V100M16|V100M32,BE,Running,9437517,9437617,9437527\n"
        "openb-pod-0096,18708,64512,1,1000,,LS,Pending,10019975,10020052,\n"
        "openb-pod-0016,32000,65536,0,0,,LS,Running,8962274,12902960,8962277\n"
    )
    workload = _import("pai", tmp_path, text)
    assert workload.jobs == (
        WorkloadJob("openb-pod-0017", 0.0, 8, 1_332_357.0, end_time_s=1_332_357.0, final_state="succeeded"),
        # A share of a GPU holds a whole one.
        WorkloadJob("openb-pod-0025", 10.0, 1, 80.0, end_time_s=110.0, gpu_type="T4", final_state="failed"),
        WorkloadJob("openb-pod-0095", 20.0, 1, 90.0, end_time_s=120.0),
    )
    assert [(row.line, row.reason) for row in workload.skipped] == [
        (5, "the pod never ran, its phase is Pending"),
        (6, "the job asks for no GPU"),
    ]
