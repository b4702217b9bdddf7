"""What the project promises to installers: names that are its own, a lock that says everything, honest dependencies."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.cli.guard import IMPORT_NAMES, claimed, conflict, shadowed, top_level_names
from tests.packaging.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements-dev.lock", ROOT / "requirements-ray.lock"]
MODELS = ROOT / "requirements-torch.lock"
"""Of an environment without Sooner: see tests/engines/torch_program.py."""


def _locked(path: Path) -> dict[str, list[str]]:
    """Requirement line -> its hashes."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", path.read_text().strip()):
        head, *rest = block.replace("\\\n", "\n").splitlines()
        found[head.strip()] = re.findall(r"--hash=(\S+)", "\n".join(rest))
    return found


@pytest.mark.parametrize("lock", [*LOCKS, MODELS], ids=lambda path: path.name)
def test_every_line_of_the_lock_is_one_version_with_hashes(lock: Path) -> None:
    locked = _locked(lock)
    assert len(locked) > 30
    for line, hashes in locked.items():
        requirement = Requirement(line)
        assert [clause.operator for clause in requirement.specifier] == ["=="], line
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), line


@pytest.mark.parametrize("lock", [*LOCKS, MODELS], ids=lambda path: path.name)
def test_the_lock_names_no_index_and_no_url(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"://|--index|--extra|--find|--trusted|^-[a-z]|@ ", text, re.MULTILINE)


@pytest.mark.parametrize(("lock", "extras"), [(LOCKS[0], ["build"]), (LOCKS[1], ["dev"]), (LOCKS[2], ["build", "ray"])])
def test_the_lock_answers_every_requirement_of_the_project(lock: Path, extras: list[str]) -> None:
    pinned: dict[str, list[Requirement]] = {}
    for line in _locked(lock):
        pinned.setdefault(canonicalize_name(Requirement(line).name), []).append(Requirement(line))
    wanted = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    for requirement in map(Requirement, wanted):
        answers = pinned.get(canonicalize_name(requirement.name), [])
        versions = [clause.version for answer in answers for clause in answer.specifier]
        assert any(requirement.specifier.contains(version) for version in versions), requirement


def test_installing_the_lock_with_ray_changes_no_version_of_the_others() -> None:
    """`make test-engines` installs it beside the lock to develop."""
    versions = [
        {
            (requirement.name, str(requirement.marker)): requirement.specifier
            for requirement in map(Requirement, _locked(lock))
        }
        for lock in LOCKS
    ]
    plain, dev, ray = versions
    assert plain.items() <= ray.items()
    assert all(dev[key] == specifier for key, specifier in ray.items() if key in dev)


def test_xgboost_comes_without_cuda_but_on_macos() -> None:
    for lock in LOCKS:
        requirements = {Requirement(line).name: Requirement(line).marker for line in _locked(lock)}
        assert not [name for name in requirements if name.startswith("nvidia-") and name != "nvidia-ml-py"]
        cpu, plain = requirements["xgboost-cpu"], requirements["xgboost"]
        assert cpu is not None
        assert plain is not None
        for platform in ("linux", "win32", "darwin"):
            environment = {"sys_platform": platform}
            assert (cpu.evaluate(environment), plain.evaluate(environment)) == (
                platform != "darwin",
                platform == "darwin",
            )


def _imports(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - set(IMPORT_NAMES)


def _owners() -> Callable[[str], set[str]]:
    """The distributions of an import name. An optional one that is not installed has the name of its distribution."""
    owners = packages_distributions()
    return lambda name: {canonicalize_name(owner) for owner in owners.get(name, [name])}


def test_everything_that_is_imported_is_declared() -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    extras = [lines for extra, lines in PROJECT["optional-dependencies"].items() if extra not in ("build", "dev")]
    optional = {canonicalize_name(Requirement(line).name) for lines in extras for line in lines}
    owners = _owners()
    for name in set().union(*(_imports(ROOT / package) for package in IMPORT_NAMES)):
        assert owners(name) & (declared | optional), name


def test_everything_that_is_declared_is_imported() -> None:
    # scikit-learn and xgboost need scipy and leave its version open; uvicorn takes the others where they are there.
    needed_by_others = {"scipy", "httptools", "uvloop"}
    imported = set().union(*(_imports(ROOT / package) for package in IMPORT_NAMES))
    used = set().union(*map(_owners(), imported))
    for requirement in map(Requirement, PROJECT["dependencies"]):
        if requirement.marker is None or requirement.marker.evaluate():
            assert canonicalize_name(requirement.name) in used | needed_by_others, requirement


def test_nobody_else_here_owns_our_import_names() -> None:
    assert conflict() is None
    for distribution in distributions():
        if canonicalize_name(distribution.metadata["Name"]) != "sooner":
            assert not top_level_names(distribution) & set(IMPORT_NAMES), distribution.metadata["Name"]
    assert set(packages_distributions().get("service", ["sooner"])) <= {"sooner"}


def test_the_guard_names_what_is_in_the_way(tmp_path: Path) -> None:
    ours = {name: tmp_path / name for name in IMPORT_NAMES}
    assert shadowed(ours, tmp_path) is None
    line = shadowed({**ours, "predictor": tmp_path / "other" / "predictor"}, tmp_path)
    assert line is not None
    assert "'predictor'" in line
    assert str(tmp_path / "other" / "predictor") in line
    assert "is not found" in (shadowed({**ours, "service": None}, tmp_path) or "")
    assert claimed({"sooner": list(IMPORT_NAMES), "numpy": []}) is None
    assert "'rival'" in (claimed({"rival": ["policies"]}) or "")


def test_extras_that_messages_and_pages_name_exist() -> None:
    files = [path for package in IMPORT_NAMES for path in (ROOT / package).rglob("*.py")]
    files += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {name for path in files for name in re.findall(r"\bsooner\[(\w+)\]", path.read_text(encoding="utf-8"))}
    assert named
    assert named <= set(PROJECT["optional-dependencies"])
