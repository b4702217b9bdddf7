"""Whatever comes in from outside is answered or refused: job bodies, files of clusters and workloads, progress, stored models."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from httpx import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor import artifacts
from predictor.errors import ArtifactError
from service.api.app import create_app
from service.config.cluster_file import ClusterFileError, load_cluster
from service.executors.progress import ProgressFile
from service.sim.workloads.files import WorkloadError
from service.sim.workloads.generate import generate
from service.sim.workloads.table import read_workload, write_workload
from service.wire import examples
from tests.api.client import client_of
from tests.api.conftest import make_world
from tests.crash.nasty import BYTES, VALUES, almost, spoiled
from tests.unit.predictor.predictor_history import small_model

CLUSTER: dict[str, Any] = {
    "schema": "sooner.cluster/1",
    "name": "fuzzed",
    "servers": [
        {"count": 2, "gpus": 8, "gpu_type": "P100", "rack": "r1", "nic_gbps": 100, "intra_gbps": 960},
        {"names": ["a", "b"], "gpus": 4, "gpu_type": "V100", "gpu_speed": 1.5, "gpu_memory_gib": 16},
    ],
    "tiers": {"rack_gbps": 400, "core_gbps": 1600},
}
PARTS = ("..", ".", "", "%2e%2e", "%2f", "jobs", "1", "logs", "-1", "1.1", "~", "\\", "%00")
JOBS = [examples.JOB, examples.PLAIN_JOB, {"jobs": [examples.PLAIN_JOB, examples.PLAIN_JOB]}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    world = make_world(tmp_path_factory.mktemp("fuzz"), jobs_queued_max=1_000_000)
    yield client_of(create_app(world.dependencies()), world.token)
    world.database.close()


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(body=st.one_of(*map(almost, JOBS), VALUES))
def test_a_job_body_is_taken_or_refused_with_a_reason(client: Client, body: Any) -> None:
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    answer = client.post("/v1/jobs", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 400, 413, 422, 429), answer.text
    if answer.status_code != 201:
        problem = answer.json()
        assert problem["detail"] and answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 100_000, "a refusal is not larger than what it refuses"


@settings(max_examples=100, deadline=None)
@given(raw=spoiled(json.dumps(examples.JOB).encode()))
def test_the_bytes_of_a_body_may_be_anything(client: Client, raw: bytes) -> None:
    answer = client.post("/v1/jobs", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 400, 422), answer.text


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"name":["'])
@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_a_body_nested_too_deeply_is_refused(client: Client, opening: str, levels: int) -> None:
    answer = client.post("/v1/jobs", content=opening * levels, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text


@settings(max_examples=60, deadline=None)
@given(
    key=st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n"), min_size=1, max_size=300)
)
def test_an_idempotency_key_may_be_anything(client: Client, key: str) -> None:
    answer = client.post("/v1/jobs", json=examples.PLAIN_JOB, headers={"Idempotency-Key": key.encode("latin-1")})
    assert answer.status_code in (201, 422), answer.text


@settings(max_examples=150, deadline=None)
@given(path=st.lists(st.sampled_from(PARTS), max_size=7))
def test_no_path_leads_out_of_the_api(client: Client, path: list[str]) -> None:
    answer = client.get("/v1/" + "/".join(path))
    assert answer.status_code in (200, 400, 401, 404, 405, 409, 422), answer.text
    assert "root:" not in answer.text


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(document=st.one_of(almost(CLUSTER), VALUES))
def test_a_cluster_file_is_read_or_refused_by_its_key(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    _load_or_refuse(tmp_path_factory.getbasetemp() / "fuzzed.yaml", _yaml(document))


@settings(max_examples=150, deadline=None)
@given(raw=spoiled(yaml.safe_dump(CLUSTER).encode()))
def test_the_bytes_of_a_cluster_file_may_be_anything(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    _load_or_refuse(tmp_path_factory.getbasetemp() / "fuzzed.yaml", raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"a: &a [x, x]\n" + b"".join(b"%c: &%c [*%c, *%c, *%c]\n" % (n + 1, n + 1, n, n, n) for n in range(97, 120)),
        b"[" * 20_000,
        b"servers: !!python/object/apply:os.system ['true']",
        b"&a [*a]",
        b"servers: &a {x: *a}",
        b"\xff\xfe\x00",
        b"? [1, 2]\n: 3",
    ],
    ids=["aliases", "deep", "object", "cycle", "cyclic-map", "bom", "list-as-key"],
)
def test_a_cluster_file_that_is_a_trap_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "trap.yaml"
    path.write_bytes(raw)
    with pytest.raises(ClusterFileError):
        load_cluster(path)


def _yaml(document: Any) -> bytes:
    """JSON is YAML, and is written at any depth."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _load_or_refuse(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    try:
        assert load_cluster(path).gpus > 0
    except ClusterFileError as refused:
        told = str(refused)
    else:
        return
    assert told.startswith(str(path))
    assert "\n" not in told


