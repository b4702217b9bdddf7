"""Parameters and operations against the published numbers and formulas, worked by hand."""

import pytest

from policies.model.shape import Attention, CountedShape, Experts, LatentAttention, TransformerShape
from policies.training.operations import attended, operations, parameters

LLAMA3_8B = TransformerShape(
    name="llama3-8b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocabulary=128256
)
LLAMA3_70B = TransformerShape(
    name="llama3-70b", layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, head_dim=128, vocabulary=128256
)
MIXTRAL_8X7B = TransformerShape(
    name="mixtral-8x7b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocabulary=32000,
    experts=Experts(count=8, top_k=2, ffn=14336),
)  # fmt: skip
QWEN3_30B = TransformerShape(
    name="qwen3-30b-a3b", layers=48, hidden=2048, ffn=6144, heads=32, kv_heads=4, head_dim=128, vocabulary=151936,
    experts=Experts(count=128, top_k=8, ffn=768),
)  # fmt: skip
DEEPSEEK_V3 = TransformerShape(
    name="deepseek-v3", layers=61, hidden=7168, ffn=18432, heads=128, kv_heads=128, head_dim=128, vocabulary=129280,
    latent=LatentAttention(query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    experts=Experts(count=256, top_k=8, ffn=2048, shared_ffn=2048), dense_layers=3,
)  # fmt: skip


def gpt(layers: int, hidden: int, heads: int, vocabulary: int = 51200, **more: object) -> TransformerShape:
    """A GPT with tied embeddings, as in Narayanan et al. (arXiv 2104.04473)."""
    return TransformerShape(
        name="gpt", layers=layers, hidden=hidden, ffn=4 * hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        vocabulary=vocabulary, gated=False, tied=True, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_parameters_of_llama_3_8b_match_its_checkpoint_exactly() -> None:
    counted = parameters(LLAMA3_8B)
    assert counted.total == 8_030_261_248
    assert counted.used == counted.total
    assert counted.embedding == 128256 * 4096
    assert counted.dense.divided == 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    assert counted.dense.whole == 2 * 4096


@pytest.mark.parametrize(
    ("shape", "total", "used"),
    [
        (LLAMA3_70B, 70_553_706_496, 70_553_706_496),
        (MIXTRAL_8X7B, 46_702_792_704, 12_879_925_248),
        (QWEN3_30B, 30_532_122_624, 3_353_148_416),
        (DEEPSEEK_V3, 671.03e9, 37.55e9),
        (gpt(96, 12288, 96), 174.6e9, 174.6e9),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_parameters_match_published_totals_and_active_parameters(
    shape: TransformerShape, total: float, used: float
) -> None:
    counted = parameters(shape)
    assert counted.total == pytest.approx(total, rel=1e-3)
    assert counted.used == pytest.approx(used, rel=2e-3)


def test_experts_are_counted_apart_from_what_a_tensor_group_divides() -> None:
    layer = parameters(MIXTRAL_8X7B).expert
    assert layer.experts == 8 * 3 * 4096 * 14336
    assert layer.divided == 4096 * 6144 + 4096 * 4096
    assert layer.whole == 2 * 4096 + 8 * 4096  # norms and router


def test_the_first_layers_of_deepseek_have_no_experts() -> None:
    counted = parameters(DEEPSEEK_V3)
    assert (counted.dense_layers, counted.expert_layers) == (3, 58)
    assert counted.dense.experts == 0


def test_counted_shapes_lose_no_parameter() -> None:
    counted = parameters(
        CountedShape(name="resnet50", kind="cnn", layers=50, hidden=0, parameters=25_557_032, flops=1.0)
    )
    assert counted.total == 25_557_032


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(24, 2304, 24), (48, 8192, 64), (128, 25600, 160)])
def test_operations_match_narayanan(layers: int, hidden: int, heads: int) -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh) counts forward, backward and full recomputation, and attention over all pairs.

    The output is not computed again, so that the forward pass of the layers is taken four times and that of the output three.
    """
    sequence, vocabulary = 2048, 51200
    counted = operations(gpt(layers, hidden, heads, attention=Attention.FULL), sequence)
    published = 96 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden))
    assert 4 * (counted.forward - counted.output) + 3 * counted.output == pytest.approx(published, rel=1e-12)


def test_operations_of_a_short_sequence_are_six_for_each_used_parameter() -> None:
    """6ND, with the embedding looked up and not multiplied."""
    for shape in (LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3):
        counted = parameters(shape)
        assert operations(shape, 1).training == pytest.approx(6 * (counted.used - counted.embedding), rel=2e-3)


def test_operations_match_those_that_megatron_bridge_publishes() -> None:
    """GFLOP a token at the sequence of the page; attention counted as causal."""
    assert operations(LLAMA3_8B, 8192).training == pytest.approx(51.47e9, rel=0.01)
    assert operations(LLAMA3_70B, 8192).training == pytest.approx(449.21e9, rel=0.01)
    assert operations(QWEN3_30B, 4096).training == pytest.approx(23.01e9, rel=0.01)
    assert operations(DEEPSEEK_V3, 4096).training == pytest.approx(249.7e9, rel=0.01)


def test_attended_tokens() -> None:
    causal = gpt(2, 128, 2)
    assert attended(causal, 4) == (1 + 2 + 3 + 4) / 4
    assert attended(gpt(2, 128, 2, attention=Attention.FULL), 4) == 4
    windowed = gpt(2, 128, 2, window=2, windowed_layers=2)
    assert attended(windowed, 4) == (1 + 2 + 2 + 2) / 4
    assert attended(gpt(2, 128, 2, window=2, windowed_layers=1), 4) == (1.75 + 2.5) / 2
    assert attended(gpt(2, 128, 2, window=9, windowed_layers=2), 4) == attended(causal, 4)
