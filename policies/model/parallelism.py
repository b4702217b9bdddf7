"""How a job is spread over GPUs: data-parallel replicas and a tensor degree for each pipeline stage."""

from dataclasses import dataclass
from enum import StrEnum


class Schedule(StrEnum):
    """Pipeline schedule: asynchronous one-forward-one-backward, or synchronous with a flush per mini-batch."""

    ONE_F_ONE_B = "1f1b"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class ParallelismConfig:
    """``replicas[s]`` data-parallel replicas of stage s, of ``tensor[s]`` GPUs each."""

    replicas: tuple[int, ...]
    tensor: tuple[int, ...]
    schedule: Schedule = Schedule.ONE_F_ONE_B
    micro_batches: int = 1
    tensor_across_servers: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang: sum over stages of replicas x tensor degree."""
        return sum(k * t for k, t in zip(self.replicas, self.tensor, strict=True))
