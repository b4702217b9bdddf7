"""The GPU type of a plan: a known one, in any spelling."""

from policies.suggestion import did_you_mean
from policies.training.gpu_names import gpu_name
from policies.training.hardware import GPU_MODELS, GpuModel
from service.plans.values import ReadError


def gpu_of(text: str) -> GpuModel:
    """Raises :class:`ReadError` for a type that is not known, or that has variants of which none is said."""
    name = gpu_name(text)
    if name.model is not None:
        return name.model
    if name.models:
        variants = " or ".join(model.name for model in name.models)
        raise ReadError("gpu-type", f"{text!r:.60} is {variants}; say which")
    known = ", ".join(GPU_MODELS)
    raise ReadError(
        "gpu-type", f"{text!r:.60} is not known{did_you_mean(text.upper(), GPU_MODELS)}; the types are {known}"
    )
