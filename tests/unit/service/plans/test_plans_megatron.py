"""Arguments of Megatron-LM and overrides of Megatron-Bridge as plans, with defaults and sums as Megatron-LM has them."""

from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.plan import PipelineSchedule, Precision, Recompute, TrainingPlan
from policies.model.shape import Attention, Experts, LatentAttention, TransformerShape
from policies.training.operations import parameters
from service.plans import arguments
from service.plans.megatron import read_megatron
from service.plans.model import catalogue_model
from service.plans.reading import Given, Model, Reading
from service.plans.values import MISTYPED, ReadError

GPT3 = r"""
#!/bin/bash
# Runs the "175B" parameter model
torchrun --nproc_per_node 8 --nnodes 16 --master_addr localhost pretrain_gpt.py \
    --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \
    --attention-backend auto --micro-batch-size 1 --global-batch-size 1536 --train-iters 500000 \
    --weight-decay 0.1 --adam-beta1 0.9 --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 --lr-warmup-fraction .001 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 \
    --data-path my/data --vocab-file vocab.json --merge-file merges.txt --tokenizer-type GPT2BPETokenizer --split 949,50,1 \
    --log-interval 100 --eval-iters 10 --save ckpt
"""

LLAMA3_8B = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --kv-channels 128 --seq-length 8192 --swiglu --normalization RMSNorm --vocab-size 128256"
    " --untie-embeddings-and-output-weights --bf16 --attention-dropout 0.0 --hidden-dropout 0.0"
    " --micro-batch-size 1 --global-batch-size 128"
)

DEEPSEEK_V3 = (
    "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --seq-length 4096 --swiglu"
    " --vocab-size 129280 --make-vocab-size-divisible-by 1280 --untie-embeddings-and-output-weights --bf16"
    " --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"
    " --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048"
    " --moe-layer-freq ([0]*3+[1]*58) --tensor-model-parallel-size 1 --pipeline-model-parallel-size 8"
    " --pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L' --mtp-num-layers 1"
    " --expert-model-parallel-size 64 --micro-batch-size 1 --global-batch-size 4096"
    " --fp8-format e4m3 --recompute-granularity selective --recompute-modules mla_up_proj layernorm --use-distributed-optimizer"
)


def read(text: str, model: Model | None = None, **options: int) -> Reading:
    return read_megatron(text, Given(**options), model)


def refused(text: str, model: Model | None = None, **options: int) -> str:
    with pytest.raises(ReadError) as caught:
        read(text, model, **options)
    return str(caught.value)


def origin(reading: Reading, field: str) -> str:
    return next(source.origin for source in reading.sources if source.field == field)


def test_a_script_of_gpt3() -> None:
    reading = read(GPT3)
    assert reading.plan == TrainingPlan(
        tensor=8,
        pipeline=16,
        data=1,
        micro_batch=1,
        global_batch=1536,
        sequence=2048,
        precision=Precision.FP16,
        fp32_gradients=False,
        dropout=True,
    )
    assert reading.shape == TransformerShape(
        name="the model of the arguments",
        layers=96,
        hidden=12288,
        ffn=49152,
        heads=96,
        kv_heads=96,
        head_dim=128,
        vocabulary=51200,  # 50,257 padded to a multiple of 128 x 8
        gated=False,
        tied=True,
    )
    assert reading.gpus_per_node == 8
    assert origin(reading, "data") == "128 GPUs / (tensor 8 x pipeline 16)"
    assert origin(reading, "gpus") == "16 nodes x 8 GPUs"
    assert origin(reading, "tensor") == "--tensor-model-parallel-size"
    assert origin(reading, "dropout") == "default of --hidden-dropout"
    assert reading.warnings == ()


def test_grouped_queries_and_gated_units() -> None:
    reading = read(
        LLAMA3_8B + " --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer", gpus=16
    )
    assert reading.plan == TrainingPlan(
        data=8,
        tensor=2,
        sequence_parallel=True,
        zero_stage=1,
        global_batch=128,
        sequence=8192,
    )
    assert reading.shape is not None
    assert parameters(reading.shape).total == pytest.approx(8.03e9, rel=1e-3)


def test_the_units_of_a_gated_layer_are_those_of_megatron() -> None:
    shape = read(LLAMA3_8B.replace("--ffn-hidden-size 14336 ", ""), gpus=8).shape
    assert isinstance(shape, TransformerShape)
    assert shape.ffn == 10880  # 2/3 of 4 x 4,096, in multiples of 64
    for gate in ("--quick-geglu", "--gated-linear-unit"):
        shape = read(LLAMA3_8B.replace("--ffn-hidden-size 14336 ", "").replace("--swiglu", gate), gpus=8).shape
        assert isinstance(shape, TransformerShape)
        assert (shape.gated, shape.ffn) == (True, 4 * 4096)


