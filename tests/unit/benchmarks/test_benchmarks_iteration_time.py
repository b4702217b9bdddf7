"""The benchmark of iteration times: tables with unknown names are read, rows judged or skipped with a reason, fits work."""

import csv
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import iteration_time, iteration_time_fit
from benchmarks.throughput_table import CannotJudge, load, measured, model_shape
from policies.model.plan import PipelineSchedule, Precision, Recompute
from policies.model.shape import Attention, CountedShape, LatentAttention, TransformerShape
from policies.training.constants import SHIPPED

GPU = {
    "gpu": "G1", "bf16_tflops_dense": "1000", "fp8_tflops_dense": "2000", "tf32_tflops_dense": "500", "fp32_tflops": "60",
    "memory_gib": "80", "hbm_gb_s": "3000", "nvlink_gb_s_bidir": "900", "nvlink_domain": "8", "typical_nic_gbps_per_gpu": "400",
}  # fmt: skip
NARROW = GPU | {"gpu": "G2", "fp4_tflops_dense": "4000"}
MODEL = {
    "model": "m1", "params_b": "8", "layers": "32", "hidden": "4096", "ffn": "14336", "heads": "32", "kv_heads": "8",
    "head_dim": "128", "vocab": "128256", "gated_mlp": "1", "experts": "0", "dense_layers": "32", "attention": "gqa",
}  # fmt: skip
EXPERTS = MODEL | {"model": "m2", "experts": "8", "top_k": "2", "moe_ffn": "14336", "dense_layers": "0"}
IMAGES = {"model": "m3", "params_b": "0.025", "published_gflop_per_token": "24.6"}
RECURRENT = MODEL | {"model": "m4", "attention": "transformer-xl, memory = tgt_len"}
ROW = {
    "source": "s", "release": "26.02", "gpu": "G1", "precision": "bf16", "model": "m1", "gpus": "8", "global_batch": "128",
    "micro_batch": "1", "sequence": "4096", "tp": "1", "pp": "1", "cp": "1", "vp": "1", "ep": "1", "class": "dense",
    "tokens_per_s_per_gpu": "10000",
}  # fmt: skip
GPUS = {row["gpu"]: row for row in (GPU, NARROW)}
MODELS = {row["model"]: row for row in (MODEL, EXPERTS, IMAGES, RECURRENT)}
ROWS = [
    ROW,
    ROW | {"model": "m2", "class": "moe", "ep": "8", "tokens_per_s_per_gpu": "5000"},
    ROW | {"model": "m3", "class": "cnn", "sequence": "", "tokens_per_s_per_gpu": "", "samples_per_s": "20000"},
    ROW | {"model": "m4", "class": "txl"},
    ROW | {"gpu": "elsewhere"},
    ROW | {"precision": "int3"},
]


def plan(**changes: str) -> Any:
    return measured(ROW | changes, MODELS, GPUS).plan


def tables(folder: Path, rows: list[Mapping[str, str]]) -> list[str]:
    arguments = []
    for name, lines in (("table", rows), ("models", list(MODELS.values())), ("gpus", list(GPUS.values()))):
        path = folder / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, sorted({key for line in lines for key in line}))
            writer.writeheader()
            writer.writerows(lines)
        arguments += [f"--{name}", str(path)]
    return arguments


def test_rows_are_judged_by_class_or_skipped_with_a_reason(tmp_path: Path) -> None:
    written: list[str] = []
    iteration_time.main([*tables(tmp_path, ROWS), "--json", "--by-row"], written.append)
    found = json.loads(written[0])
    assert found["rows"] == 3
    assert {kind: values["rows"] for kind, values in found["classes"].items()} == {"dense": 1, "moe": 1, "cnn": 1}
    assert found["skipped"] == {
        "recurrence over segments and an adaptive softmax are not modelled": 1,
        "its GPU is not in the table of GPUs": 1,
        "precision 'int3' is not known": 1,
    }
    first = found["predictions"][0]
    assert found["classes"]["dense"]["mape"] == pytest.approx(100 * abs(first["predicted"] / 10000 - 1), abs=0.01)


def test_without_json_the_same_is_printed_as_lines(tmp_path: Path) -> None:
    written: list[str] = []
    iteration_time.main(tables(tmp_path, ROWS), written.append)
    assert written[0].endswith("of 3 rows")
    assert [line.split()[0] for line in written[1:4]] == ["cnn", "dense", "moe"]
    assert sum(line.startswith("skipped 1 rows: ") for line in written) == 3


def test_names_do_not_matter(tmp_path: Path) -> None:
    """Only the columns count, so that an unseen table with other models and GPUs is judged alike."""
    renamed = measured(ROW | {"model": "x", "gpu": "y", "source": "z"}, {"x": MODEL}, {"y": GPU})
    usual = measured(ROW, MODELS, GPUS)
    assert iteration_time.predicted(renamed) == iteration_time.predicted(usual)


