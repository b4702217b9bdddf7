"""The pages of single words: settings, policies and their options, reasons, states, problem types."""

from dataclasses import fields
from enum import Enum

from pydantic.fields import FieldInfo

from docs.generate.markdown import code, join, opening, table
from policies.lifecycle import ATTEMPT_OPEN, ATTEMPT_TRANSITIONS, HOLDS_GPUS, TERMINAL, TRANSITIONS
from policies.lifecycle import AttemptState as A
from policies.lifecycle import Cause as C
from policies.lifecycle import JobState as S
from policies.model.reasons import Reason
from policies.options import _RANGES as OPTION_RANGES
from policies.options import Options, Weights
from policies.registry import BUILT_IN, PolicyFactory
from service.api.problems import ProblemType
from service.config.environment import CONFIG_FILE_VARIABLE
from service.config.settings import Settings, env_name

SETTINGS_INTRODUCTION = f"""
A value comes from the command line, else from the environment, else from the YAML file that `{CONFIG_FILE_VARIABLE}` names (lines
such as `port: 8765`), else from the default. `sooner config show` prints each setting with its source. A value outside its limits
stops `sooner serve` with exit code 2 and a line that names the setting. Durations are seconds, or have units: `90s`, `2h`,
`1d12h`, `02:30:00`.
"""

POLICIES_INTRODUCTION = """
The live service takes `policy`, `preemption`, `preempt_unsaved`, `over_run`, `attempt_duration_s_min` and `policy_options` from
its [settings](settings.md); a simulation takes `--policy`, `--preemption` and `--option NAME=VALUE` ([command line](cli.md)).
All policies share the choice of servers, the consolidation delay and the starvation guard, so a comparison shows the effect of
the order. [A-SRPT](../explanation/a-srpt.md) and [estimates and ranks](../explanation/estimates-and-ranks.md) separate published
ideas from our own constructions.

Other policies are plug-ins ([how to add one](../how-to/extend.md)).
"""

OPTION_MEANINGS = {
    "preemption": "Whether running jobs may be stopped for better ones. `guided`: if the gain pays for checkpoint, restart and "
    "lost work. `always`: regardless of that cost, for study. A policy without preemption accepts only `never`.",
    "preempt_unsaved": "Whether a job that cannot checkpoint (`checkpoint_period_s` null, no `preemption` signal, no checkpoint "
    "reported) is stopped for another job. `priority`: only for a job of larger priority.",
    "queue": "Whether jobs pass one that cannot start (`skip`) or wait behind it (`strict`), unless its servers are "
    "down or reserved. `auto` is strict where `asrpt` "
    "neither preempts nor releases early, so that smaller jobs do not take the GPUs that become free for a wide gang.",
    "order": "Without preemption: released jobs are ordered by virtual work, or by virtual completion time.",
    "release": "Without preemption: a job competes once the virtual machine has completed it (`virtual`), or earlier if GPUs "
    "would otherwise be idle (`early`).",
    "placement": "Which free GPUs a gang gets: those on which it iterates fastest (`heavy_edge`), or any (`random`, to measure "
    "the value of the choice).",
    "fill": "With preemption: jobs that fit start in rank order (`first_fit`); or the shortest prefix of that order that fills "
    "the cluster is served, largest gangs first (`server_filling`); or `server_filling` only while gangs of at least half "
    "the cluster, or the GPUs of the type that they need, bring much of the work (`auto`).",
    "reserve": "Whether a job that waits for a better placement reserves the GPUs it could have taken.",
    "over_run": "Remaining work of a job that has outlived its estimate: up to the next doubling (`double`), or as much as it "
    "has done (`attained`).",
    "eta": "A job displaces another only if its rank is below this fraction of the other's, minus the preemption cost.",
    "attempt_duration_s_min": "Seconds that an attempt runs before it may be preempted.",
    "restarts_free": "Number of restarts after which `restarted_attempt_s_min` protects the attempts of a job.",
    "restarted_attempt_s_min": "Seconds that an attempt runs before it may be preempted, after `restarts_free` restarts.",
    "contention": "Where the cluster says how links are shared: whether placements count who shares them (`foresee`), or each "
    "GPU owns its share (`ignore`) ([networks](../explanation/network.md#what-policies-foresee)).",
    "tau": "A job may wait for a good placement if its slowest one takes more than this many times its fastest.",
    "delay_factor": "Such a job waits at most this many times its remaining time, and no longer than the bad placement would "
    "cost it. 0: it never waits, except for links that others use (`contention`).",
    "guard_share": "Share of the GPUs for which the oldest jobs come first, so that none starves. 0: no guard.",
    "guard_wait_s": "After this many seconds the oldest waiting job comes first whatever its size, and GPUs are reserved for it "
    "as they become free.",
    "promise_level": "Share of the promised ends to keep.",
    "promise_weight": "Each time that half of what is left of the slack of a promise is gone, the job's rank is multiplied by 1 "
    "minus this. 0: promises do not change the order. 1: the job then comes first, in the order of the promised ends "
    "([how](../explanation/estimates-and-ranks.md#promised-ends)).",
    "fair_share": "The project with the smallest weighted usage comes first; rank decides among similar projects "
    "([how](../how-to/quotas.md#share-fairly-between-projects)).",
    "fair_share_half_life_s": "Seconds after which past usage counts half.",
    "project_weights": "Weights of projects, such as `nlp:3+vision:1`; the default weight is 1. Needs `fair_share=true`.",
}

