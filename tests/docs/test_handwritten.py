"""Pages written by hand name everything that the code has: columns, keys, variables, files, models, formats."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from docs.generate import cli
from policies.catalogue import GPUS, MODELS
from policies.catalogue.shapes import SHAPES
from policies.model.cluster import Server
from policies.model.ids import JobId, ServerIndex, attempt_id
from policies.model.job import ArrayPlace, JobSpec
from policies.model.job import Launch as LaunchMode
from policies.model.placement import ServerShare, place
from policies.model.plan import TrainingPlan
from policies.model.reasons import Reason
from policies.options import Options
from policies.training import memory, nearest, plans, ranking
from predictor import training
from predictor.fallback import CLUSTER_JOBS_TRUSTED, USER_PROGRAMS_MIN
from service.config.cluster_file import ServerGroup
from service.config.environment import ENV_PREFIX, PROGRAM_VARIABLES
from service.config.settings import Settings
from service.engine.commands import Launch
from service.executors import folder as attempt_files
from service.executors.launch_plan import Identity, Site, allowed_environment, build_plan
from service.server.leading import SHADOW_SAVED_S
from service.shadow import shadow
from service.sim.faults import (
    FRUITLESS_ATTEMPTS_MAX,
    IDLE_FAULTS_MIN,
    IDLE_FAULTS_PER_SERVER,
    FaultCounts,
    FaultPlan,
    Window,
)
from service.sim.predictors import PredictorNameError, make_predictor
from service.sim.results import JOB_COLUMNS, Result
from service.sim.workloads.importers import IMPORTERS
from service.sim.workloads.model import FINAL_STATES, WorkloadJob
from service.wire.bodies import JobBody
from service.wire.plans import PlanBody
from tests.docs.markdown import ROOT


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _coded(page: str) -> set[str]:
    """Everything that a page writes as inline code, also each part of a list in one."""
    return set(re.findall(r"`([^`\n]+)`", page))


def test_workload_columns_formats_and_models() -> None:
    page = _coded(_page("reference/workloads.md"))
    assert {field.name for field in fields(WorkloadJob)} <= page
    assert page >= FINAL_STATES
    assert set(IMPORTERS) <= page
    assert set(MODELS) | set(SHAPES) <= page
    assert all(gpu in _page("reference/workloads.md") for gpu in GPUS)


def test_cluster_keys() -> None:
    page = _coded(_page("reference/cluster.md"))
    assert {f"servers[].{key}" for key in ServerGroup.model_fields} <= page
    assert {"schema", "name", "servers", "tiers.rack_gbps", "tiers.core_gbps"} <= page


def test_keys_of_a_faults_file_and_what_is_counted() -> None:
    page = _coded(_page("reference/faults.md"))
    assert {field.name for field in fields(FaultPlan)} - {"drains", "outages"} <= page
    assert {"schema", "drains[]", "outages[]", *(field.name for field in fields(Window))} <= page
    assert {field.name for field in fields(FaultCounts)} <= page
    text = _page("reference/faults.md")
    for number in (FRUITLESS_ATTEMPTS_MAX, IDLE_FAULTS_MIN, IDLE_FAULTS_PER_SERVER):
        assert f"{number:,}" in text


def test_job_keys() -> None:
    assert set(JobBody.model_fields) | set(PlanBody.model_fields) <= _coded(_page("reference/job.md"))


def test_result_keys_and_columns() -> None:
    page = _coded(_page("reference/results.md"))
    assert {field.name for field in fields(Result)} <= page
    assert set(JOB_COLUMNS) <= page


@pytest.mark.parametrize("mode", LaunchMode)
def test_variables_of_a_training_program(mode: LaunchMode, tmp_path: Path) -> None:
    environ, url = {"PATH": "/bin", "SECRET": "no"}, "http://127.0.0.1/{attempt}"
    site = Site(tmp_path, environ, 1.0, 1, 1.0, url, None, tmp_path, None)
    spread = TrainingPlan(data=2, global_batch=2)
    spec = JobSpec("a", "u", 2, command=("true",), launch=mode, array=ArrayPlace(3, 5, JobId(1)), plan=spread)
    placement = place([ServerShare(ServerIndex(0), 2)])
    launch = Launch(attempt_id(JobId(1), 1), JobId(1), 1, spec, placement, ((0, 1),), 0)
    plan = build_plan(launch, site, Identity.of(b"key", launch.attempt), 29500, 0.0)
    given = {*plan["env"], *(name for rank in plan["ranks"] for name in rank)} - set(allowed_environment(site.environ))
    page = _coded(_page("how-to/training-program.md"))
    assert given - page == set()
    assert {name for name in given if name.startswith(ENV_PREFIX)} <= PROGRAM_VARIABLES
    written = {
        name for name in page if re.fullmatch(r"SOONER_[A-Z_]+|[A-Z]+_RANK|RANK|NNODES|WORLD_SIZE|MASTER_[A-Z]+", name)
    }
    if mode is LaunchMode.GPU:
        assert written - given == set(), "the page promises a variable that nobody sets"


def test_files_of_the_data_folder() -> None:
    page = _page("reference/data-folder.md")
    constants = {value for name, value in vars(attempt_files).items() if name.isupper() and isinstance(value, str)}
    named = {value for value in constants if re.fullmatch(r"[a-z]+(?:\.jsonl?)?", value)}
    assert {"lock", "exit.json", "progress.jsonl"} <= named
    assert {name for name in named if name not in page} == set()


def test_every_schema_of_a_document_is_listed() -> None:
    listed = _coded(_page("reference/json.md"))
    sources = [path for package in ("service", "predictor") for path in (ROOT / package).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r'"(sooner\.[a-z_.]+/[0-9]+)"', path.read_text("utf-8"))}
    # A table with a name prints its rows as the document of that name (service.cli.output.Table.answer).
    for path in (ROOT / "service/cli").glob("*.py"):
        used |= {
            f"sooner.{name}/1" for name in re.findall(r'^    name="([a-z_]+)",$', path.read_text("utf-8"), re.MULTILINE)
        }
    assert len(used) > 15
    assert used == {name for name in listed if re.fullmatch(r"sooner\.[a-z_.]+/[0-9]+", name)}


def test_commands_that_print_documents_exist() -> None:
    known = {command.words.removeprefix("sooner ") for command in cli.commands()}
    rows = [line.split("|") for line in _page("reference/json.md").splitlines() if line.startswith("| `sooner.")]
    named = {name.partition(" --")[0] for row in rows for name in re.findall(r"`([^`]+)`", row[2])}
    assert named <= known
    with_json = {
        command.words.removeprefix("sooner ")
        for command in cli.commands()
        if any("--json" in parameter.names for parameter in command.parameters)
    }
    assert with_json <= named, "a command prints a document that the page does not list"


def test_predictors_of_a_simulation() -> None:
    page = _page("explanation/estimates-and-ranks.md")
    for name in ("oracle", "noisy:0.5", "adversarial", "none", "trained"):
        try:
            make_predictor(name, [], 0)
        except PredictorNameError:
            assert f"`{name}`" not in page, f"{name} is documented and does not exist"
        else:
            assert f"`{name.partition(':')[0]}" in page, f"{name} exists and is not documented"


def test_numbers_that_pages_repeat() -> None:
    prediction, models = _page("explanation/prediction.md"), _page("how-to/models.md")
    assert f"from {USER_PROGRAMS_MIN} programs on" in prediction
    assert f"from {CLUSTER_JOBS_TRUSTED} on" in prediction
    assert f"most {training.PINBALL_RATIO_MAX} of" in prediction
    assert f"{training.COVERAGE_MIN:.0%}"[:-1] in prediction
    assert f"{training.COVERAGE_MAX:.0%}" in prediction
    assert f"when {Settings.model_fields['retrain_jobs_min'].default} jobs have ended" in models


def test_limits_of_the_memory_of_a_plan() -> None:
    page = " ".join(_page("explanation/training-memory.md").split())
    assert f"{memory.ALLOWANCE_BYTES / 2**30:.0f} GiB for CUDA" in page
    assert f"and {memory.FRAGMENTATION:.0%} of the activations" in page
    assert f"by more than {nearest.TOLERANCE - 1:.0%}:" in page
    assert f"at most {ranking.PLANS_MAX:,} of those that fit" in page
    assert f"at least {plans.CONTEXT_TOKENS_MIN:,} tokens" in page


def test_limits_of_a_shadow_policy() -> None:
    page = " ".join(_page("how-to/shadow-policy.md").split())
    told = {
        "pauses for a minute": shadow.PAUSE_S == 60.0,
        "twenty times as long": shadow.REBUILD_BUDGETS == 20.0,
        "five such decisions within an hour": (shadow.OVERRUNS_MAX, shadow.OVERRUN_WINDOW_S) == (5, 3600.0),
        "every five minutes": SHADOW_SAVED_S == 300.0,
    }
    assert {words for words in told if words not in page} == set()
    assert all(told.values())


def test_defaults_of_a_server() -> None:
    page = _page("reference/cluster.md")
    server = Server("a", 1)
    assert f"| `servers[].nic_gbps` | {server.nic_bytes_s * 8 / 1e9:g} |" in page
    assert f"| `servers[].intra_gbps` | {server.intra_bytes_s * 8 / 1e9:g} |" in page
    assert f"| `servers[].gpu_type` | `{server.gpu_type}` |" in page
    assert f"| `servers[].rack` | `{server.rack}` |" in page


def test_lines_that_end_a_start_are_the_programs_own() -> None:
    section = _page("how-to/troubleshoot.md").partition("## The service does not start")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quoted) >= 7
    sources = "".join(
        path.read_text(encoding="utf-8") for folder in ("service", "policies") for path in (ROOT / folder).rglob("*.py")
    )
    for line in quoted:
        for part in (part.strip() for part in line.split("...")):
            assert part in sources, f"nobody says {part!r}"


def test_reasons_that_the_guide_explains_exist() -> None:
    section = _page("how-to/troubleshoot.md").partition("## My job waits")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert len(named) >= 8
    assert named <= {reason.value for reason in Reason}


def test_the_changelog_gives_the_daily_limit_of_preemptions_that_the_defaults_have() -> None:
    defaults = Options()
    limit = int(defaults.restarts_free + 86_400 / defaults.restarted_attempt_s_min + 1)
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(\d+) (?:times in 24 hours|preemptions of a job)", text)) == {str(limit)}
