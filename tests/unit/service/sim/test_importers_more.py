"""Importers of GPU clusters' own logs, on rows written from their documented columns, each rule once."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.source_rows import SkipRow
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers import import_trace, philly_json
from service.sim.workloads.model import Workload, WorkloadJob
from service.sim.workloads.table import read_workload, write_workload
from service.slurm.accounting import slurm_final_state
from tests.simulation.traces import trace


def _file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def _reasons(workload: Workload) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in workload.skipped]


HELIOS = """\
job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
2,uAAAA,vcLJZ,train-7,8,64,1,COMPLETED,2020-04-01 00:01:40,2020-04-01 00:02:00,2020-04-01 00:03:00,60,20
1,uBBBB,vcLJZ,NA,1,4,1,CANCELLED,2020-04-01 00:00:00,None,2020-04-01 00:00:30,12,18
3,uAAAA,vcLJZ,x,0,4,1,COMPLETED,2020-04-01 00:01:40,2020-04-01 00:02:00,2020-04-01 00:03:00,60,20
4,uAAAA,vcLJZ,x,1,4,1,RUNNING,2020-04-01 00:01:40,2020-04-01 00:02:00,None,60,20
5,uAAAA,vcLJZ,x,1,4,1,FAILED,2020-04-01 00:01:40,2020-04-01 00:02:00,2020-04-01 00:02:00,0,20
6,uAAAA,vcLJZ,x,1,4,1,NODE_FAIL,2020-04-02 00:01:40,2020-04-01 00:02:00,2020-04-01 00:02:30,30,20
7,uAAAA,vcLJZ,x,1,4,1,TIMEOUT,2020-04-01 00:01:40,None,2020-04-01 00:02:30,,20
2,uAAAA,vcLJZ,x,1,4,1,TIMEOUT,2020-04-01 00:01:40,None,2020-04-01 00:02:30,5,20
"""


@pytest.mark.parametrize("name", ["cluster_log.csv", "cluster_log.csv.gz"])
def test_helios(tmp_path: Path, name: str) -> None:
    workload = import_trace("helios", _file(tmp_path, name, HELIOS))
    assert workload.jobs == (
        WorkloadJob("1", 0.0, 1, 12.0, user="uBBBB", project="vcLJZ", end_time_s=30.0, final_state="killed"),
        WorkloadJob(
            "2",
            100.0,
            8,
            60.0,
            user="uAAAA",
            project="vcLJZ",
            name="train-7",
            end_time_s=180.0,
            final_state="succeeded",
        ),
    )
    assert _reasons(workload) == [
        (4, "gpu_num is not a whole number of at least 1"),
        (5, "the job has not ended, its state is RUNNING"),
        (6, "the run time is not positive"),
        (7, "the job ends before its submission"),
        (8, "duration is not a number"),
        (9, "the job id appears twice"),
    ]


@pytest.mark.traces
def test_helios_subset_with_its_derived_gpus_and_iterations() -> None:
    """Helios (SenseTime, CC BY 4.0), the subset of later papers; 102 users, no job names."""
    workload = import_trace("helios", trace("helios-subset.csv"))
    assert len(workload.jobs) == 1_034
    assert workload.skipped == ()
    assert len({job.user for job in workload.jobs}) == 102
    assert {job.name for job in workload.jobs} == {""}
    assert (min(job.gpus for job in workload.jobs), max(job.gpus for job in workload.jobs)) == (1, 56)
    first = workload.jobs[0]
    assert (first.job_id, first.gpus, first.duration_s, first.iterations) == ("396689", 4, 633257.0, 826085656)
    assert first.end_time_s == 7 * 86400 + 7 * 3600 + 54 * 60 + 17
    assert all(job.iterations is not None for job in workload.jobs)


# The second row of each is from the trace's documentation. Kalos counts `duration` from the submission.
SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778469,u5907,1,8,128,Other,COMPLETED,2023-03-01 00:23:58+08:00,2023-03-01 00:24:11+08:00,\
2023-03-01 01:09:04+08:00,2693,13,21544.0
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778433,-,1,1,128,Evaluation,TIMEOUT,2023-02-28 16:18:22+00:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,0.0
5778434,u5907,1,0,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,0.0
"""
KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,\
submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlctk,uf794,8,64,960,1000,100.0,Pretrain,FAILED,2023-05-17 11:00:58+00:00,\
2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
"""


def test_acme_seren(tmp_path: Path) -> None:
    workload = import_trace("acme", _file(tmp_path, "trace_seren.csv", SEREN))
    assert workload.jobs == (
        WorkloadJob("5778432", 0.0, 8, 117.0, user="u5907", name="Other", end_time_s=149.0, final_state="failed"),
        WorkloadJob("5778433", 0.0, 1, 117.0, name="Evaluation", end_time_s=149.0, final_state="killed"),
        WorkloadJob(
            "5778469", 336.0, 8, 2693.0, user="u5907", name="Other", end_time_s=3042.0, final_state="succeeded"
        ),
    )
    assert _reasons(workload) == [(5, "gpu_num is not a whole number of at least 1")]


def test_acme_kalos_counts_its_duration_from_the_submission(tmp_path: Path) -> None:
    workload = import_trace("acme", _file(tmp_path, "trace_kalos.csv.gz", KALOS))
    assert workload.jobs == (
        WorkloadJob("dlctk", 0.0, 64, 8.0, user="uf794", name="Pretrain", end_time_s=18.0, final_state="failed"),
    )


PAI_JOB = """\
j-two,i-two,u1,Terminated,1100.0,1400.0
j-one,i-one,u1,Failed,1000.0,1300.0
j-run,i-run,u1,Running,1000.0,
j-cpu,i-cpu,u1,Terminated,1000.0,1300.0
j-lost,i-lost,u1,Terminated,1000.0,1300.0
j-end,i-end,u1,Terminated,1000.0,0.0
j-late,i-late,u1,Terminated,1000.0,1300.0
"""
PAI_TASK = """\
j-two,ps,1.0,Terminated,1150.0,1400.0,600.0,29.3,,
j-two,worker,3.0,Terminated,1160.0,1400.0,600.0,29.3,50.0,T4
j-two,chief,1.0,Terminated,1170.0,1400.0,600.0,29.3,100.0,T4
j-one,tensorflow,1.0,Failed,1000.0,1300.0,600.0,29.3,25.0,MISC
j-cpu,tensorflow,4.0,Terminated,1000.0,1300.0,600.0,29.3,0.0,CPU
j-end,tensorflow,1.0,Terminated,1000.0,,600.0,29.3,100.0,T4
j-late,tensorflow,1.0,Terminated,,,600.0,29.3,100.0,T4
"""
PAI_GROUP = "i-two,u1,V100,fbeb14d6,nmt\ni-one,u1,,fbeb14d6,\n"


def _pai_folder(tmp_path: Path, suffix: str = "") -> Path:
    _file(tmp_path, f"pai_job_table.csv{suffix}", PAI_JOB)
    _file(tmp_path, f"pai_task_table.csv{suffix}", PAI_TASK)
    _file(tmp_path, f"pai_group_tag_table.csv{suffix}", PAI_GROUP)
    return tmp_path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_pai_tables(tmp_path: Path, suffix: str) -> None:
    workload = import_trace("pai", _pai_folder(tmp_path, suffix))
    assert workload.jobs == (
        # A quarter of a GPU holds a whole one.
        WorkloadJob("j-one", 0.0, 1, 300.0, user="u1", name="fbeb14d6", end_time_s=300.0, final_state="failed"),
        # 3 x 50% + 100% = 2.5 GPUs; launched with its first task.
        WorkloadJob(
            "j-two",
            100.0,
            3,
            250.0,
            user="u1",
            name="fbeb14d6",
            end_time_s=400.0,
            gpu_type="V100",
            final_state="succeeded",
        ),
    )
    assert _reasons(workload) == [
        (3, "the job has not ended, its status is Running"),
        (4, "the job asks for no GPU"),
        (5, "the job has no task"),
        (6, "the job ends before its submission"),
        (7, "no task was launched before the job's end"),
    ]


def test_pai_names_the_table_that_is_missing(tmp_path: Path) -> None:
    _file(tmp_path, "pai_task_table.csv", PAI_TASK)
    with pytest.raises(WorkloadError, match=r"neither pai_group_tag_table\.csv nor pai_group_tag_table\.csv\.gz"):
        import_trace("pai", tmp_path)


def test_the_table_of_pais_simulator(tmp_path: Path) -> None:
    text = (
        "job_id,user,num_gpu,num_cpu,num_pod,duration,job_name,submit_time,group,gpu_type,wait_time,user_dur,group_dur,group_gpu_dur\n"
        "12,u1,0.5,6,3,100,jx,1030,g1,T4,7.0,1,2,3\n"
        "11,u2,1,6,1,40,jy,1000,,MISC,,1,2,3\n"
        "13,u2,0,6,1,40,jy,1000,g,CPU,0,1,2,3\n"
        "14,u2,1,6,1,0,jy,1000,g,T4,0,1,2,3\n"
        "15,u2,1,6,1,5e-324,jy,1000,g,T4,0,1,2,3\n"
    )
    workload = import_trace("pai", _file(tmp_path, "pai_job_duration_estimate_100K.csv", text))
    assert workload.jobs == (
        WorkloadJob("11", 0.0, 1, 40.0, user="u2", end_time_s=40.0, gpu_type="MISC"),
        WorkloadJob("12", 30.0, 2, 100.0, user="u1", name="g1", end_time_s=137.0, gpu_type="T4"),
    )
    assert _reasons(workload) == [
        (4, "the job asks for no GPU"),
        (5, "duration is not positive"),
        (6, "a run time below 0.000001 s"),
    ]


SACCT_HEADER = "JobID|User|Account|JobName|State|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|ReqTRES\n"
SACCT = SACCT_HEADER + (
    "70|ann|nlp|gpt|COMPLETED|2025-01-02T00:00:10|2025-01-02T00:00:20|2025-01-02T01:00:20|3600|120|"
    "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1|gres/gpu=4\n"
    "70.batch|||batch|COMPLETED|2025-01-02T00:00:10|2025-01-02T00:00:20|2025-01-02T01:00:20|3600||cpu=8,gres/gpu=4|\n"
    "69|bob|cv|resnet|CANCELLED by 1000|2025-01-02T00:00:00|2025-01-02T00:00:20|2025-01-02T00:01:20|60|UNLIMITED|"
    "cpu=8,gres/gpu:a100=1,gres/gpu:v100=2,node=2|\n"
    '71|bob|cv|say "hi"|OUT_OF_MEMORY|2025-01-02T00:00:30|2025-01-02T00:01:00|2025-01-02T00:02:00|60||cpu=1|gres/gpu=2\n'
    "72|bob|cv|a|b|COMPLETED|2025-01-02T00:00:30|2025-01-02T00:01:00|2025-01-02T00:02:00|60||cpu=1|gres/gpu=2\n"
    "73|bob|cv|cpu|COMPLETED|2025-01-02T00:00:30|2025-01-02T00:01:00|2025-01-02T00:02:00|60||cpu=1,node=1|cpu=1\n"
    "74|bob|cv|new|PENDING|2025-01-02T00:00:30|Unknown|Unknown|0||gres/gpu=1|gres/gpu=1\n"
    "75|bob|cv|gone|CANCELLED by 1000|2025-01-02T00:00:30|None|2025-01-02T00:00:40|0||gres/gpu=1|gres/gpu=1\n"
    "76|bob|cv|short\n"
)


def test_sacct(tmp_path: Path) -> None:
    workload = import_trace("sacct", _file(tmp_path, "jobs.txt.gz", SACCT))
    assert workload.jobs == (
        WorkloadJob("69", 0.0, 3, 60.0, user="bob", project="cv", name="resnet", end_time_s=80.0, final_state="killed"),
        WorkloadJob(
            "70",
            10.0,
            4,
            3600.0,
            user="ann",
            project="nlp",
            name="gpt",
            end_time_s=3620.0,
            walltime_s=7200.0,
            gpu_type="a100",
            final_state="succeeded",
        ),
        WorkloadJob(
            "71", 30.0, 2, 60.0, user="bob", project="cv", name='say "hi"', end_time_s=120.0, final_state="failed"
        ),
    )
    assert _reasons(workload) == [
        (3, "a step of a job"),
        (6, "the row has not as many cells as the header (a job's name may hold a bar)"),
        (7, "the job has no GPU"),
        (8, "the job has not ended, its state is PENDING"),
        (9, "the job never ran"),
        (10, "the row has not as many cells as the header (a job's name may hold a bar)"),
    ]


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("1-02:03:04", 93784.0), ("02:03:04", 7384.0), ("03:04", 184.0), ("00:00:30.5", 30.5)]
)
def test_sacct_reads_elapsed_times_limits_and_epochs(tmp_path: Path, elapsed: str, seconds: float) -> None:
    text = f"JobID|State|Submit|End|Elapsed|Timelimit|ReqTRES\n1|COMPLETED|1735776000|1735872000|{elapsed}|{elapsed}|gres/gpu=1\n"
    (job,) = import_trace("sacct", _file(tmp_path, "jobs.txt", text)).jobs
    assert (job.duration_s, job.walltime_s, job.end_time_s) == (seconds, seconds, 96000.0)


def test_sacct_falls_back_on_start_and_end(tmp_path: Path) -> None:
    text = "JobID|State|Submit|Start|End|ReqTRES\n1|PREEMPTED|1735776000|1735776010|1735776025|gres/gpu=1\n"
    (job,) = import_trace("sacct", _file(tmp_path, "jobs.txt", text)).jobs
    assert (job.duration_s, job.end_time_s, job.final_state) == (15.0, 25.0, "killed")


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("JobID|State|Submit", "End"),
        ("JobID|State|Submit|End|ElapsedRaw", "AllocTRES"),
        ("JobID|State|Submit|End|AllocTRES", "ElapsedRaw"),
    ],
)
def test_sacct_names_the_column_that_is_missing(tmp_path: Path, header: str, column: str) -> None:
    row = "|".join("1" for _ in header.split("|"))
    with pytest.raises(WorkloadError, match=f"{column}: "):
        import_trace("sacct", _file(tmp_path, "jobs.txt", f"{header}\n{row}\n"))


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "REQUEUED", "", None])
def test_a_job_that_has_not_ended_is_skipped(state: str | None) -> None:
    with pytest.raises(SkipRow, match="has not ended"):
        slurm_final_state(state)


@pytest.mark.parametrize("trace_format", ["helios", "acme", "sacct", "pai"])
def test_an_empty_file_is_an_error(tmp_path: Path, trace_format: str) -> None:
    with pytest.raises(WorkloadError, match="this column is missing"):
        import_trace(trace_format, _file(tmp_path, "x.csv", ""))


# Philly's own log


def _attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    detail = [{"ip": f"m{server}", "gpus": [f"gpu{i}" for i in range(count)]} for server, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def _job(job_id: str, attempts: list[dict[str, object]], **changed: object) -> dict[str, object]:
    job = {"status": "Pass", "vc": "ee9e8c", "jobid": job_id, "attempts": attempts, "user": "ce2f4c"}
    return {**job, "submitted_time": "2017-10-07 01:11:39", **changed}


PHILLY: list[object] = [
    _job(
        "a_2",
        [
            _attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
            _attempt("2017-10-07 01:13:30", "2017-10-09 06:53:12", 8, 4),
        ],
    ),
    _job("a_1", [_attempt("2017-10-07 01:11:40", "2017-10-07 01:11:50", 1)], submitted_time="2017-10-07 01:10:39"),
    _job("a_3", []),
    _job("a_4", [_attempt("2017-10-07 01:12:09", None, 1)]),
    _job("a_5", [_attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23")]),
    _job("a_6", [_attempt("2017-10-07 01:12:09", "2017-10-07 01:12:09", 1)], status="Failed"),
    "not a job",
    _job("a_7", [_attempt("2017-10-07 01:12:09", "2017-10-07 01:12:10", 1)], status="Killed", submitted_time="None"),
]


@pytest.mark.parametrize("name", ["cluster_job_log", "cluster_job_log.gz"])
def test_philly_log_and_table_are_distinguished_by_their_content(tmp_path: Path, name: str) -> None:
    text = "[\n" + ",\n".join(json.dumps(job) for job in PHILLY) + "\n]\n"
    workload = import_trace("philly", _file(tmp_path, name, text))
    assert workload.jobs == (
        WorkloadJob("a_1", 0.0, 1, 10.0, user="ce2f4c", project="ee9e8c", end_time_s=71.0, final_state="succeeded"),
        WorkloadJob(
            "a_2",
            60.0,
            12,
            74.0 + 193_182.0,
            user="ce2f4c",
            project="ee9e8c",
            end_time_s=60.0 + 193_293.0,
            final_state="succeeded",
        ),
    )
    assert _reasons(workload) == [
        (4, "the job has no attempt"),
        (5, "end_time of an attempt is not a date and time"),
        (6, "no attempt names a GPU"),
        (7, "the run time is not positive"),
        (8, "the element is not an object"),
        (9, "submitted_time is not a date and time"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jobid": 1}', "must hold a JSON list"),
        ("[1 2]", "a comma or the end of the list is missing"),
        ("[1,\n2,", ":2: not a JSON value"),
        ("[1,\n{]", ":2: not a JSON value"),
        ("[1] 2", "there is text after the list"),
        ("[1,", "not a JSON value"),
        ("[" * 200_000, "recursion"),
    ],
)
def test_a_damaged_log_is_an_error_not_a_shorter_trace(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        import_trace("philly", _file(tmp_path, "log.json", text))


@settings(max_examples=60, deadline=None)
@given(
    elements=st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=9) | st.floats(allow_nan=False),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=6,
    ),
    indent=st.none() | st.integers(0, 3),
)
def test_a_list_decoded_job_by_job_equals_the_whole_list(
    tmp_path_factory: pytest.TempPathFactory, elements: list[object], indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.json"
    path.write_text(json.dumps(elements, indent=indent), encoding="utf-8")
    assert [element for _, element in philly_json._jobs(path)] == elements


def test_every_import_is_a_valid_table(tmp_path: Path) -> None:
    (tmp_path / "pai").mkdir()
    imported = [
        import_trace("helios", _file(tmp_path, "h.csv", HELIOS)),
        import_trace("acme", _file(tmp_path, "a.csv", SEREN)),
        import_trace("pai", _pai_folder(tmp_path / "pai")),
        import_trace("sacct", _file(tmp_path, "s.txt", SACCT)),
        import_trace("philly", _file(tmp_path, "p.json", json.dumps(PHILLY))),
    ]
    for workload in imported:
        write_workload(workload, tmp_path / "w.csv")
        assert read_workload(tmp_path / "w.csv").jobs == workload.jobs != ()
