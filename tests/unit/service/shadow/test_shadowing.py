"""The live shadow: creation from settings, and reports."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.model.ids import JobId
from policies.model.reasons import Reason
from service.config.policy import configured_shadow
from service.config.settings import Settings, SettingsError, load_settings
from service.engine.engine import Engine
from service.shadow import live as shadowing
from service.shadow.live import Shadowing, ShadowReport, Want, make_shadow
from service.shadow.shadow import Shadow, Status
from tests.local_shadow import LocalWorker, local_shadow
from tests.scenarios.dsl import Story, cluster, policy


class Loop:
    """Read access to a story's engine."""

    cycle_number = 0

    def __init__(self, story: Story) -> None:
        self.story = story

    def read(self, look: Callable[[Engine[Any]], Any]) -> Any:
        return look(self.story.engine)


def shadowing_of(story: Story) -> Shadowing:
    assert isinstance(story.policy, Shadow)
    return Shadowing(story.policy, Loop(story), Settings())


def report_of(story: Story) -> ShadowReport:
    report = shadowing_of(story).report()
    assert report is not None
    return report


@pytest.fixture
def blocked() -> Story:
    """Strict FIFO lets "small" and "tiny" wait behind "head"; backfill would start both."""
    story = cluster("2x2", local_shadow(policy("fifo"), policy("fifo_backfill"), {"tau": "2"}))
    story.job("runs", gpus=1, runs_s=100.0).job("head", gpus=4, runs_s=50.0, at_s=10.0)
    return story.job("small", gpus=2, runs_s=20.0, at_s=20.0).job("tiny", gpus=1, runs_s=20.0, at_s=30.0).until(40)


def test_a_report_lists_jobs_that_the_shadow_would_start_now(blocked: Story) -> None:
    report = report_of(blocked)
    state = report.state
    assert (state.policy, state.options, state.first_policy) == ("fifo_backfill", {"tau": "2"}, "fifo")
    assert (state.status, state.reason, report.since_s, report.at_s) == (Status.WATCHING, "", 0.0, 40.0)
    assert (report.totals.starts.both, report.totals.starts.shadow_only, report.disagreements_total) == (1, 2, 2)
    small, tiny = report.disagreements
    assert (small.job, small.name, small.gpus, small.since_s) == (blocked.ids["small"], "small", 2, 20.0)
    assert (small.wants, small.servers, small.for_job) == (Want.START, [("s1", 2)], None)
    assert small.first.reason is Reason.QUEUE_HEAD_BLOCKED
    assert small.sentence == "It would start now on s1:2."
    assert (tiny.since_s, tiny.sentence) == (30.0, "It would start now on s0:1.")
    assert [difference.starts_shadow for difference in report.differences] == [(4,), (3,)]


def test_a_report_is_a_copy(blocked: Story) -> None:
    report = report_of(blocked)
    blocked.until(60)
    assert report.totals.starts.shadow_only_gpu_s == 2 * 20.0 + 1 * 10.0
    assert report_of(blocked).totals.starts.shadow_only_gpu_s == 2 * 40.0 + 1 * 30.0


def test_a_report_lists_the_oldest_disagreements_and_counts_all(
    blocked: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "DISAGREEMENTS_MAX", 1)
    report = report_of(blocked)
    assert ([each.name for each in report.disagreements], report.disagreements_total) == (["small"], 2)


def test_a_report_lists_a_job_that_the_shadow_would_preempt() -> None:
    story = cluster("1x4", local_shadow(policy("sjf"), policy("srtf", preemption="always")))
    story.job("long", gpus=4, runs_s=1000.0).job("short", gpus=4, runs_s=10.0, at_s=100.0).until(120)
    (listed,) = report_of(story).disagreements
    assert (listed.job, listed.wants, listed.servers, listed.for_job, listed.since_s) == (1, Want.STOP, (), 2, 100.0)
    assert listed.sentence == "It would be stopped now for job 2."
    assert listed.first.reason is Reason.STARTED


def test_a_report_lists_a_job_that_the_shadow_would_not_have_started() -> None:
    """SJF would have started the four short jobs on the GPUs that FIFO gave to the long one."""
    story = cluster("1x4", local_shadow(policy("fifo"), policy("sjf")))
    story.job("long", gpus=4, runs_s=1000.0)
    for number in range(4):
        story.job(f"short{number}", gpus=1, runs_s=10.0)
    story.until(50)
    (listed,) = report_of(story).disagreements
    assert (listed.job, listed.wants, listed.since_s) == (1, Want.WAIT, 0.0)
    assert listed.sentence == "It would not have been started. It would have started jobs 2, 3, 4, 5 instead."
    opinion = shadowing_of(story).opinion(JobId(1))
    assert opinion is not None
    assert (opinion.policy, opinion.wants, opinion.sentence) == ("sjf", Want.WAIT, listed.sentence)


