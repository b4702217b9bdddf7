"""How it decides."""

from typing import Literal

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, MIB, Pairs, between


class Deciding(BaseModel):
    """The policy, what a preemption costs, the pulse of the loop."""

    executor: Literal["local", "fake"] = Field(
        "local", description="What runs the jobs: processes on this machine, or a timed imitation."
    )
    policy: str = Field("asrpt", min_length=1, max_length=64, description="Scheduling policy, by its registered name.")
    preemption: Literal["never", "guided", "always"] = Field(
        "guided",
        description="Whether running jobs are stopped for shorter ones; guided does it where the gain pays for the loss.",
    )
    policy_options: Pairs = Field(
        default_factory=dict,
        description="Further options of the policy as name=value,name=value; its own defaults otherwise.",
    )
    shadow_policy: str = Field(
        "",
        max_length=64,
        description="A second policy that decides beside the first and changes nothing, to compare them; empty for none.",
    )
    shadow_options: Pairs = Field(
        default_factory=dict,
        description="Options of the second policy as name=value,name=value; the settings above stand in for those left out.",
    )
    shadow_budget_s: float = between(
        0.25,
        0.001,
        60.0,
        "Time limit of one decision of the second policy. One that takes longer is left out, and its process starts over.",
    )
    shadow_memory_bytes_max: int = between(
        2048 * MIB,
        512 * MIB,
        1024 * 1024 * MIB,
        "Address space of the process in which the second policy decides; one that needs more is switched off.",
    )
    over_run: Literal["double", "attained"] = Field(
        "double",
        description="What is left of a job that outlives its prediction: up to the next doubling, or as much as it had.",
    )
    reschedule_period_s: float = between(
        5.0,
        0.1,
        3600.0,
        "The loop looks again at the latest after this long, whatever woke it before: a safety net, not the pulse.",
    )
    poll_period_s: float = between(
        0.25,
        0.01,
        60.0,
        "How often attempts are looked at. A quarter of a second is unnoticed by people and costs next to nothing.",
    )
    checkpoint_s: float = between(
        0.0,
        0.0,
        86_400.0,
        "How long GPUs stay held at a preemption, in its price. As in the simulator, so that both decide alike.",
    )
    restart_s: float = between(
        60.0,
        0.0,
        86_400.0,
        "Time without progress at each restart, in the price of a preemption: loading a framework and a checkpoint.",
    )
    attempt_duration_s_min: float = between(
        60.0,
        0.0,
        DAY_S,
        "A job that has run for less is not preempted: as long as a restart takes, or starts would be all it does.",
    )
    stop_grace_s: float = between(
        30.0,
        0.0,
        3600.0,
        "Between the signals of a stop where the job chose no grace: time to write a checkpoint of some gigabytes.",
    )
    yields_max: int = between(
        1000,
        1,
        1_000_000,
        "Unasked exits with code 75 before a job counts as failed: one that yields for ever makes no progress.",
    )
    retry_backoff_s: float = between(
        10.0,
        0.0,
        86_400.0,
        "Pause before a failed job is tried again, times its failures so far: a broken file system needs a moment.",
    )
    facts_per_cycle_max: int = between(
        100,
        1,
        1_000_000,
        "Requests taken in by one cycle; the next one follows at once. So a flood of submissions holds up no end of a job.",
    )
    dump_every_cycles: int = between(
        100, 1, 1_000_000, "The policy's own state is stored with every so many cycles: replay starts from there."
    )
