"""Published shapes of current models, for plans whose operations and memory are counted from them.

Each names its source and the parameters that its authors state. A sample of a :class:`CountedShape` is the whole input of one
training example (an image, 30 s of sound, a text with its target): its plan has a ``sequence`` of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.catalogue.convolutional import resnet50
from policies.model.shape import Attention, CountedShape, Experts, LatentAttention, ModelShape, TransformerShape


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """``parameters``: the count that ``source`` states. ``sequence``: tokens of a usual training sample."""

    title: str
    shape: ModelShape
    parameters: float
    sequence: int
    source: str


def _decoder(
    name: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    *,
    head_dim: int = 0,
    gated: bool = True,
    tied: bool = False,
) -> TransformerShape:
    return TransformerShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        vocabulary=vocabulary,
        gated=gated,
        tied=tied,
    )


def _mixture(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    experts: Experts,
    *,
    head_dim: int = 128,
    windowed_layers: int = 0,
) -> TransformerShape:
    return TransformerShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=experts.ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        experts=experts,
        window=128 if windowed_layers else 0,
        windowed_layers=windowed_layers,
    )


def _latent_mixture(name: str, heads: int, experts: int, dense_layers: int, vocabulary: int) -> TransformerShape:
    """DeepSeek-V3, and Kimi K2, which keeps all but these numbers."""
    return TransformerShape(
        name=name,
        layers=61,
        hidden=7168,
        ffn=18432,
        heads=heads,
        kv_heads=heads,
        head_dim=128,
        vocabulary=vocabulary,
        latent=LatentAttention(query_rank=1536, key_value_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
        experts=Experts(count=experts, top_k=8, ffn=2048, shared_ffn=2048),
        dense_layers=dense_layers,
    )


def _encoder(name: str, layers: int, hidden: int, heads: int, vocabulary: int, *, tied: bool) -> TransformerShape:
    """For images ``vocabulary`` is the classes; the input matrix of the patches is about as large as that of the classes."""
    return TransformerShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocabulary=vocabulary,
        gated=False,
        attention=Attention.FULL,
        tied=tied,
    )


def _encoder_decoder(
    name: str, layers: int, hidden: int, ffn: int, inner: int, vocabulary: int, inputs: int, outputs: int
) -> CountedShape:
    """``layers`` of an encoder over ``inputs`` positions and as many of a decoder over ``outputs``, one embedding for both.

    ``inner``: width of all heads. A decoder layer attends to its own positions and to the encoder's. Kept for the backward
    pass: inputs of norms and of matrix products, queries, keys, values and outputs of both attentions, feed-forward units.
    """
    attention, feed_forward = 4 * hidden * inner, 2 * hidden * ffn
    layer = attention + feed_forward
    weights = layers * (2 * layer + attention) + vocabulary * hidden
    # The keys and values of the cross attention (half of its weights) are computed at the encoder's positions.
    products = layers * (layer + attention // 2) * inputs + layers * (layer + attention // 2) * outputs
    pairs = 2 * inner * layers * (inputs * inputs + outputs * (outputs // 2 + inputs))
    logits = vocabulary * hidden * outputs
    encoder_kept = (4 * hidden + 4 * inner + 2 * ffn) * inputs
    decoder_kept = (6 * hidden + 6 * inner + 2 * ffn) * outputs + 2 * inner * inputs
    return CountedShape(
        name=name,
        kind="transformer",
        layers=2 * layers,
        hidden=hidden,
        parameters=weights,
        flops=6.0 * (products + pairs + logits),
        activations=layers * (encoder_kept + decoder_kept) + vocabulary * outputs,
    )


def _dit(name: str, layers: int, hidden: int, tokens: int) -> CountedShape:
    """A diffusion transformer whose conditioning gives each layer six scales and shifts (adaLN-Zero)."""
    conditioning = 6 * hidden * (hidden + 1)
    block = 12 * hidden * hidden + 13 * hidden + conditioning
    ends = 2 * hidden * (hidden + 1) + 256 * hidden + hidden * hidden + 1001 * hidden
    per_layer = tokens * 12 * hidden * hidden + conditioning + 2 * tokens * tokens * hidden
    return CountedShape(
        name=name,
        kind="transformer",
        layers=layers,
        hidden=hidden,
        parameters=layers * block + ends,
        flops=6.0 * layers * per_layer,
        # Of each token: inputs and outputs of two norms, both scaled, q, k, v, output, both branches' ends, 2 x 4 units.
        activations=layers * 20 * hidden * tokens,
    )


def _resnet50() -> CountedShape:
    units, _ = resnet50()
    return CountedShape(
        name="resnet-50",
        kind="cnn",
        layers=50,
        hidden=2048,
        parameters=sum(unit.cost.parameters for unit in units),
        flops=6.0 * sum(unit.cost.macs for unit in units),
        # The image, and each convolution's output before and after its normalisation, counted over the 53 of them.
        activations=22_579_200,
    )


_LLAMA2, _LLAMA3, _QWEN25 = "arXiv 2307.09288", "arXiv 2407.21783", "arXiv 2412.15115 and its config.json"
_QWEN3, _GPT_OSS, _GPT3 = "arXiv 2505.09388 and its config.json", "arXiv 2508.10925", "arXiv 2005.14165"
_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners (2019)"
_T5, _VIT = "arXiv 1910.10683", "arXiv 2010.11929"

_PUBLISHED = (
    PublishedModel("Llama 2 7B", _decoder("llama2-7b", 32, 4096, 11008, 32, 32, 32000), 6.74e9, 4096, _LLAMA2),
    PublishedModel("Llama 2 13B", _decoder("llama2-13b", 40, 5120, 13824, 40, 40, 32000), 13.0e9, 4096, _LLAMA2),
    PublishedModel("Llama 2 70B", _decoder("llama2-70b", 80, 8192, 28672, 64, 8, 32000), 69.0e9, 4096, _LLAMA2),
    PublishedModel("Llama 3 8B", _decoder("llama3-8b", 32, 4096, 14336, 32, 8, 128256), 8.03e9, 8192, _LLAMA3),
    PublishedModel("Llama 3 70B", _decoder("llama3-70b", 80, 8192, 28672, 64, 8, 128256), 70.6e9, 8192, _LLAMA3),
    PublishedModel("Llama 3.1 405B", _decoder("llama3-405b", 126, 16384, 53248, 128, 8, 128256), 405e9, 8192, _LLAMA3),
    PublishedModel("Qwen2.5 7B", _decoder("qwen2.5-7b", 28, 3584, 18944, 28, 4, 152064), 7.61e9, 4096, _QWEN25),
    PublishedModel("Qwen2.5 32B", _decoder("qwen2.5-32b", 64, 5120, 27648, 40, 8, 152064), 32.5e9, 4096, _QWEN25),
    PublishedModel("Qwen3 8B", _decoder("qwen3-8b", 36, 4096, 12288, 32, 8, 151936), 8.2e9, 4096, _QWEN3),
    PublishedModel(
        "Qwen3 32B", _decoder("qwen3-32b", 64, 5120, 25600, 64, 8, 151936, head_dim=128), 32.8e9, 4096, _QWEN3
    ),
    PublishedModel(
        "Nemotron-4 15B",
        _decoder("nemotron4-15b", 32, 6144, 24576, 48, 8, 256000, gated=False),
        15.7e9,
        4096,
        "arXiv 2402.16819",
    ),
    PublishedModel(
        "Nemotron-4 340B",
        _decoder("nemotron4-340b", 96, 18432, 73728, 96, 8, 256000, gated=False),
        341e9,
        4096,
        "arXiv 2406.11704",
    ),
    PublishedModel(
        "GPT-2 medium",
        _decoder("gpt2-medium", 24, 1024, 4096, 16, 16, 50257, gated=False, tied=True),
        354.8e6,
        1024,
        _GPT2,
    ),
    PublishedModel(
        "GPT-2 XL", _decoder("gpt2-xl", 48, 1600, 6400, 25, 25, 50257, gated=False, tied=True), 1.558e9, 1024, _GPT2
    ),
    PublishedModel(
        "GPT-3 6.7B", _decoder("gpt3-6.7b", 32, 4096, 16384, 32, 32, 50257, gated=False, tied=True), 6.7e9, 2048, _GPT3
    ),
    PublishedModel(
        "GPT-3 13B", _decoder("gpt3-13b", 40, 5120, 20480, 40, 40, 50257, gated=False, tied=True), 13e9, 2048, _GPT3
    ),
    PublishedModel(
        "GPT-3 175B", _decoder("gpt3-175b", 96, 12288, 49152, 96, 96, 50257, gated=False, tied=True), 175e9, 2048, _GPT3
    ),
    PublishedModel(
        "Mixtral 8x7B",
        _mixture("mixtral-8x7b", 32, 4096, 32, 8, 32000, Experts(count=8, top_k=2, ffn=14336)),
        46.7e9,
        4096,
        "arXiv 2401.04088",
    ),
    PublishedModel(
        "Mixtral 8x22B",
        _mixture("mixtral-8x22b", 56, 6144, 48, 8, 32768, Experts(count=8, top_k=2, ffn=16384)),
        141e9,
        4096,
        "Mistral AI, Cheaper, Better, Faster, Stronger (2024), and its config.json",
    ),
    PublishedModel(
        "Qwen3 30B-A3B",
        _mixture("qwen3-30b-a3b", 48, 2048, 32, 4, 151936, Experts(count=128, top_k=8, ffn=768)),
        30.5e9,
        4096,
        _QWEN3,
    ),
    PublishedModel(
        "Qwen3 235B-A22B",
        _mixture("qwen3-235b-a22b", 94, 4096, 64, 4, 151936, Experts(count=128, top_k=8, ffn=1536)),
        235e9,
        4096,
        _QWEN3,
    ),
    PublishedModel(
        "gpt-oss 20B",
        _mixture(
            "gpt-oss-20b",
            24,
            2880,
            64,
            8,
            201088,
            Experts(count=32, top_k=4, ffn=2880),
            head_dim=64,
            windowed_layers=12,
        ),
        20.9e9,
        4096,
        _GPT_OSS,
    ),
    PublishedModel(
        "gpt-oss 120B",
        _mixture(
            "gpt-oss-120b",
            36,
            2880,
            64,
            8,
            201088,
            Experts(count=128, top_k=4, ffn=2880),
            head_dim=64,
            windowed_layers=18,
        ),
        116.8e9,
        4096,
        _GPT_OSS,
    ),
    PublishedModel("DeepSeek-V3", _latent_mixture("deepseek-v3", 128, 256, 3, 129280), 671e9, 4096, "arXiv 2412.19437"),
    PublishedModel(
        "Kimi K2", _latent_mixture("kimi-k2", 64, 384, 1, 163840), 1.04e12, 4096, "arXiv 2507.20534 and its config.json"
    ),
    PublishedModel("BERT-base", _encoder("bert-base", 12, 768, 12, 30522, tied=True), 110e6, 512, "arXiv 1810.04805"),
    PublishedModel(
        "BERT-large", _encoder("bert-large", 24, 1024, 16, 30522, tied=True), 335e6, 512, "arXiv 1810.04805"
    ),
    PublishedModel("ViT-L/16", _encoder("vit-l16", 24, 1024, 16, 1000, tied=False), 304e6, 197, _VIT),
    PublishedModel("ViT-H/14", _encoder("vit-h14", 32, 1280, 16, 1000, tied=False), 632e6, 257, _VIT),
    PublishedModel("T5 large", _encoder_decoder("t5-large", 24, 1024, 4096, 1024, 32128, 512, 114), 738e6, 1, _T5),
    PublishedModel("T5 3B", _encoder_decoder("t5-3b", 24, 1024, 16384, 4096, 32128, 512, 114), 2.85e9, 1, _T5),
    PublishedModel("T5 11B", _encoder_decoder("t5-11b", 24, 1024, 65536, 16384, 32128, 512, 114), 11.3e9, 1, _T5),
    PublishedModel(
        "Whisper large-v3",
        _encoder_decoder("whisper-large-v3", 32, 1280, 5120, 1280, 51866, 1500, 448),
        1.55e9,
        1,
        "arXiv 2212.04356 and the config.json of large-v3",
    ),
    PublishedModel("DiT-XL/2, 256 x 256 pixels", _dit("dit-xl2", 28, 1152, 256), 675e6, 1, "arXiv 2212.09748"),
    PublishedModel("ResNet-50", _resnet50(), 25.6e6, 1, "arXiv 1512.03385"),
    PublishedModel(
        "Stable Diffusion 1.5 U-Net, 512 x 512 pixels",
        CountedShape(
            name="sd1.5-unet",
            kind="cnn",
            layers=25,
            hidden=1280,
            parameters=859_520_964,
            flops=6 * 401.6e9,  # multiply-accumulates at 64 x 64 latents, the products of attention included
            activations=420_860_000,  # inputs of norms, activations and products over all blocks, without attention scores
        ),
        860e6,
        1,
        "arXiv 2112.10752 and its v1 configuration",
    ),
)

SHAPES: Mapping[str, PublishedModel] = {model.shape.name: model for model in _PUBLISHED}
"""By the name of the shape."""
