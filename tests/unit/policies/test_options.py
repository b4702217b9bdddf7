"""Options of policies: parsed, bounded, and refused by name."""

import pytest

from policies.options import (
    ContentionView,
    Fill,
    OptionError,
    Options,
    Order,
    PlacementMethod,
    Preemption,
    PreemptUnsaved,
    Queue,
    Release,
    Weights,
    parse_options,
)
from policies.rank import OverRun
from policies.registry import BUILT_IN

ALL = frozenset(Options.__dataclass_fields__)


def test_every_option_is_parsed_to_its_type() -> None:
    values = {
        "preemption": "always",
        "queue": "strict",
        "order": "virtual",
        "release": "early",
        "fill": "auto",
        "placement": "random",
        "preempt_unsaved": "priority",
        "contention": "ignore",
        "reserve": "TRUE",
        "over_run": "attained",
        "eta": "0.5",
        "attempt_duration_s_min": "60",
        "restarts_free": "3",
        "restarted_attempt_s_min": "90",
        "tau": "2",
        "delay_factor": "0",
        "guard_share": "0.1",
        "guard_wait_s": "3600",
        "promise_level": "0.8",
        "promise_weight": "1",
        "fair_share": "true",
        "fair_share_half_life_s": "3600",
        "project_weights": "nlp:3+a:b:0.5",
    }
    assert set(values) == ALL, "a new option needs a line here"
    assert parse_options(Options(), values, ALL) == Options(
        preemption=Preemption.ALWAYS,
        queue=Queue.STRICT,
        order=Order.VIRTUAL,
        release=Release.EARLY,
        fill=Fill.AUTO,
        placement=PlacementMethod.RANDOM,
        preempt_unsaved=PreemptUnsaved.PRIORITY,
        contention=ContentionView.IGNORE,
        reserve=True,
        over_run=OverRun.ATTAINED,
        eta=0.5,
        attempt_duration_s_min=60.0,
        restarts_free=3.0,
        restarted_attempt_s_min=90.0,
        tau=2.0,
        delay_factor=0.0,
        guard_share=0.1,
        guard_wait_s=3600.0,
        promise_level=0.8,
        promise_weight=1.0,
        fair_share=True,
        fair_share_half_life_s=3600.0,
        project_weights=Weights({"nlp": 3.0, "a:b": 0.5}),
    )


@pytest.mark.parametrize("text", ["nlp", "nlp:", "nlp:0", "nlp:x", "nlp:1+", "nlp:1001", "nlp:nan"])
def test_invalid_weights_are_errors(text: str) -> None:
    with pytest.raises(OptionError, match="option project_weights"):
        parse_options(Options(), {"fair_share": "true", "project_weights": text}, ALL)


def test_weights_without_fair_share_are_an_error() -> None:
    with pytest.raises(OptionError, match="fair_share=true"):
        parse_options(Options(), {"project_weights": "nlp:3"}, ALL)


def test_with_fair_share_no_job_waits_at_the_virtual_gate() -> None:
    options = parse_options(Options(queue=Queue.AUTO), {"fair_share": "true"}, ALL)
    assert (options.release, options.queue) == (Release.EARLY, Queue.SKIP)


@pytest.mark.parametrize(
    ("values", "queue"),
    [
        ({}, Queue.SKIP),
        ({"preemption": "always"}, Queue.SKIP),
        ({"preemption": "never"}, Queue.STRICT),
        ({"preemption": "never", "release": "early"}, Queue.SKIP),
        ({"preemption": "never", "queue": "skip"}, Queue.SKIP),
        ({"queue": "strict"}, Queue.STRICT),
    ],
)
def test_a_blocked_job_of_asrpt_blocks_only_jobs_at_the_virtual_gate(values: dict[str, str], queue: Queue) -> None:
    defaults = BUILT_IN["asrpt"].defaults
    assert parse_options(defaults, values, ALL).queue is queue


def test_without_values_the_defaults_stay() -> None:
    assert parse_options(Options(eta=0.3), {}, ALL) == Options(eta=0.3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speed": "1"}, "unknown option 'speed'; known: attempt"),
        ({"eta": "1.1"}, "option eta: 1.1 is outside 0 to 1"),
        ({"eta": "nan"}, "option eta: nan is outside"),
        ({"eta": "much"}, "option eta: 'much' is not a number"),
        ({"guard_wait_s": "-1"}, "outside 0 to"),
        ({"tau": "0.9"}, "option tau: 0.9 is outside 1 to 1,000,000"),
        ({"queue": "fair"}, "option queue: 'fair' is not one of strict, skip, auto"),
        ({"reserve": "yes"}, "option reserve: 'yes' is neither"),
    ],
)
def test_bad_values_are_named(values: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options(Options(), values, ALL)


def test_an_option_that_the_policy_does_not_take_is_unknown_to_it() -> None:
    with pytest.raises(OptionError, match="unknown option 'eta'; known: tau"):
        parse_options(Options(), {"eta": "0.5"}, frozenset({"tau"}))