def test_experts_latent_attention_and_a_layout() -> None:
    reading = read(DEEPSEEK_V3, gpus=512)
    plan, shape = reading.plan, reading.shape
    assert isinstance(shape, TransformerShape)
    assert (plan.data, plan.pipeline, plan.expert, plan.expert_tensor) == (64, 8, 64, 1)
    assert plan.precision is Precision.FP8
    assert plan.recompute is Recompute.SELECTIVE
    assert shape.experts == Experts(count=256, top_k=8, ffn=2048, shared_ffn=2048)
    assert shape.dense_layers == 3
    assert shape.latent == LatentAttention(
        query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128
    )
    assert parameters(shape).total == pytest.approx(671e9, rel=1e-2)
    assert [warning.split(":")[0] for warning in reading.warnings] == ["--recompute-modules", "--mtp-num-layers"]


@pytest.mark.parametrize(
    ("flag", "virtual"),
    [
        ("--num-layers-per-virtual-pipeline-stage 2", 4),
        ("--num-virtual-stages-per-pipeline-rank 4", 4),
        ("--pipeline-model-parallel-layout '(tt|)*15tt'", 4),
        ("--num-layers-per-virtual-pipeline-stage 8", 1),
    ],
)
def test_virtual_stages(flag: str, virtual: int) -> None:
    plan = read(f"{LLAMA3_8B} --pipeline-model-parallel-size 4 {flag}", gpus=4).plan
    assert plan.virtual_stages == virtual
    assert plan.schedule is (PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.ONE_F_ONE_B)


def test_the_layers_of_a_model_beside_the_flags_give_the_virtual_stages() -> None:
    flags = "--micro-batch-size 1 --seq-length 4096 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 5"
    assert read(flags, catalogue_model("llama3-70b"), gpus=4).plan.virtual_stages == 4
    assert refused(flags, gpus=4) == (
        "--num-layers-per-virtual-pipeline-stage: needs the number of layers; add --num-layers or a model"
    )


def test_overrides_of_megatron_bridge() -> None:
    text = (
        "torchrun --nproc_per_node=8 examples/pretrain.py model.tensor_model_parallel_size=2 train.micro_batch_size=1"
        " train.global_batch_size=128 dataset.sequence_length=4096 model.num_layers=32 model.hidden_size=4096"
        " model.num_attention_heads=32 model.num_query_groups=8 model.ffn_hidden_size=14336 model.vocab_size=128256"
        " model.gated_linear_unit=true model.share_embeddings_and_output_weights=false model.context_parallel_size=2"
        " model.expert_tensor_parallel_size=null mixed_precision=bf16_with_fp8_current_scaling_mixed"
        " ddp.use_distributed_optimizer=true ++optimizer.lr=0.0003 model.hidden_dropout=0.0 model.attention_dropout=0.0"
    )
    reading = read(text)
    assert reading.plan == TrainingPlan(
        data=2,
        tensor=2,
        context=2,
        zero_stage=1,
        global_batch=128,
        sequence=4096,
        precision=Precision.FP8,
    )
    assert parameters(reading.shape).total == pytest.approx(8.03e9, rel=1e-3)  # type: ignore[arg-type]
    assert origin(reading, "tensor") == "model.tensor_model_parallel_size"


def test_the_switch_of_grouped_queries_decides_for_flags() -> None:
    shape = read(LLAMA3_8B.replace("--group-query-attention ", ""), gpus=1).shape
    assert isinstance(shape, TransformerShape)
    assert shape.kv_heads == 32


@pytest.mark.parametrize(
    ("flags", "stage", "group"),
    [
        ("--use-distributed-optimizer", 1, 0),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", 1, 8),
        ("--use-torch-fsdp2", 3, 0),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2, 0),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 3, 0),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2, 0),
        ("--data-parallel-sharding-strategy optim_grads_params", 0, 0),  # has an effect with Megatron-FSDP alone
    ],
)
def test_sharding(flags: str, stage: int, group: int) -> None:
    plan = read(f"{LLAMA3_8B} {flags}", gpus=32).plan
    assert (plan.zero_stage, plan.shard_group) == (stage, group)


