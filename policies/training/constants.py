"""The constants of the iteration time: shared over all models, plans and tables."""

from dataclasses import dataclass

from policies.training.hardware import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Shares lie in (0, 1]. The values are those that ``python -m benchmarks.iteration_time_fit`` prints.

    ``product_*``: share of the dense peak that large matrix products reach, by generation; ``fp32``: outside tensor cores;
    ``fp4`` and ``convolution``: further factors. ``attention``: of fused attention, over that of products.
    ``experts`` and ``experts_hopper``: of grouped products of experts, over that of products, for a model of endless width;
    width w reaches w / (w + ``expert_width``). ``fp8_experts``: further factor of narrow formats, ``graphed_experts``: of fused
    grouped products instead.
    ``memory``: share of the HBM bandwidth. ``*_launch_s``: what the host needs to start and follow the kernels of a dense
    layer, of a layer with experts, and of each expert held in it, forward and backward. ``*_exposed``: share of traffic that
    nothing hides.
    """

    product_volta: float = 0.653
    product_ampere: float = 0.718
    product_hopper: float = 0.583
    product_blackwell: float = 0.563
    product_blackwell_ultra: float = 0.674
    fp32: float = 0.924
    fp4: float = 0.774
    convolution: float = 0.595
    attention: float = 0.594
    experts: float = 0.596
    experts_hopper: float = 0.796
    expert_width: float = 2000.0
    fp8_experts: float = 0.778
    graphed_experts: float = 1.27
    memory: float = 0.74
    dense_launch_s: float = 0.000498
    expert_launch_s: float = 0.00239
    held_launch_s: float = 0.000307
    tensor_exposed: float = 0.571
    expert_inside_exposed: float = 0.297
    expert_beyond_exposed: float = 0.594
    context_exposed: float = 0.727
    stage_exposed: float = 0.279
    data_exposed: float = 0.457

    def product(self, generation: Generation) -> float:
        """Share of the peak that large matrix products reach on tensor cores."""
        match generation:
            case Generation.VOLTA:
                return self.product_volta
            case Generation.AMPERE:
                return self.product_ampere
            case Generation.HOPPER:
                return self.product_hopper
            case Generation.BLACKWELL:
                return self.product_blackwell
            case Generation.BLACKWELL_ULTRA:
                return self.product_blackwell_ultra


SHIPPED = Constants()