STATE_MEANINGS = {
    S.QUEUED: "The job waits; its reason says why. A held job is queued too: hold is a flag and a reason, not a state.",
    S.STARTING: "GPUs are assigned and an attempt is being launched; the executor has not reported yet that it runs.",
    S.RUNNING: "The program runs.",
    S.PREEMPTING: "The job is being stopped for another job and returns to the queue with its checkpoint.",
    S.CANCELLING: "The job is being stopped for good: it was cancelled, or exceeded its walltime.",
    S.SUCCEEDED: "The program ended with exit code 0.",
    S.FAILED: "The job failed and is not retried; the reason says why.",
    S.CANCELLED: "The job was cancelled, or a job in its `after` did not succeed.",
}

ATTEMPT_MEANINGS = {
    A.LAUNCHING: "The start was decided and the command sent; nothing is known to run.",
    A.RUNNING: "The processes run.",
    A.STOPPING: "A stop was sent.",
    A.COMPLETED: "Exit code 0.",
    A.FAILED: "Another exit code, or it could not be launched.",
    A.PREEMPTED: "It was stopped for another job, or yielded (exit code 75).",
    A.CANCELLED: "It was stopped for good.",
    A.LOST: "It has ended for certain, with an unknown exit code.",
}

CAUSE_MEANINGS = {
    C.SUBMITTED: "A submission was accepted.",
    C.START_DECIDED: "The policy started the job: an attempt is opened and its GPUs are assigned.",
    C.PREEMPT_DECIDED: "The policy preempted the job.",
    C.STARTED: "The executor reported that the program runs.",
    C.EXITED_ZERO: "The program ended with exit code 0 (also if the report of its start was lost or late).",
    C.FINISHED_FIRST: "The program ended with exit code 0 while it was being stopped.",
    C.RETRYABLE_FAILURE: "The launch failed, the program crashed, or the attempt was lost, and retries are left (the loss of a "
    "server uses none). The job resumes from its last checkpoint.",
    C.FATAL_FAILURE: "The same without retries left, or for a reason that is not retried.",
    C.YIELDED: "An unrequested exit with code 75. It uses no retry but counts towards `yields_max`.",
    C.STOPPED: "The requested stop has completed.",
    C.WALLTIME: "The job has run for its walltime.",
    C.CANCEL_REQUESTED: "A user cancelled the job.",
    C.DEPENDENCY_FAILED: "A job in `after` did not succeed.",
}


def settings_page() -> str:
    """``reference/settings.md``."""
    lines = opening("Settings", "`service.config.settings`", SETTINGS_INTRODUCTION)
    for name, field in Settings.model_fields.items():
        facts = [f"Environment `{env_name(name)}`", f"default {_default(name, field)}"]
        low, high = _bound(field, "ge"), _bound(field, "le")
        if low is not None and high is not None:
            facts.append(f"from {_number(low)} to {_number(high)}")
        choices = getattr(field.annotation, "__args__", ())
        if choices and all(isinstance(choice, str) for choice in choices):
            facts.append("one of " + ", ".join(map(code, choices)))
        lines += [f"## {name}", "", field.description or "", "", "; ".join(facts) + ".", ""]
    return join(lines)


def _bound(field: FieldInfo, kind: str) -> float | None:
    """The least (``ge``) or largest (``le``) value; None where there is none."""
    return next((bound for each in field.metadata if (bound := getattr(each, kind, None)) is not None), None)


def _default(name: str, field: FieldInfo) -> str:
    if name == "data_dir":
        return "`$XDG_DATA_HOME/sooner`, else `~/.local/share/sooner`"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or value == {} or value == ():
        return "empty"
    if isinstance(value, tuple):
        return code(",".join(map(str, value)))
    return code(_number(value) if isinstance(value, int | float) else str(value))


def _number(value: object) -> str:
    assert isinstance(value, int | float)
    return f"{value:.15g}"