def test_expert_tensor_follows_the_tensor_degree_unless_it_is_said() -> None:
    flags = f"{LLAMA3_8B} --num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2"
    assert read(flags, gpus=16).plan.expert_tensor == 2
    assert read(f"{flags} --expert-tensor-parallel-size 1", gpus=16).plan.expert_tensor == 1
    shape = read(flags, gpus=16).shape
    assert isinstance(shape, TransformerShape)
    assert shape.experts == Experts(count=8, top_k=2, ffn=14336)


def test_windows_of_attention() -> None:
    shape = read(f"{LLAMA3_8B} --window-size (128,0) --window-attn-skip-freq 2", gpus=1).shape
    assert isinstance(shape, TransformerShape)
    assert (shape.window, shape.windowed_layers) == (128, 16)
    assert read(f"{LLAMA3_8B} --window-size 4096,0", gpus=1).shape.windowed_layers == 32  # type: ignore[union-attr]


def test_a_script_of_bert_attends_to_all() -> None:
    shape = read(f"pretrain_bert.py {LLAMA3_8B}", gpus=1).shape
    assert isinstance(shape, TransformerShape)
    assert shape.attention is Attention.FULL


def test_options_replace_the_arguments() -> None:
    reading = read(GPT3, gpus=256, global_batch=512, sequence=4096)
    assert (reading.plan.data, reading.plan.global_batch, reading.plan.sequence) == (2, 512, 4096)
    assert origin(reading, "global_batch") == "--global-batch"
    assert reading.warnings == ("--gpus 256 replaces 16 nodes x 8 GPUs = 128 of the configuration",)


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (
            "--rampup-batch-size 16 8 300000",
            "--rampup-batch-size: the batch grows during training; the plan has the last one",
        ),
        ("--optimizer-cpu-offload", "--optimizer-cpu-offload: optimizer states on the CPU are counted as GPU memory"),
        ("--optimizer sgd", "--optimizer sgd: its states are counted as those of Adam"),
        (
            "--use-precision-aware-optimizer",
            "--use-precision-aware-optimizer: gradients and optimizer states are counted in their usual formats",
        ),
        ("--deepspeed_config ds.json", "--deepspeed_config: what the file says is not in the plan"),
        (
            "--tensor-model-parallel-sise 8",
            "--tensor-model-parallel-sise is not understood; did you mean 'tensor-model-parallel-size'?",
        ),
        (
            "--tensor_model-parallel-sizes 8",
            "--tensor_model-parallel-sizes is not understood; did you mean 'tensor-model-parallel-size'?",
        ),
        ('"${MODEL_ARGS[@]}"', "${MODEL_ARGS[@]} is a shell variable: its flags are not read"),
        ("--num-layers-at-start-in-bf16 1", "--num-layers-at-start-in-bf16 is not understood"),
    ],
)
def test_what_changes_the_training_but_not_the_plan_is_named(flags: str, warning: str) -> None:
    warnings = read(f"{LLAMA3_8B} {flags}", gpus=8).warnings
    assert [each[: len(warning)] for each in warnings] == [warning]