def test_a_job_at_the_virtual_gate_has_the_gate_in_its_sentence() -> None:
    """A-SRPT without preemption lets a job compete when the virtual machine has completed it."""
    story = cluster("1x4", local_shadow(policy("fifo"), policy("asrpt", preemption="never")))
    story.job("a", gpus=4, runs_s=100.0).until(50)
    (listed,) = report_of(story).disagreements
    assert listed.sentence.startswith("It would not have been started. Needs 4 GPUs; 4 free on 1 server.")
    assert Reason.VIRTUAL_GATE.sentence in listed.sentence


def test_a_sentence_names_five_jobs_and_counts_the_others() -> None:
    assert shadowing._jobs([JobId(2)]) == "job 2"
    assert shadowing._jobs([JobId(number) for number in range(1, 9)]) == "jobs 1, 2, 3, 4, 5 and 3 more"


def test_opinions_of_jobs(blocked: Story) -> None:
    shadowed = shadowing_of(blocked)
    head = shadowed.opinion(blocked.ids["head"])
    assert head is not None
    assert (head.policy, head.wants) == ("fifo_backfill", None)
    assert head.sentence.startswith("Needs 4 GPUs; 3 free on 2 servers; 0 jobs precede it.")
    small = shadowed.opinion(blocked.ids["small"])
    assert small is not None
    assert (small.wants, small.sentence) == (Want.START, "It would start now on s1:2.")
    assert shadowed.opinion(JobId(99)) is None
    blocked.hold("head").until(40)
    assert shadowed.opinion(blocked.ids["head"]) is None


def test_without_a_shadow_reports_and_opinions_are_none(blocked: Story) -> None:
    silent = Shadowing(None, Loop(blocked), Settings())
    silent.save()
    assert (silent.report(), silent.opinion(JobId(1))) == (None, None)


# Settings.


def settings(tmp_path: Path, **flags: Any) -> Settings:
    return load_settings({"data_dir": tmp_path, **flags})


def test_the_settings_create_a_shadow(tmp_path: Path) -> None:
    assert configured_shadow(settings(tmp_path)) is None
    assert make_shadow(settings(tmp_path), policy("fifo"), LocalWorker) is None
    made = make_shadow(
        settings(tmp_path, shadow_policy="sjf", shadow_options="tau=3", shadow_budget_s=7.0),
        policy("fifo"),
        LocalWorker,
    )
    assert made is not None
    assert (made.state().policy, made.state().options, made.budget_s) == ("sjf", {"tau": "3"}, 7.0)


def test_the_shadow_uses_settings_of_the_first_policy_for_options_that_it_has(tmp_path: Path) -> None:
    given = {"preemption": "always", "attempt_duration_s_min": 5.0}
    found = configured_shadow(settings(tmp_path, shadow_policy="srsf", shadow_options={"eta": "0.5"}, **given))
    assert found is not None
    options = found.options
    assert (options["preemption"], options["attempt_duration_s_min"], options["eta"]) == ("always", "5.0", "0.5")
    found = configured_shadow(settings(tmp_path, shadow_policy="srsf", shadow_options="preemption=never", **given))
    assert found is not None
    assert found.options["preemption"] == "never"
    found = configured_shadow(settings(tmp_path, shadow_policy="fifo", **given))
    assert found is not None
    assert found.options == {}


def test_the_shadow_takes_the_options_of_the_first_policy_that_it_has_unless_it_is_given_others(tmp_path: Path) -> None:
    given = {"policy_options": "fair_share=true,eta=0.5,tau=2,queue=strict,preemption=always"}
    found = configured_shadow(settings(tmp_path, shadow_policy="fifo", **given))
    assert found is not None
    assert found.options == {"fair_share": "true", "tau": "2"}
    found = configured_shadow(settings(tmp_path, shadow_policy="srsf", shadow_options="tau=3", **given))
    assert found is not None
    shown = {name: found.options[name] for name in ("fair_share", "eta", "tau", "preemption")}
    assert shown == {"fair_share": "true", "eta": "0.5", "tau": "3", "preemption": "always"}
    assert "queue" not in found.options
    found = configured_shadow(settings(tmp_path, shadow_policy="asrpt", policy="asrpt", **given))
    assert found is not None
    assert found.options["queue"] == "strict"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"shadow_policy": "lottery"}, r"SOONER_SHADOW_POLICY.*unknown policy 'lottery'"),
        ({"shadow_policy": "srsf", "shadow_options": "eta=7"}, "option eta: 7 is outside 0 to 1"),
        ({"shadow_policy": "fifo", "shadow_options": "preemption=always"}, "policy fifo does not preempt"),
        ({"shadow_options": "eta=0.5"}, "SOONER_SHADOW_OPTIONS needs SOONER_SHADOW_POLICY"),
    ],
)
def test_invalid_shadow_settings_raise_an_error(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        configured_shadow(settings(tmp_path, **flags))
