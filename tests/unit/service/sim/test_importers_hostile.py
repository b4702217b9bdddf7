"""Importers and damaged, foreign or malicious files: one clear error line, or a valid table, never a traceback."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from service.sim.workloads.files import WorkloadError
from service.sim.workloads.importers import IMPORTERS, import_trace
from service.sim.workloads.table import read_workload, write_workload
from tests.unit.service.cli.cli_world import app_of_group

app = app_of_group("workload")

RUNNER = CliRunner()

ROWS = {
    "philly": "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,{},{},{}\n",
    "elasticflow": "job_id,submission_time,duration,num_gpu\n{},{},{},{}\n",
    "helios": "job_id,user,vc,gpu_num,state,submit_time,start_time,end_time,duration,total_iterations\n"
    "{},{},v,{},COMPLETED,2020-04-01 00:00:00,None,2020-04-02 00:00:00,{},{}\n",
    "acme": "job_id,user,gpu_num,state,submit_time,start_time,end_time,duration,type\n"
    "{},u,{},FAILED,2023-03-01 00:18:22+08:00,{},{},7,{}\n",
    "pai": "job_id,user,num_gpu,duration,submit_time,group,num_inst,wait_time\n1,{},{},{},{},{},{},{}\n",
    "swf": "1 {} {} {} {} -1 -1 {} {} -1 1 3 2 11 1 2 -1 -1 {}\n",
    "sacct": "JobID|State|Submit|End|ElapsedRaw|TimelimitRaw|AllocTRES|JobName\n{}|COMPLETED|{}|{}|{}|{}|gres/gpu={}|{}\n",
    "sooner": "job_id,submit_time_s,gpus,duration_s,end_time_s,iterations,name\n{},{},{},{},{},{},{}\n",
}
"""A row of each format with holes where a damaged or malicious file may hold anything."""

CELLS = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "-1",
                "0",
                "-0",
                "1",
                "8",
                "2.5",
                "nan",
                "inf",
                "-inf",
                "1e308",
                "-1e308",
                "1e-320",
                "9" * 400,
                "1_000",
            ),
            *(
                "Unknown",
                "None",
                "\ufeff",
                "\x00",
                '"',
                '"a,b"',
                "'",
                "=cmd()",
                "a|b",
                "a,b",
                "é",
                "١٢",
                "1735776000",
                "1K",
            ),
            *("9999-12-31 23:59:59", "0001-01-01 00:00:00+23:59", "2020-04-01T00:00:00Z", "2020-04-01", "99-99:99:99"),
        ]
    ),
    st.integers(0, 20_000).map(str),
    st.text(max_size=6),
)


@pytest.mark.parametrize("trace_format", sorted(ROWS))
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_arbitrary_cells_give_an_error_or_a_valid_table(
    trace_format: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = ROWS[trace_format]
    text = rows.format(*(data.draw(CELLS) for _ in range(rows.count("{}"))))
    path = tmp_path_factory.mktemp("hostile") / "trace"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    _imports_or_refuses(trace_format, path)


def _imports_or_refuses(trace_format: str, path: Path) -> None:
    try:
        workload = import_trace(trace_format, path)
    except WorkloadError:
        return
    out = path.with_name("w.csv")
    write_workload(workload, out)
    assert read_workload(out).jobs == workload.jobs


@given(
    job=st.dictionaries(st.sampled_from(["jobid", "user", "vc", "status", "submitted_time"]), st.text() | st.integers())
)
@settings(max_examples=100, deadline=None)
def test_an_arbitrary_philly_log_gives_an_error_or_a_valid_table(
    job: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    attempt = {
        "start_time": "2017-10-07 01:12:09",
        "end_time": "2017-10-07 01:13:23",
        "detail": [{"ip": "m47", "gpus": ["gpu0"]}],
    }
    path = tmp_path_factory.mktemp("hostile") / "log.json"
    whole = {"jobid": "a", "submitted_time": "2017-10-07 01:11:39", "attempts": [attempt], **job}
    path.write_text(json.dumps([whole]), encoding="utf-8")  # lone halves of surrogate pairs as escapes
    _imports_or_refuses("philly", path)


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def _truncated(path: Path) -> None:
    lines = "".join(f"{number} {number} {number * 7919 % 1000} 9 1 0 0 1\n" for number in range(5000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])


DAMAGED: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.write_bytes(b""),
    "a folder": lambda path: path.mkdir(),
    "binary": _binary,
    "truncated gzip": _truncated,
    "broken gzip": lambda path: path.write_bytes(b"\x1f\x8b\x08" + b"x" * 500),
    "one huge cell": lambda path: path.write_bytes(b"x" * 3_000_000),
    "nulls": lambda path: path.write_bytes(b"\0" * 1000),
    "another format": lambda path: path.write_text("a;b;c\n1;2;3\n"),
    "JSON": lambda path: path.write_text('{"jobs": [' + "[" * 9000),
}


@pytest.mark.parametrize("damage", sorted(DAMAGED))
@pytest.mark.parametrize("trace_format", sorted(IMPORTERS))
def test_a_file_that_is_not_a_trace_gives_one_line_and_exit_code_2(
    tmp_path: Path, trace_format: str, damage: str
) -> None:
    path, out = tmp_path / "trace", tmp_path / "w.csv"
    DAMAGED[damage](path)
    result = RUNNER.invoke(app, ["import", "--format", trace_format, str(path), "--out", str(out)])
    assert (result.exit_code, result.stdout, out.exists()) == (2, "", False), result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(path) in line
    assert len(line) < 500


def test_each_importer_refuses_the_other_formats(tmp_path: Path) -> None:
    for written, text in ROWS.items():
        path = tmp_path / written
        path.write_text(text.format(*"12345678"))
        for read in sorted(IMPORTERS.keys() - {written}):
            result = RUNNER.invoke(app, ["import", "--format", read, str(path), "--out", str(tmp_path / "w.csv")])
            assert result.exit_code == 2, (written, read)
            assert result.stderr.count("\n") == 1, (written, read, result.stderr)