def test_a_row_becomes_the_plan_that_its_columns_say() -> None:
    found = plan(tp="2", pp="4", vp="4", cp="1", precision="fp8_mx", recompute="full", gpus="64")
    assert (found.data, found.tensor, found.pipeline, found.virtual_stages) == (8, 2, 4, 4)
    assert found.schedule is PipelineSchedule.INTERLEAVED
    assert (found.precision, found.recompute, found.sequence_parallel) == (Precision.FP8, Recompute.FULL, True)
    assert (found.zero_stage, found.flash_attention) == (1, True)
    sharded = plan(fsdp="8")
    assert (sharded.zero_stage, sharded.shard_group) == (3, 8)
    old = plan(precision="fp16", recompute="sel:core_attn (with sequence parallelism)", tp="2")
    assert (old.flash_attention, old.zero_stage, old.sequence_parallel) == (False, 0, True)
    assert old.recompute is Recompute.SELECTIVE
    assert plan(task="lora").adapters


def test_what_a_row_leaves_open_is_what_its_software_does_by_default() -> None:
    assert plan(micro_batch="").micro_batch == 4
    assert plan(micro_batch="", tp="2").micro_batch == 1
    assert plan(pp="2", vp="").virtual_stages == 8
    assert plan(global_batch="", sequence="8192").global_batch == 512


def test_iterations_are_graphed_where_the_publisher_says_so() -> None:
    row = {"model": "m2", "class": "moe", "ep": "8", "precision": "fp8_mx", "gpu": "G2"}
    assert plan(**row, release="26.06.01").graphed
    assert not plan(**row, release="26.04").graphed
    assert not plan(**row, release="mcore-0.8.0").graphed
    assert not plan(**row | {"gpu": "G1"}, release="26.06").graphed
    assert not plan(**row | {"precision": "bf16"}, release="26.06").graphed


def test_rows_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(CannotJudge, match="not a multiple of its degrees"):
        plan(tp="3")
    with pytest.raises(CannotJudge, match="cp is not a number: 'two'"):
        plan(cp="two")
    with pytest.raises(CannotJudge, match="no measured speed"):
        plan(tokens_per_s_per_gpu="")


def test_a_gpu_without_nvlink_is_a_domain_of_one_and_one_without_a_peak_is_not_judged() -> None:
    plain = measured(ROW, MODELS, {"G1": GPU | {"nvlink_gb_s_bidir": "", "nvlink_domain": ""}})
    assert (plain.links.inside_bytes_s, plain.links.domain) == (50e9, 1)
    with pytest.raises(CannotJudge, match="its GPU has no hbm_gb_s"):
        measured(ROW, MODELS, {"G1": GPU | {"hbm_gb_s": ""}})


def test_shapes_follow_from_the_columns() -> None:
    latent = model_shape(MODEL | {"attention": "mla q_lora 1536 kv_lora 512 nope 128 rope 64 v 128"}, "moe")
    assert isinstance(latent, TransformerShape)
    assert latent.latent == LatentAttention(
        query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    windowed = model_shape(MODEL | {"attention": "gqa, alternating sliding window 128"}, "moe")
    assert isinstance(windowed, TransformerShape)
    assert (windowed.window, windowed.windowed_layers) == (128, 16)
    bidirectional = model_shape(MODEL | {"attention": "bidirectional"}, "dense")
    assert isinstance(bidirectional, TransformerShape)
    assert bidirectional.attention is Attention.FULL
    counted = model_shape({"model": "h", "published_gflop_per_token": "20", "params_b": "30"}, "moe_hybrid")
    assert isinstance(counted, CountedShape)
    assert (counted.kind, counted.flops, counted.parameters) == ("hybrid", 20e9, 30_000_000_000)
    with pytest.raises(CannotJudge, match="neither a shape nor published operations"):
        model_shape({"model": "h"}, "dense")


def test_the_fit_recovers_speeds_that_other_constants_made(tmp_path: Path) -> None:
    """Speeds made with products a fifth slower: the fit is then far closer to them than the shipped constants."""
    made = replace(SHIPPED, product_hopper=0.8 * SHIPPED.product_hopper)
    rows = []
    for micro, sequence, tensor in itertools.product((1, 2, 4), (2048, 4096, 8192), (1, 2, 4)):
        columns = ROW | {"micro_batch": str(micro), "sequence": str(sequence), "tp": str(tensor)}
        row = measured(columns, MODELS, GPUS)
        speed = row.count / iteration_time.predicted(row, made).total_s
        rows.append(columns | {"tokens_per_s_per_gpu": str(speed)})
    arguments = [Path(value) for value in tables(tmp_path, rows)[1::2]]
    judged, _ = load(*arguments)
    fitted = iteration_time_fit.fit(iteration_time_fit.Rows.of(judged))
    worst = max(iteration_time.error(row, iteration_time.predicted(row, fitted).total_s) for row in judged)
    shipped = max(iteration_time.error(row, iteration_time.predicted(row).total_s) for row in judged)
    assert worst < 0.03 < shipped
    assert all(value > 0 for value in asdict(fitted).values())


def test_the_fit_prints_constants_and_cross_validation(tmp_path: Path) -> None:
    written: list[str] = []
    iteration_time_fit.main([*tables(tmp_path, ROWS[:2]), "--cross-validate"], written.append)
    assert sum(": float = " in line for line in written) == len(asdict(SHIPPED))
    assert [line.split("'s ")[1].split(":")[0] for line in written if line.startswith("without")] == [
        "model", "gpu", "release", "source", "tenths",
    ]  # fmt: skip
