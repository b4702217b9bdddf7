"""``sooner job plan``: what is printed, the document, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.unit.service.plans.model_configs import CONFIGS

RUNNER = CliRunner()
MEGATRON = (
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --sequence-parallel --micro-batch-size 1"
    " --global-batch-size 128 --bf16 --use-distributed-optimizer --hidden-dropout 0 --attention-dropout 0"
)
ON_64 = ("--from-megatron", MEGATRON, "--model", "llama3-70b", "--gpus", "64")


CLUSTER = """
schema: sooner.cluster/1
name: lab
servers:
  - {count: 4, gpus: 8, gpu_type: A100, gpu_memory_gib: 40, nic_gbps: 400, intra_gbps: 2400}
  - {count: 2, gpus: 4, gpu_type: H100}
"""


def plan(*options: str, gpu_type: str | None = "h100") -> tuple[int, str, str]:
    typed = ("--gpu-type", gpu_type) if gpu_type is not None else ()
    done = RUNNER.invoke(app, ["job", "plan", *typed, *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def document(*options: str, gpu_type: str | None = "h100", code: int = 0) -> dict[str, Any]:
    found, out, err = plan(*options, "--json", gpu_type=gpu_type)
    assert found == code, err
    answer: dict[str, Any] = json.loads(out)
    assert answer["schema"] == "sooner.plan/1"
    return answer


def test_the_text_names_the_origin_of_each_value_and_the_memory() -> None:
    code, out, err = plan(*ON_64, "--nodes", "8")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "llama3-70b, 70.6B parameters, on 64 H100"
    assert "data                   4  64 GPUs / (tensor 8 x pipeline 2)" in lines
    assert "sequence            8192  sample of llama3-70b" in lines
    assert any(line.startswith("Iteration: ") and " tokens/s (" in line and ", limited by " in line for line in lines)
    assert any(line.split()[:2] == ["matrix", "products"] and line.endswith("%") for line in lines)
    assert "The fastest plans on these GPUs:" in lines
    assert any(
        line.startswith("Memory of each GPU of stage 0: ") and line.endswith(" of 80.0 GiB, fits") for line in lines
    )


def test_the_document() -> None:
    found = document(*ON_64)
    assert found["gpus"] == 64
    assert found["gpu_type"] == "H100"
    assert found["model"]["name"] == "llama3-70b"
    assert (found["plan"]["data"], found["plan"]["tensor"], found["plan"]["micro_batches"]) == (4, 8, 32)
    assert {"field": "data", "value": "4", "origin": "64 GPUs / (tensor 8 x pipeline 2)"} in found["sources"]
    time = found["iteration"]
    assert time["time_s"] == pytest.approx(sum(time["parts_s"].values()))
    assert time["parts_s"][time["bottleneck"]] == max(time["parts_s"].values())
    assert time["tokens_per_s"] == pytest.approx(128 * 8192 / time["time_s"])
    assert time["tokens_per_s_per_gpu"] == pytest.approx(time["tokens_per_s"] / 64)
    assert time["gpu_hours_per_billion"] == pytest.approx(64 * 1e9 / time["tokens_per_s"] / 3600)
    memory = found["memory"]
    assert memory["fits"]
    assert found["nearest"] == []
    assert memory["peak_bytes"] == pytest.approx(sum(memory["parts_bytes"].values()), abs=10)


def test_a_plan_that_does_not_fit_ends_with_1() -> None:
    found = document(*ON_64, gpu_type="A100-40", code=1)
    assert not found["memory"]["fits"]
    assert found["nearest"]
    for near in found["nearest"]:
        assert near["peak_bytes"] <= found["memory"]["limit_bytes"] < found["memory"]["peak_bytes"]
        assert near["plan"]["global_batch"] == 128
        assert near["time_s"] > 0
    code, out, _ = plan(*ON_64, gpu_type="A100-40")
    assert code == 1
    assert " of 40.0 GiB, does not fit" in out
    assert "SPEED" not in out  # a plan that cannot run has none to compare with
    assert f"would fit: {found['nearest'][0]['changes']} (" in out


def test_the_alternatives_use_the_same_gpus_and_batch_and_are_ranked() -> None:
    found = document(*ON_64)
    speeds = [each["tokens_per_s"] for each in found["alternatives"]]
    assert speeds == sorted(speeds, reverse=True)
    assert len(speeds) > 2
    for each in found["alternatives"]:
        assert (each["plan"]["gpus"], each["plan"]["global_batch"], each["plan"]["sequence"]) == (64, 128, 8192)
        assert each["peak_bytes"] <= found["memory"]["limit_bytes"]
        assert each["limit"] in found["iteration"]["parts_s"]


def test_a_model_alone_is_ranked() -> None:
    options = ("--model", "llama3-8b", "--gpus", "16")
    found = document(*options)
    assert (found["plan"], found["iteration"], found["memory"]) == (None, None, None)
    # 4,194,304 tokens of an iteration are 512 samples of 8,192 tokens.
    assert {"field": "global_batch", "value": "512", "origin": "assumed: 32 a GPU"} in found["sources"]
    assert {each["plan"]["global_batch"] for each in found["alternatives"]} == {512}
    changed = document(*options, "--global-batch", "64", "--sequence", "2048", "--precision", "fp8")
    plan_of_first = changed["alternatives"][0]["plan"]
    assert (plan_of_first["global_batch"], plan_of_first["sequence"], plan_of_first["precision"]) == (64, 2048, "fp8")
    code, out, _ = plan(*options)
    assert code == 0
    assert "Iteration: " not in out
    assert "The fastest plans on these GPUs:" in out


def test_a_model_too_large_for_the_gpus_ends_with_1() -> None:
    options = ("--model", "llama3-405b", "--gpus", "2")
    assert document(*options, gpu_type="T4", code=1)["alternatives"] == []
    code, out, _ = plan(*options, gpu_type="T4")
    assert code == 1
    assert "No plan of these GPUs fits their memory." in out


def test_fewer_gpus_on_a_server_narrow_the_nvlink_domain() -> None:
    one, two = (document(*ON_64, "--nodes", nodes)["iteration"] for nodes in ("8", "32"))
    assert two["parts_s"]["tensor"] > one["parts_s"]["tensor"]


def test_images_are_counted_in_samples() -> None:
    found = document("--model", "resnet-50", "--gpus", "8")
    assert found["unit"] == "samples"
    assert "SAMPLES/S" in plan("--model", "resnet-50", "--gpus", "8")[1]


def test_each_reader_is_reached(tmp_path: Path) -> None:
    deepspeed, accelerate, model = tmp_path / "ds.json", tmp_path / "accelerate.yaml", tmp_path / "config.json"
    deepspeed.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    accelerate.write_text(
        "{distributed_type: DEEPSPEED, num_processes: 16, deepspeed_config: {deepspeed_config_file: ds.json}}"
    )
    model.write_text(json.dumps(CONFIGS["llama-3.1-8b"]))
    common = ("--model", str(model), "--sequence", "4096")
    torchrun = (
        "torchrun --nnodes 2 --nproc-per-node 8 train.py --bf16 --fsdp full_shard --per_device_train_batch_size 1"
    )
    for options in (
        ("--from-deepspeed", str(deepspeed), "--gpus", "16"),
        ("--from-accelerate", str(accelerate)),
        ("--from-torchrun", torchrun),
    ):
        found = document(*options, *common)
        assert (found["plan"]["data"], found["plan"]["zero_stage"], found["plan"]["sequence"]) == (16, 3, 4096)
        assert found["model"]["parameters"] == pytest.approx(8.03e9, rel=1e-3)


def test_warnings_go_to_standard_error() -> None:
    code, out, err = plan(*ON_64[:1], MEGATRON + " --optimizer-cpu-offload", *ON_64[2:])
    assert code == 0
    assert err == "warning: --optimizer-cpu-offload: optimizer states on the CPU are counted as GPU memory\n"
    assert "warning" not in out


@pytest.mark.parametrize(
    ("precision", "gpu_type", "err"),
    [
        ("fp8", "a100-80", "warning: precision fp8: A100-80 has no such matrix units; timed in bf16\n"),
        ("fp4", "h100", "warning: precision fp4: H100 has no such matrix units; timed in fp8\n"),
        ("fp8", "h100", ""),
        ("tf32", "v100-32", ""),  # runs in fp32 there, and no library says so
    ],
)
def test_a_precision_that_the_gpu_lacks_is_a_warning(precision: str, gpu_type: str, err: str) -> None:
    options = ("--model", "gpt2-xl", "--gpus", "8", "--precision", precision)
    assert plan(*options, gpu_type=gpu_type)[::2] == (0, err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--model", "llama3-8b", "--from-megatron", "", "--from-torchrun", ""),
            "--from-megatron and --from-torchrun exclude each other",
        ),
        (("--from-megatron", MEGATRON, "--gpus", "64"), "sequence: is in neither the configuration nor the options"),
        (
            ("--from-megatron", MEGATRON, "--gpus", "64", "--sequence", "4096"),
            "model: is not in the configuration; add --model",
        ),
        (
            ("--gpus", "64"),
            "give a configuration (--from-megatron, --from-deepspeed, --from-accelerate, --from-torchrun)",
        ),
        (("--model", "llama3-8b"), "gpus: is in neither the configuration nor the options"),
        (
            ("--model", "llama3-8b", "--gpus", "8", "--micro-batch", "4"),
            "--micro-batch: must be left out without a configuration: a ranking chooses that of each plan (got 4)",
        ),
        ((*ON_64[:-1], "60"), "gpus: must be a multiple of tensor 8 x pipeline 2 = 16 (got 60, --gpus)"),
        (
            ("--from-megatron", MEGATRON, "--model", "llama-70", "--gpus", "64"),
            "model: 'llama-70' is neither a file nor in",
        ),
        (("--from-deepspeed", "absent.json", "--model", "llama3-8b"), "absent.json: No such file or directory"),
        (("--from-megatron", "--bf16 'open", "--model", "llama3-8b"), "arguments: cannot be split into words"),
        (("--from-megatron", "--seq-length 4\x1b[31m", "--model", "llama3-8b"), "--seq-length: must be a whole number"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], message: str) -> None:
    code, out, err = plan(*options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "\x1b" not in err


def test_a_gpu_type_that_is_not_known_is_refused() -> None:
    assert plan(*ON_64, gpu_type="a100")[2] == "error: gpu-type: 'a100' is A100-40 or A100-80; say which\n"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    return file


def test_memory_and_links_of_a_cluster_file_count(lab: Path) -> None:
    tensor = MEGATRON.replace("tensor-model-parallel-size 8", "tensor-model-parallel-size 4")
    options = ("--from-megatron", tensor, "--model", "llama3-8b", "--gpus", "16", "--cluster", str(lab))
    on_cluster = document(*options, gpu_type="a100")
    assert on_cluster["memory"]["limit_bytes"] == 40 * 2**30
    lab.write_text(CLUSTER.replace("nic_gbps: 400", "nic_gbps: 50"))
    assert document(*options, gpu_type="a100")["iteration"]["time_s"] > on_cluster["iteration"]["time_s"]
    lab.write_text(CLUSTER.replace("gpu_memory_gib: 40", "gpu_memory_gib: 80"))
    assert document(*options, gpu_type="a100")["memory"]["limit_bytes"] == 80 * 2**30


def test_all_gpus_of_the_type_are_ranked(lab: Path) -> None:
    options = ("--model", "llama3-8b", "--cluster", str(lab))
    found = document(*options, gpu_type="A100")
    assert found["gpus"] == 32
    assert {"field": "gpus", "value": "32", "origin": "all of this type in the cluster file"} in found["sources"]
    assert {each["plan"]["gpus"] for each in found["alternatives"]} == {32}
    assert document(*options, "--gpus", "8", gpu_type="A100")["gpus"] == 8
    assert document(*options, "--nodes", "2", "--gpus-per-node", "4")["gpus"] == 8
    assert "gpus: is in neither" in plan(*options, "--nodes", "2")[2]


def test_plans_that_would_fit_keep_tensor_groups_within_the_servers(lab: Path) -> None:
    options = ("--from-torchrun", "t.py --bf16 --per_device_train_batch_size 8", "--model", "llama2-70b", "--gpus", "8")
    usual = document(*options, code=1)["nearest"]
    assert max(each["plan"]["tensor"] for each in usual) == 8
    for more in (("--gpus-per-node", "4"), ("--cluster", str(lab))):
        near = document(*options, *more, code=1)["nearest"]
        assert near
        assert max(each["plan"]["tensor"] for each in near) <= 4


def test_the_only_type_of_a_cluster_file_needs_no_option(lab: Path) -> None:
    lab.write_text(CLUSTER.replace("H100", "A100"))
    assert document("--model", "llama3-8b", "--cluster", str(lab), gpu_type=None)["gpus"] == 40


def test_a_type_whose_memory_the_file_leaves_open_is_a_warning(lab: Path) -> None:
    lab.write_text(CLUSTER.replace(", gpu_memory_gib: 40", ""))
    code, _, err = plan("--model", "llama3-8b", "--cluster", str(lab), gpu_type="A100")
    assert code == 0
    assert err.startswith("warning: GPU type 'A100' may be A100-40 or A100-80: time and memory are those of A100-80")


@pytest.mark.parametrize(
    ("text", "options", "gpu_type", "message"),
    [
        (None, ("--gpus", "8"), None, "gpu-type: is required without --cluster"),
        (CLUSTER, (), None, "gpu-type: is required: the cluster file has A100, H100"),
        (CLUSTER, (), "V100", "gpu-type: 'V100' is not in the cluster file; its types are A100, H100"),
        (CLUSTER, ("--gpus", "9"), "H100", "gpus: must be at most 8, those of this type in the cluster file (got 9)"),
        (
            CLUSTER,
            ("--from-megatron", MEGATRON.replace("size 8", "size 4"), "--nodes", "8", "--gpus-per-node", "8"),
            "A100",
            "gpus: must be at most 32, those of this type in the cluster file (got 64)",
        ),
        (CLUSTER.replace("H100", "odd"), (), "odd", "gpu-type: GPU type 'odd': neither time nor memory is predicted"),
        ("servers: []", (), "H100", "cluster.yaml"),
    ],
)
def test_what_a_cluster_file_does_not_have_is_refused(
    tmp_path: Path, text: str | None, options: tuple[str, ...], gpu_type: str | None, message: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text or "")
    named = ("--cluster", str(file)) if text is not None else ()
    code, out, err = plan("--model", "llama3-8b", *named, *options, gpu_type=gpu_type)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
