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

    product_volta: float = 0.647
    product_ampere: float = 0.711
    product_hopper: float = 0.585
    product_blackwell: float = 0.562
    product_blackwell_ultra: float = 0.672
    fp32: float = 0.927
    fp4: float = 0.76
    convolution: float = 0.596
    attention: float = 0.592
    experts: float = 0.558
    experts_hopper: float = 0.667
    expert_width: float = 1540.0
    fp8_experts: float = 0.8
    graphed_experts: float = 1.3
    memory: float = 0.759
    dense_launch_s: float = 0.0005
    expert_launch_s: float = 0.00252
    held_launch_s: float = 0.000301
    tensor_exposed: float = 0.597
    expert_inside_exposed: float = 0.563
    expert_beyond_exposed: float = 0.508
    context_exposed: float = 0.704
    stage_exposed: float = 0.297
    data_exposed: float = 0.308

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
