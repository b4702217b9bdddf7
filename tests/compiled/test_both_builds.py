"""The compiled modules against plain Python: what runs, and the same bytes of both."""

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from compilation.modules import modules
from policies.model.cluster import Cluster, Server
from policies.model.job import JobSpec, Level, Topology
from policies.model.view import ClusterView, JobView
from policies.options import GUARD_OPTIONS, PLACEMENT_OPTIONS, Options
from policies.rank import Rank
from policies.ranked import RankedPolicy
from policies.registry import BUILT_IN, PolicyFactory, make_policy
from policies.state.scheduler_state import SchedulerState
from service.runtime.compiled import compiled
from service.sim.experiment import run
from service.sim.workloads.generate import generate, make_families
from tests.compiled.run import PURE

pytestmark = pytest.mark.skipif(PURE not in os.environ, reason="make test-compiled builds what is tested here")

CLUSTER = "schema: sooner.cluster/1\nservers: [{count: 3, gpus: 8, nic_gbps: 25}, {count: 2, gpus: 4, nic_gbps: 25}]\n"
FAULTS = ("--mtbf-s", "40000", "--mttr-s", "900", "--crash-mtbf-s", "60000", "--drain", "s0002:1000:20000")
COSTS = ("--checkpoint-s", "10", "--launch-latency-s", "3", "--stop-latency-s", "2")


class LargestFirst(RankedPolicy):
    """A plug-in in plain Python, which derives from a compiled class."""

    name = "largest_first"
    option_names = PLACEMENT_OPTIONS | GUARD_OPTIONS

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.asked = 0

    def rank(self, view: ClusterView, job: JobView, state: SchedulerState) -> Rank:
        self.asked += 1
        return Rank(-float(job.spec.gpus), 0)


def sooner(arguments: list[str], *, pure: bool) -> str:
    """What the command prints in one of the builds."""
    environ = {**os.environ, **({"PYTHONPATH": os.environ[PURE]} if pure else {})}
    command = [sys.executable, "-P", "-c", "from service.cli.main import main; main()", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A workload with networks and one without, of 150 jobs each, and their cluster."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "cluster.yaml").write_text(CLUSTER)
    found = {"cluster": str(folder / "cluster.yaml")}
    for name, more in (("networks", []), ("alone", ["--no-communication"])):
        found[name] = str(folder / f"{name}.csv")
        shape = ["--jobs", "150", "--seed", "5", "--gpus", "32", "--load", "1.1", *more, "--out", found[name]]
        sooner(["workload", "generate", *shape], pure=True)
    return found


def test_what_runs_is_compiled_and_says_so() -> None:
    assert compiled()
    assert sooner(["--version"], pure=False).endswith("(compiled)\n")
    assert sooner(["--version"], pure=True).endswith("(pure Python)\n")


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("networks", ["--network", "contended", "--predictor", "noisy:0.5"]),
        ("alone", [*FAULTS, *COSTS, "--predictor", "noisy:1"]),
    ],
)
def test_both_write_the_same_bytes(
    files: dict[str, str], tmp_path: Path, policy: str, workload: str, options: list[str]
) -> None:
    told: list[tuple[Any, dict[str, bytes]]] = []
    for pure in (True, False):
        out = tmp_path / str(pure)
        where = ["--workload", files[workload], "--cluster", files["cluster"], "--out", str(out)]
        document = json.loads(sooner(["sim", "run", *where, "--policy", policy, *options, "--json"], pure=pure))
        del document["wall_s"]
        told.append((document, {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".csv"}))
    assert told[0][1]["jobs.csv"].count(b"\n") == 151
    assert told[0] == told[1]


HINTS = """
import dataclasses, importlib, sys, typing
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__module__ == name and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
            print(kind.__name__, {field: str(hint) for field, hint in typing.get_type_hints(kind).items()})
"""


def test_fields_have_the_same_types_in_both(tmp_path: Path) -> None:
    names = [name.removesuffix(".py").replace("/", ".") for name in modules(Path(os.environ[PURE]))]
    told = []
    for path in (os.environ[PURE], os.environ["PYTHONPATH"]):
        command = [sys.executable, "-P", "-c", HINTS, *names]
        environ = {**os.environ, "PYTHONPATH": path}
        told.append(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)
    # A compiled module cannot tell a NewType where it is.
    places = [text.replace("importlib._bootstrap.", "").replace("policies.model.ids.", "") for text in told]
    assert places[0].count("\n") > 100
    assert sorted(places[0].splitlines()) == sorted(places[1].splitlines())


def test_a_policy_in_plain_python_derives_from_a_compiled_one() -> None:
    cluster = Cluster("test", (Server("a", 8), Server("b", 8)))
    workload = generate(0, 100, make_families(0, 10, 3), gpus=16, load=0.7)
    mine = run(workload, cluster, PolicyFactory(LargestFirst)({})).result
    assert mine.finished == 100
    assert mine != run(workload, cluster, make_policy("sjf")).result


def test_a_pickle_of_such_a_policy_holds_what_it_adds() -> None:
    policy = LargestFirst(Options(eta=0.5))
    policy.asked = 7
    twin = pickle.loads(pickle.dumps(policy))
    assert (twin.asked, twin.options) == (7, Options(eta=0.5))


def test_values_are_copied_and_pickled() -> None:
    spec = JobSpec("a", "b", 4, topology=Topology(Level.RACK), env={"A": "1"})
    for twin in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), replace(spec)):
        assert twin == spec
        assert twin.env == {"A": "1"}


def test_pydantic_makes_and_reads_values() -> None:
    values = TypeAdapter(JobSpec)
    spec = values.validate_python(
        {"name": "a", "user": "b", "gpus": 2, "topology": {"level": "rack"}, "command": ["x"]}
    )
    assert spec == JobSpec("a", "b", 2, topology=Topology(Level.RACK), command=("x",))
    assert values.dump_python(spec)["topology"] == {"level": Level.RACK, "required": True}
