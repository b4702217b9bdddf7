"""PyTorch FSDP as accelerate and Hugging Face Trainer configure it: the sharding strategy, and recomputation."""

from difflib import get_close_matches

from policies.model.plan import Recompute
from service.plans.reading import Draft
from service.plans.values import MISTYPED, Values

STRATEGIES = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True),
}
"""ZeRO stage, and whether the shards lie within one server. In this order accelerate numbers them from 1."""

_BY_WORD = STRATEGIES | {str(number): found for number, found in enumerate(STRATEGIES.values(), start=1)}

_KEYS = ("sharding_strategy", "reshard_after_forward", "activation_checkpointing", "offload_params", "version")


def wide_weights(draft: Draft) -> None:
    """Torch keeps weights, gradients and two moments in fp32: as many bytes as 16-bit weights and gradients with fp32 copies."""
    draft.set("fp32_gradients", False, "2 + 2 + 12 bytes a parameter stand for 4 + 4 + 8")


def strategy(draft: Draft, found: tuple[int, bool], origin: str) -> None:
    """Take a sharding strategy."""
    stage, within_node = found
    draft.set("zero_stage", stage, origin)
    if within_node:
        draft.set("shard_within_node", True, origin)


def take_fsdp(section: Values, draft: Draft) -> bool:
    """Take an ``fsdp_config``, with or without ``fsdp_`` before its keys; true where it says the strategy.

    FSDP shards fully unless it says otherwise. Version 2 has a switch instead of strategies.
    """

    def key(name: str) -> str:
        return name if name in section else f"fsdp_{name}"

    strategy(draft, STRATEGIES["FULL_SHARD"], "default of FSDP")
    named, reshard = key("sharding_strategy"), key("reshard_after_forward")
    said = False
    if section.count(key("version")) == 2 or (named not in section and _is_switch(section.raw(reshard))):
        if reshard in section:
            draft.set("zero_stage", 3 if section.flag(reshard) else 2, section.label(reshard))
            said = True
    else:
        name = named if named in section else reshard
        found = _BY_WORD.get(str(section.raw(name)).upper())  # accelerate takes small letters, too
        if found is None and name in section:
            raise section.fault(name, f"must be one of {', '.join(_BY_WORD)}")
        if found is not None:
            strategy(draft, found, section.label(name))
            said = True
    for name in (named, reshard):
        section.raw(name)
    if section.flag(key("activation_checkpointing")):
        draft.set("recompute", Recompute.FULL, section.label(key("activation_checkpointing")))
    for name in (key("offload_params"), key("cpu_offload")):
        if section.flag(name):
            draft.warn(f"{section.label(name)}: what lies on the CPU is counted as GPU memory")
    for each in section.unread():
        if likeness := get_close_matches(each.removeprefix("fsdp_"), _KEYS, 1, MISTYPED):
            draft.warn(f"{section.label(each)} is not understood; did you mean {likeness[0]!r}?")
    return said


def _is_switch(value: object) -> bool:
    """Whether it is the switch of version 2, not a strategy of version 1."""
    return not isinstance(value, str) or value.lower() in ("true", "false")
