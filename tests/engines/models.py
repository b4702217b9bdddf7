"""Factories of models for ``sooner graph from-torch``: published ones of torchvision and transformers, and small ones of our own.

Imported by the Python that has torch, not by the tests.
"""

from typing import Any

import torch

if torch.version.cuda is None:
    # torchvision's wheel is built for CUDA. Beside a torch for CPUs its operators cannot be loaded, and its import stops at the
    # first of them that is missing. No model of the tests runs them.
    OPERATORS = torch.library.Library("torchvision", "DEF")
    OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def resnet50() -> Any:
    import torchvision

    return torchvision.models.resnet50()


def _causal(config: Any, sequence: int) -> Any:
    from transformers import AutoModelForCausalLM

    tokens = torch.zeros(8, sequence, dtype=torch.int64)
    return AutoModelForCausalLM.from_config(config), {"input_ids": tokens, "use_cache": False}


def gpt2() -> Any:
    from transformers import GPT2Config

    return _causal(GPT2Config(), 1024)


def llama3_8b() -> Any:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=8192, dtype="bfloat16",
    )  # fmt: skip
    return _causal(config, 8192)


def mixtral() -> Any:
    from transformers import MixtralConfig

    return _causal(MixtralConfig(num_hidden_layers=4), 1024)


class Branch(torch.nn.Module):
    """Its path depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.layer(values)
        if values.sum() > 0:
            return values * 2
        return values


def branch() -> Any:
    return Branch(), (torch.zeros(4, 8),)


class Checkpointed(torch.nn.Module):
    """Blocks under autocast whose activations are computed again; the first one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)) for _ in range(3)
        )
        self.blocks[0].requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                values = torch.utils.checkpoint.checkpoint(block, values, use_reentrant=False)
        return values


def checkpointed() -> Any:
    return Checkpointed(), torch.zeros(16, 64)


class Windowed(torch.nn.Module):
    """Attention over a window of 5 tokens, by a mask that is made without naming a device, and attention with a learnt bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.bias = torch.nn.Parameter(torch.zeros(32, 32))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        place = torch.arange(values.shape[1])
        distance = place[:, None] - place[None, :]
        mask = ((distance >= 0).float() * (distance < 5).float()).bool()
        values = self.first(values)
        values = torch.nn.functional.scaled_dot_product_attention(values, values, values, attn_mask=mask[None])
        values = self.second(values)
        return torch.nn.functional.scaled_dot_product_attention(values, values, values, attn_mask=self.bias)


def windowed() -> Any:
    return Windowed(), torch.zeros(8, 32, 16)


class Reading(torch.nn.Module):
    """Its constructor reads a value of a tensor, which the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.share = float(torch.linspace(0, 1, 3)[1])
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(values) * self.share


def reading() -> Any:
    return Reading(), (torch.zeros(4, 8),)


def raising() -> Any:
    raise ValueError("there is no data folder")


def nothing() -> None:
    return None


def unequal() -> Any:
    return torch.nn.Bilinear(8, 8, 8), (torch.zeros(4, 8), torch.zeros(5, 8))