@pytest.fixture(scope="module")
def workload_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("workload") / "w.csv"
    write_workload(generate(1, 12), path)
    return path.read_bytes()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_workload_file_is_read_or_refused_by_line_and_column(
    tmp_path_factory: pytest.TempPathFactory, workload_bytes: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_bytes(data.draw(spoiled(workload_bytes)))
    for skip_invalid in (False, True):
        told = str(path)
        try:
            workload = read_workload(path, skip_invalid=skip_invalid)
            assert all(job.gpus >= 1 and job.duration_s > 0.0 for job in workload.jobs)
        except WorkloadError as refused:
            told = str(refused)
        assert str(path) in told


@settings(max_examples=200, deadline=None)
@given(
    chunks=st.lists(
        st.one_of(
            BYTES,
            almost({"iteration": 5, "total_iterations": 50, "checkpoint_iteration": 4, "loss": 0.5}).map(
                lambda line: json.dumps(line).encode("utf-8", "surrogatepass") + b"\n"
            ),
            st.sampled_from([b"\n", b'{"iteration": 1', b"}\n", b"[" * 5000 + b"\n", b"9" * 70_000]),
        ),
        max_size=12,
    )
)
def test_a_progress_file_may_hold_anything(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "progress.jsonl"
    path.write_bytes(b"")
    reader, before = ProgressFile(path, 0.0), 0.0
    for second, chunk in enumerate(chunks):
        with path.open("ab") as stream:
            stream.write(chunk)
        reader.read(float(second), final=second == len(chunks) - 1)
        iteration = reader.progress.iteration or 0.0
        assert iteration >= before, "progress never falls"
        assert (reader.progress.checkpoint_iteration or 0.0) <= iteration
        before = iteration


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("model") / "whole"
    return folder, artifacts.save(small_model(), folder)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_stored_model_that_was_touched_is_refused(model: tuple[Path, str], data: st.DataObject) -> None:
    """Also where only the registry's record of it could tell, and where there is none."""
    folder, digest = model
    copy = Path(shutil.copytree(folder, folder.with_name("copy"), dirs_exist_ok=True))
    path = copy / data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
    before = path.read_bytes()
    path.write_bytes(data.draw(spoiled(before)))
    if path.read_bytes() == before:
        return
    with pytest.raises(ArtifactError):
        artifacts.load(copy, manifest_sha256=digest)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_manifest_of_ones_own_making_is_read_or_refused(model: tuple[Path, str], data: st.DataObject) -> None:
    folder, _ = model
    copy = Path(shutil.copytree(folder, folder.with_name("copy"), dirs_exist_ok=True))
    manifest = json.loads((folder / artifacts.MANIFEST).read_text())
    raw = json.dumps(data.draw(almost(manifest))).encode("utf-8", "surrogatepass")
    (copy / artifacts.MANIFEST).write_bytes(raw)
    try:
        artifacts.load(copy)
    except ArtifactError:
        pass


@pytest.mark.parametrize("raw", [b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe", b"null", b""])
def test_a_manifest_that_is_a_trap_is_refused(model: tuple[Path, str], tmp_path: Path, raw: bytes) -> None:
    copy = Path(shutil.copytree(model[0], tmp_path / "copy"))
    (copy / artifacts.MANIFEST).write_bytes(raw)
    with pytest.raises(ArtifactError):
        artifacts.load(copy)