def test_flags_without_effect_on_the_plan_are_not_named() -> None:
    flags = (
        "--overlap-grad-reduce --overlap-param-gather --tp-comm-overlap --moe-grouped-gemm --eval-micro-batch-size 4"
        " --ckpt-fully-parallel-load --cross-entropy-loss-fusion --pipeline-model-parallel-comm-backend nccl --no-save-optim"
        " --data-parallel-random-init --distributed-timeout-minutes 60 --use-cpu-initialization --defer-embedding-wgrad-compute"
    )
    assert read(f"{LLAMA3_8B} {flags}", gpus=8).warnings == ()
    assert read(f"{LLAMA3_8B} --data-path $DATA --node_rank ${{SLURM_NODEID}}", gpus=8).warnings == ()
    for word in ("--swiglu $EXTRA_ARGS", "--swiglu ${MORE[@]}", "train.sh $MORE", "--split 1 $MORE"):
        (warning,) = read(f"{LLAMA3_8B} {word}", gpus=8).warnings
        assert warning == f"{word.split()[-1]} is a shell variable: its flags are not read"
    alone = f"{LLAMA3_8B} --tensor-model-parallel-size 1 --sequence-parallel"
    assert read(alone, gpus=8).warnings == (), "Megatron-LM ignores it without a tensor group"
    assert not read(alone, gpus=8).plan.sequence_parallel


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "--tensor-model-parallel-size eight",
            "--tensor-model-parallel-size: must be a whole number from 1 to 1,000,000,000 (got 'eight')",
        ),
        (
            "--tensor-model-parallel-size 0",
            "--tensor-model-parallel-size: must be 1 to 1,000,000,000 (got '0')",
        ),
        (
            "--tensor-model-parallel-size nan",
            "--tensor-model-parallel-size: must be a whole number",
        ),
        (
            "--tensor_model_parallel_size $TP",
            (
                "--tensor_model_parallel_size: must be a whole number from 1 to 1,000,000,000 (got the shell"
                " variable '$TP': write its value)"
            ),
        ),
        (
            "--tensor-model-parallel-size 3",
            "gpus: must be a multiple of tensor 3 = 3 (got 16, --gpus)",
        ),
        (
            "--tensor-model-parallel-size 8 --context-parallel-size 4",
            "gpus: must be a multiple of tensor 8 x context 4 = 32 (got 16, --gpus)",
        ),
        (
            "--context-parallel-size 16 --seq-length 4104",
            "--seq-length: must be a multiple of 2 x context 16 (got 4104)",
        ),
        (
            "--fp16",
            "--bf16: and --fp16 exclude each other",
        ),
        (
            "--micro-batch-size 3",
            "global_batch: must be a multiple of micro_batch 3 x data 16 = 48 (got 128), from --global-batch-size",
        ),
        (
            "--recompute-granularity some",
            "--recompute-granularity: must be one of full, selective, none (got 'some')",
        ),
        (
            "--num-query-groups 5",
            "--num-query-groups: must divide num-attention-heads 32 (got 5)",
        ),
        (
            "--tensor-model-parallel-size 16 --num-attention-heads 40 --num-query-groups 40 --kv-channels 128",
            (
                "tensor: must divide the 40 attention heads of the model of the arguments (got 16), from"
                " --tensor-model-parallel-size"
            ),
        ),
        (
            "--expert-model-parallel-size 2",
            ("expert: must be 1: the model of the arguments has no experts (got 2), from --expert-model-parallel-size"),
        ),
        (
            "--num-experts 12 --expert-model-parallel-size 8",
            (
                "expert: must divide the 12 experts of the model of the arguments (got 8), from"
                " --expert-model-parallel-size"
            ),
        ),
        (
            "--num-experts 8 --moe-router-topk 9",
            "--moe-router-topk: must be at most the 8 experts (got 9)",
        ),
        (
            "--num-experts 8 --moe-layer-freq [1]*31",
            "--moe-layer-freq: must have 32 entries, one a layer (got 31)",
        ),
        (
            "--num-experts 8 --moe-layer-freq __import__('os')",
            "--moe-layer-freq: must be a number, or a list of 0 and 1",
        ),
        (
            f"--num-experts 8 --moe-layer-freq {'+'.join(['[0]*9999'] * 50)}",
            "--moe-layer-freq: must be a number, or a list of 0 and 1",
        ),
        (
            "--num-experts 8 --moe-layer-freq [1]*9999999999",
            "--moe-layer-freq: must be a number, or a list of 0 and 1",
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '((t|)*99)*9999'",
            "--pipeline-model-parallel-layout: must have at most 4,096 characters when written out",
        ),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 't|t'",
            "--pipeline-model-parallel-layout: has 2 stages, not a multiple of pipeline 4",
        ),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
            "--num-layers-per-virtual-pipeline-stage: 3 x pipeline 4 = 12 must divide the 32 layers",
        ),
        (
            (
                "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
                " --num-layers-per-virtual-pipeline-stage 2"
            ),
            ("--num-virtual-stages-per-pipeline-rank: and --num-layers-per-virtual-pipeline-stage exclude each other"),
        ),
        (
            "--pipeline-model-parallel-size 16 --num-virtual-stages-per-pipeline-rank 3",
            (
                "pipeline: 48 stages are more than the 34 layers, embedding and output of the model of the arguments (got 16),"
                " from --pipeline-model-parallel-size"
            ),
        ),
        (
            "--hidden-dropout 2",
            "--hidden-dropout: must be a number from 0 to 1 (got '2')",
        ),
        (
            "--num-layers 1000000000",
            "--num-layers: must be 1 to 10,000 (got '1000000000')",
        ),
        (
            "--hybrid-override-pattern M-M*",
            "--hybrid-override-pattern: is not a model of equal decoder layers",
        ),
        (
            "--swiglu flase",
            "--swiglu: must be true or false (got 'flase')",
        ),
        (
            "--save 'unclosed",
            "arguments: cannot be split into words: No closing quotation",
        ),
    ],
)
def test_a_fault_names_key_value_and_limit(text: str, message: str) -> None:
    assert refused(f"{LLAMA3_8B} {text}", gpus=16).startswith(message)


