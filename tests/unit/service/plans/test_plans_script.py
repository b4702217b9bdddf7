"""Words of pasted scripts: variables, arrays, comments and line ends as shell scripts have them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.model.plan import Precision
from service.plans.megatron import read_megatron
from service.plans.reading import Given
from service.plans.script import words_of
from service.plans.values import ReadError

SCRIPT = r"""#!/bin/bash
# Trains a model of 8B parameters; don't change the seed
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
CHECKPOINTS=${1:-"checkpoints/8b"}
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
TP=2
SEQ_LENGTH=8192
DTYPE="fp8"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length $SEQ_LENGTH
    --attention-dropout 0.0 --hidden-dropout 0.0
    --swiglu
    # --pipeline-model-parallel-size 4 \
    --untie-embeddings-and-output-weights # not tied
)
TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size ${GLOBAL_BATCH:-128} \
    --bf16
"
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid" "--fp8-param-gather")
fi
PARALLEL_ARGS=(--tensor-model-parallel-size ${TP} --sequence-parallel --use-distributed-optimizer)
DATA_ARGS=(
    "--vocab-size 128256"
    "--split '99,1,0'"
    --vocab-file data/bert-words.txt
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    $TRAINING_ARGS ${DTYPE_ARGS[@]} ${PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} --save "$CHECKPOINTS"
"""


def test_a_whole_script_is_read() -> None:
    reading = read_megatron(SCRIPT, Given())
    plan = reading.plan
    assert (plan.data, plan.tensor, plan.pipeline, plan.sequence_parallel) == (8, 2, 1, True)
    assert (plan.micro_batch, plan.global_batch, plan.sequence) == (1, 128, 8192)
    assert plan.precision is Precision.FP8
    assert reading.gpus_per_node == 8
    assert reading.shape is not None
    assert reading.warnings == ()


def test_windows_line_ends_change_nothing() -> None:
    assert read_megatron(SCRIPT.replace("\n", "\r\n"), Given()) == read_megatron(SCRIPT, Given())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--a 1 \\\n  --b 2", ["--a", "1", "--b", "2"]),
        ("--a 1 # --b 2\n--c", ["--a", "1", "--c"]),
        (
            "A=3\n--a $A --b ${A} --c ${B:-4} --d ${B} --e $B",
            ["--a", "3", "--b", "3", "--c", "4", "--d", "${B}", "--e", "$B"],
        ),
        ("A=3 B=$A\n--b $B", ["--b", "3"]),
        ("A=(--x 1 --y)\nrun ${A[@]} ${C[@]}", ["--x", "1", "--y", ")", "run", "${C[@]}"]),
        ("A=()\n$A", [")"]),
        ("A='--x 1 --y'\nrun $A --z", ["--x", "1", "--y", ")", "run", "--z"]),
        ("L='torchrun --n 8'\n$L t.py --z", ["torchrun", "--n", "8", "t.py", "--z"]),
        (
            "L='python -m launch --n $N'\nN=2\nC=\"$L t.py --y\"\nsrun $C",
            ["srun", "python", "-m", "launch", "--n", "2", "t.py", "--y"],
        ),
        ("A='--x 1'\nC=\"torchrun t.py $A --y\"\n$C", ["--x", "1", ")", "torchrun", "t.py", "--y"]),
        ("bash -c 'torchrun --n 8 t.py'", ["bash", "-c", "torchrun", "--n", "8", "t.py"]),
        ('C="torchrun --m \'it"\n$C', ["torchrun", "--m", "'it"]),
        (
            "echo -e 'use: torchrun --n N'\ntorchrun --n 8",
            ["echo", "-e", "use: torchrun --n N", "torchrun", "--n", "8"],
        ),
        ("M='not a launcher --n 8'\nrun $M", ["run", "not a launcher --n 8"]),
        ("'--x 1'", ["--x", "1"]),
        ('--fsdp="full_shard auto_wrap"', ["--fsdp=full_shard auto_wrap"]),
        ("--freq ([0]*3+[1]*58)", ["--freq", "([0]*3+[1]*58)"]),
        ("model.tp=8 lr=3", ["model.tp=8", "lr=3"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_variables_that_repeat_each_other_do_not_grow() -> None:
    text = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 200 + "--a $A"
    assert sum(map(len, words_of(text))) < 10_000


@pytest.mark.parametrize("value", ["a" * 4000, "${Q:---x " + "a " * 1990 + "}"])
def test_a_long_variable_that_is_used_often_is_refused(value: str) -> None:
    with pytest.raises(ReadError, match="arguments: have more than 262,144 characters of variables put in"):
        words_of(f'A="{value}" ' + "$A " * 1000)


@pytest.mark.parametrize("text", ["A=(" * 30_000, ")" * 100_000, "a=b" * 30_000, "${" * 50_000])
def test_text_that_nests_deeply_gives_words_or_a_clear_error(text: str) -> None:
    try:
        words = words_of(text)
    except ReadError as error:
        message = str(error)
    else:
        message = ""
        assert sum(map(len, words)) <= 2 * len(text)
    assert message in ("", "arguments: are nested too deeply to be read")


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(["A", "=", "(", ")", "$A", "${A}", "--x", " ", "\n", "\\", "'", '"', "#", "1"]), max_size=30
    )
)
def test_any_text_gives_words_or_a_clear_error(parts: list[str]) -> None:
    try:
        words_of("".join(parts))
    except ReadError as error:
        assert str(error).startswith("arguments: ")  # noqa: PT017
