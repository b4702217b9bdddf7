"""Optimizers whose states a plan counts: two moments in fp32. Others are named, because memory may differ by half."""

from service.plans.reading import Draft

_TWO_MOMENTS = {
    "adam", "adamw", "adamw_anyprecision", "adamw_apex_fused", "adamw_hf", "adamw_torch", "adamw_torch_fused",
    "adamw_torch_npu_fused", "adamw_torch_xla", "lamb", "muadam", "muadamw", "onebitadam", "onebitlamb", "paged_adamw",
    "paged_adamw_32bit", "schedule_free_adamw", "stable_adamw", "zerooneadam",
}  # fmt: skip
"""As Megatron-LM, DeepSpeed and Hugging Face Trainer call them."""


def name_other(draft: Draft, label: str, optimizer: object) -> None:
    """Warn of an optimizer with other states."""
    if isinstance(optimizer, str) and optimizer.lower() not in _TWO_MOMENTS:
        draft.warn(f"{label} {optimizer}: its states are counted as those of Adam")
