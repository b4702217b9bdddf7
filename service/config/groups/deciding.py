"""How it decides."""

from typing import Literal

from pydantic import BaseModel, Field

from service.config.kinds import DAY_S, MIB, Pairs, Seconds, between


class Deciding(BaseModel):
    """The policy, what a preemption costs, the pulse of the loop."""

    executor: Literal["local", "fake", "slurm", "ray"] = Field(
        "local",
        description="What runs the jobs: processes on this machine (local), a Slurm or Ray cluster (slurm, ray), or timers for "
        "tests (fake).",
    )
    policy: str = Field("asrpt", min_length=1, max_length=64, description="Scheduling policy: a built-in or a plug-in.")
    preemption: Literal["never", "guided", "always"] = Field(
        "guided",
        description="Whether running jobs are stopped for shorter ones. guided: only if the gain exceeds the cost.",
    )
    preempt_unsaved: Literal["never", "priority"] = Field(
        "never",
        description="Whether a job that cannot checkpoint is stopped for another job. priority: only for one of larger priority.",
    )
    policy_options: Pairs = Field(
        default_factory=dict,
        description="Other options of the policy as name=value,name=value. Missing options have the policy's defaults.",
    )
    shadow_policy: str = Field(
        "",
        max_length=64,
        description="A second policy that decides beside the first without effect, for comparison. Empty for none.",
    )
    shadow_options: Pairs = Field(
        default_factory=dict,
        description="Options of the shadow policy as name=value,name=value. The default is the active policy's value.",
    )
    shadow_budget_s: Seconds = between(
        0.25,
        0.001,
        60.0,
        "Time limit of one decision of the shadow policy. A longer one is dropped, and its process restarts.",
    )
    shadow_memory_bytes_max: int = between(
        2048 * MIB,
        512 * MIB,
        1024 * 1024 * MIB,
        "Address space of the shadow policy's process. If it needs more, the shadow policy is disabled.",
    )
    over_run: Literal["double", "attained"] = Field(
        "double",
        description="Remaining work of a job beyond its estimate: up to the next doubling, or as much as it has done.",
    )
    reschedule_period_s: Seconds = between(
        5.0,
        0.1,
        3600.0,
        "Longest time between two scheduling cycles. Events start a cycle earlier; this is a safety net.",
    )
    poll_period_s: Seconds = between(
        0.25,
        0.01,
        60.0,
        "Time between two polls of the attempts. People do not notice a quarter of a second, and it costs little CPU.",
    )
    checkpoint_s: Seconds = between(
        0.0,
        0.0,
        86_400.0,
        "Time that GPUs stay held in a preemption, as part of its cost. The simulator has the same option.",
    )
    restart_s: Seconds = between(
        60.0,
        0.0,
        86_400.0,
        "Time without progress after a restart, as part of a preemption's cost: loading a framework and a checkpoint.",
    )
    attempt_duration_s_min: Seconds = between(
        60.0,
        0.0,
        DAY_S,
        "Time that an attempt runs before it may be preempted. Shorter attempts would do little but restart.",
    )
    stop_grace_s: Seconds = between(
        30.0,
        0.0,
        3600.0,
        "Time between the signals of a stop without a grace period of the job: enough for a checkpoint of gigabytes.",
    )
    yields_max: int = between(
        1000,
        1,
        1_000_000,
        "Unrequested exits with code 75 before a job fails. A job that yields for ever makes no progress.",
    )
    retry_backoff_s: Seconds = between(
        10.0,
        0.0,
        86_400.0,
        "Wait before a retry, multiplied by the failures so far. A broken file system may need time to recover. Also the wait "
        "after a yield without a new iteration that ran for less than the wait, multiplied by the yields so far, at most 30. "
        "Also the wait after an attempt that Slurm or Ray did not start, multiplied by the attempts lost so far, at most 30.",
    )
    facts_per_cycle_max: int = between(
        100,
        1,
        1_000_000,
        "Requests consumed by one cycle; the next follows at once. A flood of submissions delays no running job.",
    )
    dump_every_s: Seconds = between(
        30.0,
        0.0,
        86_400.0,
        "Time between two stored copies of the policy state, with accounts of fair shares, promised ends and delays. A restart "
        "continues from the newest copy.",
    )
