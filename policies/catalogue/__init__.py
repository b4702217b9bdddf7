"""Well-known networks as layer graphs, for jobs that name a model instead of measured layers.

Parameter counts follow from the architectures and match the published ones. Layer times are an ESTIMATE: operations over 35%
of the peak that a GPU's data sheet names. Everything is in fp32: 4 bytes a parameter, a gradient and an activation.
"""

from collections.abc import Mapping

from policies.catalogue.architecture import Architecture, CatalogueModel
from policies.catalogue.convolutional import inception_v3, resnet50, vgg19
from policies.catalogue.gpus import GPUS, CatalogueGpu
from policies.catalogue.transformers import bert_large, gpt2_medium, gpt2_xl, moe_mixtral_8x7b, vit_l16
from policies.model.graph import Layer, LayerGraph, StageGraph
from policies.model.parallelism import ParallelismConfig
from policies.stages import cut, layer_graph

__all__ = ["GPUS", "MODELS", "CatalogueGpu", "CatalogueModel", "UnknownModel", "build", "default_config", "pipeline"]

PEAK_RATIO = 0.35
"""Share of the peak that training is assumed to reach."""

BYTES = 4
"""fp32."""

STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments of Adam, in fp32."""

STATE_BYTES_PER_GPU_MAX = 10 * 2**30
"""Training state that a stage may hold on a GPU of 16 GiB; the remaining memory is for activations."""


class UnknownModel(ValueError):
    """The catalogue does not hold the model, or the table of GPUs not the GPU."""


def _model(
    title: str, source: str, sample: str, samples_per_gpu: int, architecture: Architecture
) -> tuple[str, CatalogueModel]:
    units, edges = architecture()
    name = architecture.__name__
    return name, CatalogueModel(name, title, source, sample, samples_per_gpu, units, edges)


_IMAGE = "one 224 x 224 image"
_GPT2 = "Radford et al., Language Models are Unsupervised Multitask Learners (2019)"
MODELS: Mapping[str, CatalogueModel] = dict(
    (
        _model("ResNet-50", "arXiv 1512.03385", _IMAGE, 64, resnet50),
        _model("VGG-19", "arXiv 1409.1556", _IMAGE, 32, vgg19),
        _model("Inception-v3", "arXiv 1512.00567", "one 299 x 299 image", 64, inception_v3),
        _model("BERT-large", "arXiv 1810.04805", "512 tokens", 4, bert_large),
        _model("GPT-2 medium", _GPT2, "1,024 tokens", 2, gpt2_medium),
        _model("GPT-2 XL", _GPT2, "1,024 tokens", 1, gpt2_xl),
        _model("ViT-L/16", "arXiv 2010.11929", _IMAGE, 32, vit_l16),
        _model("Mixtral 8x7B", "arXiv 2401.04088", "4,096 tokens", 1, moe_mixtral_8x7b),
    )
)
"""By the name that a job's ``graph.model`` gives."""


def build(model: str, batch_size: int, gpu: str = "V100", replicas: int = 1) -> LayerGraph:
    """The model's layers for one global mini-batch of ``batch_size`` samples on one GPU.

    Times are an estimate: 2 operations a multiply-accumulate forward, twice as many backward, at 35% of the fp32 peak of the
    ``gpu``. Bytes are fp32. ``replicas`` data-parallel replicas share the mini-batch, which matters to the traffic inside a
    tensor group alone; convolutional networks have none here. Raises :class:`UnknownModel`, and ValueError for a batch
    below 1.
    """
    found = _found(model)
    if gpu not in GPUS:
        raise UnknownModel(f"unknown GPU {gpu!r}; the GPUs are {', '.join(GPUS)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
    second_per_mac = 2.0 * batch_size / (GPUS[gpu].peak_flops * PEAK_RATIO)
    layers = [
        Layer(
            name=unit.name,
            forward_s=unit.cost.macs * second_per_mac,
            backward_s=2.0 * unit.cost.macs * second_per_mac,
            parameter_bytes=BYTES * unit.cost.parameters,
            activation_bytes=BYTES * unit.outputs * batch_size,
            tensor_bytes=BYTES * unit.reduced * batch_size // replicas,
        )
        for unit in found.units
    ]
    return layer_graph(layers, found.edges)


def default_config(model: str, gpus: int) -> ParallelismConfig:
    """Data-parallel, in as few pipeline stages as keep the training state within a GPU of 16 GiB.

    A few more stages are used if all stages then have equally many replicas. If GPUs or layers are too few for the memory
    limit, about as many stages as possible: the model then needs larger GPUs. Raises :class:`UnknownModel`, and ValueError
    below 1 GPU.
    """
    found = _found(model)
    if gpus < 1:
        raise ValueError(f"gpus must be at least 1 (got {gpus})")
    stages_min = -(-found.parameters * STATE_BYTES_PER_PARAMETER // STATE_BYTES_PER_GPU_MAX)
    stages_max = min(gpus, len(found.units))
    most = min(2 * stages_min, stages_max)
    counts = range(stages_min, most + 1) if stages_min <= stages_max else range(stages_max, stages_max // 2, -1)
    stages = next((count for count in counts if gpus % count == 0), counts[0])
    replicas = tuple(gpus // stages + (s < gpus % stages) for s in range(stages))
    return ParallelismConfig(replicas=replicas, tensor=(1,) * stages)


def pipeline(model: str, gpus: int) -> tuple[StageGraph, ParallelismConfig]:
    """The model as a job of ``gpus`` GPUs usually runs it: its usual batch a GPU, the default parallelism.

    Raises :class:`UnknownModel`, and ValueError below 1 GPU.
    """
    config = default_config(model, gpus)
    return cut(build(model, MODELS[model].samples_per_gpu * gpus), len(config.replicas)), config


def _found(model: str) -> CatalogueModel:
    if model not in MODELS:
        raise UnknownModel(f"{model!r} is not in the catalogue; its models are {', '.join(sorted(MODELS))}")
    return MODELS[model]
