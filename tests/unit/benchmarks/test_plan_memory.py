"""The bill of published runs: which fit by it, and which would be refused."""

from pathlib import Path

import pytest

from benchmarks.plan_memory import main

MODELS = """model,params_b,layers,hidden,ffn,heads,kv_heads,head_dim,vocab,gated_mlp,experts,attention,published_gflop_per_token
llama3-8b,8.03,32,4096,14336,32,8,128,128256,1,0,gqa,
hybrid,30,,,,,,,,,,,22.28
"""
GPUS = """gpu,bf16_tflops_dense,fp32_tflops,memory_gib,hbm_gb_s,nvlink_gb_s_bidir,nvlink_domain,typical_nic_gbps_per_gpu
H100,989.4,66.9,80,3350,900,8,400
"""
TABLE = """release,gpu,precision,model,gpus,global_batch,micro_batch,sequence,fsdp,tp,pp,cp,class,tokens_per_s_per_gpu
a,H100,bf16,llama3-8b,8,128,1,8192,,1,1,2,dense,9000
b,H100,bf16,llama3-8b,8,128,4,8192,,1,1,1,dense,9000
c,H100,bf16,hybrid,8,128,1,8192,,1,1,1,hybrid,9000
"""


def test_runs_that_the_bill_would_refuse_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = []
    for name, text in (("table", TABLE), ("models", MODELS), ("gpus", GPUS)):
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
        arguments += [f"--{name}", str(tmp_path / f"{name}.csv")]
    assert main(arguments) == 0
    first, refused = capsys.readouterr().out.splitlines()
    # The first keeps a sequence of 4,096 tokens on each GPU, the second four of 8,192; the third has no shape.
    assert first == "2 runs: 1 fit, 1 would be refused"
    assert refused.startswith("2") and "% of H100: llama3-8b on 8 GPUs, data 8, tensor 1" in refused
    assert "micro_batch 4" in refused