def policies_page() -> str:
    """``reference/policies.md``."""
    lines = opening("Policies and their options", "`policies.registry` and `policies.options`", POLICIES_INTRODUCTION)
    lines += table(("Policy", "What it is"), [(f"[`{name}`](#{name})", BUILT_IN[name].summary) for name in BUILT_IN])
    lines += ["## Options", ""]
    rows = [(f"`{field.name}`", _values(field.name), OPTION_MEANINGS[field.name]) for field in fields(Options)]
    lines += table(("Option", "Values", "Meaning"), rows)
    for name, factory in BUILT_IN.items():
        lines += [f"## {name}", "", f"{factory.summary[:1].upper()}{factory.summary[1:]}. {_preempts(factory)}", ""]
        taken = [field.name for field in fields(Options) if field.name in factory.options]
        defaults = [(code(option), code(_option(getattr(factory.defaults, option)))) for option in taken]
        lines += table(("Option", "Default"), defaults)
    return join(lines)


def _preempts(factory: PolicyFactory) -> str:
    return "It can preempt." if factory.preemptive else "It never preempts."


def _option(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Weights):
        return str(value) or "none"
    return str(value.value) if isinstance(value, Enum) else _number(value)


def _values(name: str) -> str:
    value = getattr(Options(), name)
    if isinstance(value, bool):
        return "`true`, `false`"
    if isinstance(value, Enum):
        return ", ".join(code(each.value) for each in type(value))
    if isinstance(value, Weights):
        return "`PROJECT:WEIGHT` joined by `+`, each weight 0.001 to 1000"
    low, high = OPTION_RANGES[name]
    return f"{_number(low)} to {_number(high)}"


def reasons_page() -> str:
    """``reference/reasons.md``."""
    lines = opening(
        "Reasons",
        "`policies.model.reasons`",
        "Every job has a state and a reason. `sooner job explain` adds the numbers behind the reason: GPUs needed, GPUs free "
        "and on how many servers, jobs ahead. It names the jobs that cannot checkpoint and are therefore not stopped for this "
        "one. Where it is known it says beforehand which jobs this one will preempt and when, and by which job a running one "
        "will be preempted: the first cycle from that time on does so if nothing else changes before.",
    )
    for reason in Reason:
        lines += [f"## {reason.value}", "", reason.sentence, ""]
        if not reason.retryable:
            lines += ["A failure with this reason is not retried.", ""]
    return join(lines)


def states_page() -> str:
    """``reference/states.md``."""
    lines = opening(
        "States",
        "`policies.lifecycle`",
        "A job has a state and a [reason](reasons.md). Every change of state is stored as an event with its cause "
        "(`sooner job events`). Only the changes in the tables below are possible.",
    )
    rows = [(code(s.value), _yes(s in HOLDS_GPUS), _yes(s in TERMINAL), STATE_MEANINGS[s]) for s in S]
    lines += ["## Jobs", "", *table(("State", "Holds GPUs", "Final", "Meaning"), rows)]
    order, causes = list(S), list(C)
    transitions = sorted(
        TRANSITIONS, key=lambda t: (order.index(t.source), order.index(t.target), causes.index(t.cause))
    )
    rows3 = [("(new)", code(S.QUEUED.value), code(C.SUBMITTED.value))]
    rows3 += [(code(t.source.value), code(t.target.value), code(t.cause.value)) for t in transitions]
    lines += ["## Changes of a job", "", *table(("From", "To", "Cause"), rows3)]
    lines += ["## Causes", "", *table(("Cause", "Meaning"), [(code(c.value), CAUSE_MEANINGS[c]) for c in C])]
    lines += [
        "## Attempts",
        "",
        "An attempt is one run of a job, from a start to a stop. Its id is the job's number and its own: `42.1`. At most one "
        "attempt of a job is open. Reports about closed attempts are ignored and logged.",
        "",
    ]
    lines += table(
        ("State", "Open", "Meaning"), [(code(a.value), _yes(a in ATTEMPT_OPEN), ATTEMPT_MEANINGS[a]) for a in A]
    )
    attempt_order = list(A)
    pairs = sorted(ATTEMPT_TRANSITIONS, key=lambda pair: tuple(map(attempt_order.index, pair)))
    lines += ["## Changes of an attempt", ""]
    lines += table(("From", "To"), [(code(source.value), code(target.value)) for source, target in pairs])
    return join(lines)


def _yes(truth: bool) -> str:
    return "yes" if truth else ""


def problems_page() -> str:
    """``reference/problems.md``."""
    lines = opening(
        "Problems",
        "`service.api.problems`",
        "Every error of the API is a problem document (RFC 9457, `application/problem+json`) with `type`, `title`, `status`, "
        "`detail`, `instance` and `errors`. `type` is a relative reference to a page of the service. Each entry of `errors` "
        "has a `detail` and either a `pointer` (RFC 6901) into the body or the name of a `parameter`. A text in "
        "a body that fails a check is not repeated, because it may be a secret. Numbers are, and names that were looked for.",
    )
    for kind in ProblemType:
        lines += [f"## {kind.value.slug}", "", f"**{kind.value.title}** (HTTP {kind.status}, type `{kind.uri}`).", ""]
        lines += [kind.value.advice, ""]
    return join(lines)