def test_a_word_after_a_flag_without_a_value_is_not_its_value() -> None:
    assert read(f"{LLAMA3_8B} --use-distributed-optimizer\nset +x", gpus=8).plan.zero_stage == 1
    assert read(f"{LLAMA3_8B} --use-distributed-optimizer false", gpus=8).plan.zero_stage == 0


def test_an_iteration_of_one_graph() -> None:
    assert not read(f"{LLAMA3_8B} --cuda-graph-impl local --cuda-graph-scope attn", gpus=1).plan.graphed
    assert read(f"{LLAMA3_8B} --cuda-graph-impl local --cuda-graph-scope full_iteration", gpus=1).plan.graphed


@given(
    st.sampled_from([1, 2, 4, 8, 3]),
    st.sampled_from([1, 2, 4, 5]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 300),
    st.integers(1, 6),
)
def test_the_gpus_of_every_plan_add_up(tensor: int, pipeline: int, context: int, gpus: int, micro: int) -> None:
    flags = (
        f"--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {pipeline} --context-parallel-size {context}"
        f" --micro-batch-size {micro} --seq-length 4096"
    )
    if gpus % (tensor * pipeline * context):
        assert refused(flags, gpus=gpus).startswith("gpus: must be a multiple of ")
        return
    plan = read(flags, gpus=gpus).plan
    assert plan.gpus == plan.data * tensor * pipeline * context == gpus
    assert plan.global_batch == plan.micro_batch * plan.micro_batches * plan.data == micro * plan.data


def test_what_is_missing_is_named() -> None:
    assert refused(LLAMA3_8B) == (
        "gpus: is in neither the configuration nor the options; add --gpus, or --nodes and --gpus-per-node"
    )
    assert refused(LLAMA3_8B.replace("--micro-batch-size 1 --global-batch-size 128", ""), gpus=8) == (
        "micro_batch: is in neither the configuration nor the options; add --micro-batch SAMPLES"
    )
    assert refused(LLAMA3_8B.replace("--vocab-size 128256", ""), gpus=8) == (
        "--vocab-size: is missing, and the tokenizer does not say it; add --vocab-size or a model"
    )
    assert refused("--micro-batch-size 1", gpus=8) == (
        "sequence: is in neither the configuration nor the options; add --sequence TOKENS"
    )
    assert refused("--num-layers 4", gpus=8) == "--hidden-size: is missing"
    assert refused("x" * 300_000, gpus=8) == "arguments: are longer than 262,144 bytes"


def test_a_model_beside_the_flags_is_used_and_a_difference_named() -> None:
    reading = read(LLAMA3_8B, catalogue_model("llama3-70b"), gpus=8)
    assert reading.shape is catalogue_model("llama3-70b").shape
    assert reading.warnings == (
        "--num-layers 32: the model llama3-70b has 80, which is used",
        "--hidden-size 4096: the model llama3-70b has 8192, which is used",
    )


def test_ranges_of_torchrun_need_a_number() -> None:
    text = f"torchrun --nnodes 2:4 --nproc-per-node gpu pretrain_gpt.py {LLAMA3_8B}"
    assert refused(text) == "--nnodes: 2:4 is a range; say the nodes with --nodes or the GPUs with --gpus"
    assert len(refused(text.replace("2:4", "2:" + "4" * 10_000))) < 200
    assert refused(text, nodes=2) == "--nproc-per-node: gpu means all GPUs of a server; say them with --gpus-per-node"
    assert read(text, nodes=2, gpus_per_node=4).plan.gpus == 8
    assert refused(text, nodes=2, gpus_per_node=4, gpus=9) == "--gpus: must be --nodes x --gpus-per-node = 8 (got 9)"


def test_few_flags_are_compared_with_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def count(word: str, known: list[str], most: int, cutoff: float) -> list[str]:
        if cutoff == MISTYPED:
            compared.append(word)
        return get_close_matches(word, known, most, cutoff)

    monkeypatch.setattr(arguments, "get_close_matches", count)
    text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {LLAMA3_8B} " + " ".join(f"--x{n}" for n in range(800))
    read_megatron(text, Given())
    assert 50 < len(compared) <= arguments.COMPARED_MAX
