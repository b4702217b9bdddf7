"""How a job is spread over GPUs: data-parallel replicas and a tensor degree for each pipeline stage."""

from dataclasses import dataclass

from policies.model.plan import PipelineSchedule


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """``replicas[s]`` data-parallel replicas of stage s, of ``tensor[s]`` GPUs each.

    ``virtual_stages``: parts of the model that each GPU holds; above 1 with the schedule ``interleaved`` alone.
    """

    replicas: tuple[int, ...]
    tensor: tuple[int, ...]
    schedule: PipelineSchedule = PipelineSchedule.PIPEDREAM
    micro_batches: int = 1
    tensor_across_servers: bool = False
    virtual_stages: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang: sum over stages of replicas x tensor degree."""
        return sum(k * t for k, t in zip(self.replicas, self.tensor, strict=True))
