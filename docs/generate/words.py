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
from service.config.settings import CONFIG_FILE_VARIABLE, Settings, env_name

SETTINGS_INTRODUCTION = f"""
A value comes from the command line, else from the environment, else from the YAML file that `{CONFIG_FILE_VARIABLE}` names
(lines of the form `port: 8765`), else it is the default. `sooner config show` prints each one with its source. A value
outside its limits ends `sooner serve` with one line that names the setting, and exit code 2.
"""

POLICIES_INTRODUCTION = """
The live service takes `policy`, `preemption`, `over_run`, `attempt_duration_s_min` and `policy_options` from its
[settings](settings.md); a simulation takes `--policy`, `--preemption` and `--option NAME=VALUE` ([command line](cli.md)).
All policies share the choice of servers, the waiting for a good placement, and the starvation guard, so that a comparison
compares orders. What is a published idea and what is our own construction: [A-SRPT](../explanation/a-srpt.md),
[estimates and ranks](../explanation/estimates-and-ranks.md).

Further policies are plug-ins: see [how to add one](../how-to/extend.md).
"""

OPTION_MEANINGS = {
    "preemption": "May running jobs be stopped for better ones? `guided` does it where the gain pays for checkpoint, restart "
    "and lost work; `always` ignores that price and is for study. A policy without preemption takes `never` alone.",
    "queue": "A job that cannot start is passed by those behind it (`skip`), or blocks them (`strict`). `auto` blocks where "
    "`asrpt` neither preempts nor releases early: what passes a wide gang would take the GPUs that come free for it.",
    "order": "Without preemption: released jobs go by virtual work, or by virtual completion time.",
    "release": "Without preemption: a job competes once the virtual machine has completed it (`virtual`), or earlier if GPUs "
    "would stay idle (`early`).",
    "placement": "Which free GPUs a gang gets: those on which it iterates fastest (`heavy_edge`), or any (`random`, to measure "
    "what choosing is worth).",
    "fill": "With preemption: whoever fits gets GPUs in the order of ranks (`first_fit`), or the shortest prefix of that order "
    "that fills the cluster is served, largest gangs first (`server_filling`), or `server_filling` while gangs of at least "
    "half the cluster bring much of the work (`auto`).",
    "reserve": "A job that waits for a better placement keeps the GPUs it could have taken.",
    "over_run": "What is left of a job that has outlived its estimate: up to the next doubling, or as much as it has had.",
    "eta": "A job displaces another only if its rank is below this fraction of the other's, less the price.",
    "attempt_duration_s_min": "Seconds that an attempt runs undisturbed before it may be preempted.",
    "restarts_free": "How often a job may start over before `restarted_attempt_s_min` protects its attempts.",
    "restarted_attempt_s_min": "Seconds that an attempt runs undisturbed once the job has started over so often.",
    "tau": "A job whose slowest placement takes more than this many times its fastest may wait for a good one.",
    "delay_factor": "It waits at most this many times its remaining time, and never longer than the bad placement would cost "
    "it. 0: it never waits.",
    "guard_share": "Share of the GPUs that goes to the oldest jobs first, so that none starves. 0: no guard.",
    "guard_wait_s": "After this many seconds the oldest waiting job comes first whatever its size, and GPUs are set aside for "
    "it as they free up.",
    "fair_share": "Jobs of projects that have had less by their weights come first, and rank decides among those alike "
    "([how](../how-to/quotas.md#share-fairly-between-projects)).",
    "fair_share_half_life_s": "After so many seconds what a project has had counts half.",
    "project_weights": "Weights of projects, as in `nlp:3+vision:1`; others weigh 1. Needs `fair_share=true`.",
}

STATE_MEANINGS = {
    S.QUEUED: "It waits; its reason says what for. A held job waits too: holding is a flag and a reason, not a state.",
    S.STARTING: "GPUs are bound to it and an attempt was launched; the executor has not said yet that it runs.",
    S.RUNNING: "Its program runs.",
    S.PREEMPTING: "It is being stopped for a better job, and goes back to the queue with its checkpoint.",
    S.CANCELLING: "It is being stopped for good: cancelled, or over its walltime.",
    S.SUCCEEDED: "Its program ended with exit code 0.",
    S.FAILED: "It failed and is not tried again; the reason says why.",
    S.CANCELLED: "It was cancelled, or a job that it needed did not succeed.",
}

ATTEMPT_MEANINGS = {
    A.LAUNCHING: "It was decided and its command sent; nothing is known to run.",
    A.RUNNING: "Its processes run.",
    A.STOPPING: "A stop was sent.",
    A.COMPLETED: "Exit code 0.",
    A.FAILED: "Another exit code, or it could not be launched.",
    A.PREEMPTED: "It was stopped for another job, or asked to resume later (exit code 75).",
    A.CANCELLED: "It was stopped for good.",
    A.LOST: "It is confirmed dead, and nobody knows its exit code.",
}

CAUSE_MEANINGS = {
    C.SUBMITTED: "A submission was accepted.",
    C.START_DECIDED: "The policy started it: attempt n + 1 is opened and its GPUs are bound.",
    C.PREEMPT_DECIDED: "The policy preempted it.",
    C.STARTED: "The executor says that it runs.",
    C.EXITED_ZERO: "Its program ended with exit code 0 (also if the report of its start was lost or late).",
    C.FINISHED_FIRST: "Exit code 0 arrived although a stop was under way.",
    C.RETRYABLE_FAILURE: "Launch failed, crashed or confirmed dead, and retries are left (a loss with a server that is down uses "
    "none). Progress = the last checkpoint.",
    C.FATAL_FAILURE: "The same with retries exhausted, or for a reason that a retry cannot mend.",
    C.YIELDED: "Exit code 75 that nobody asked for: it uses no retry but counts against `yields_max`.",
    C.STOPPED: "The stop that was asked for has landed.",
    C.WALLTIME: "It has run for its walltime.",
    C.CANCEL_REQUESTED: "Somebody cancelled it.",
    C.DEPENDENCY_FAILED: "A job in its `after` did not succeed.",
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
        "Every job has a state and a reason. The reason is one word; `sooner job explain` adds the numbers behind it: GPUs "
        "needed, GPUs free and on how many servers, jobs ahead.",
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
        "A job has few states and many [reasons](reasons.md). Every change of a state is an event with its cause, and is kept "
        "for ever: `sooner job events`. A change that is not in the tables below cannot happen: the code refuses it.",
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
        "An attempt is one life of a job from a placement to a stop. Its id is the job's number and its own: `42.1`. At most "
        "one attempt of a job is open. Reports of an attempt that is closed are ignored and logged.",
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
        "`detail`, `instance` and `errors`. `type` is a relative reference to a page that the service itself serves. Each "
        "entry of `errors` has a `detail` and either a `pointer` (RFC 6901) into the body or the name of a `parameter`. "
        "Values that a client sent are never repeated: they may be secrets.",
    )
    for kind in ProblemType:
        lines += [f"## {kind.value.slug}", "", f"**{kind.value.title}** (HTTP {kind.status}, type `{kind.uri}`).", ""]
        lines += [kind.value.advice, ""]
    return join(lines)
