"""GPU types as people, NVML and Slurm spell them: ``H100``, ``a100-80gb``, ``NVIDIA A100-SXM4-80GB``, ``rtx_4090``."""

import re

from policies.suggestion import did_you_mean
from policies.training.hardware import GPU_MODELS, GpuModel
from service.plans.values import ReadError

_LEFT_OUT = re.compile(r"nvidia|tesla|geforce|gpu|hbm\d?e?|sxm\d?")
_MEMORY = re.compile(r"(\d{1,3})(?:gi?b?)?")
_ROUNDED_GIB = 4
"""Names round the memory: an H100 of 80 GB, an H200 of 141 or 144."""


def gpu_of(text: str) -> GpuModel:
    """Raises :class:`ReadError` for a type that is not known, or that has variants of which none is said."""
    exact = {name.lower(): model for name, model in GPU_MODELS.items()}
    if text.lower() in exact:
        return exact[text.lower()]
    words = [word for word in re.split(r"[\s_\-/]+", text.lower().strip()) if word and not _LEFT_OUT.fullmatch(word)]
    if words[:1] == ["rtx"]:
        words = ["".join(words[:2]), *words[2:]]
    family = words[0] if words else ""
    found = [model for name, model in exact.items() if name.partition("-")[0] == family]
    for word in words[1:]:
        memory = _MEMORY.fullmatch(word)
        found = [model for model in found if memory is not None and _has(model, int(memory[1]))]
    if len({model.memory_bytes for model in found}) > 1:
        variants = " or ".join(model.name for model in found)
        raise ReadError("gpu-type", f"{text!r:.60} is {variants}; say which")
    if not found:
        known = ", ".join(GPU_MODELS)
        raise ReadError(
            "gpu-type", f"{text!r:.60} is not known{did_you_mean(text.upper(), GPU_MODELS)}; the types are {known}"
        )
    return found[0]


def _has(model: GpuModel, gib: int) -> bool:
    return abs(model.memory_bytes / 2**30 - gib) <= _ROUNDED_GIB
