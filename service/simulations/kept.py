"""Finished runs on disk: which ones a command takes over from an earlier one, and how they are written.

Beside the files of a run, ``run.json`` holds its key and what a comparison needs of it. The key is a digest of all that a run
depends on: the jobs, the servers, the options, the seed, the policy with its options, the predictor, and the code. ``run.json``
is removed before the files of a run are replaced and written after them, each in one step, so it never describes other files.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from policies.model.reasons import Reason
from policies.registry import BUILT_IN, ENTRY_POINT_GROUP
from service.sim.faults import FaultCounts
from service.sim.results import RESULT_SCHEMA, Result, Simulation, Unfinished, write_simulation
from service.simulations.runs import Finished, Plan, Setting, seed_of

if TYPE_CHECKING:
    from service.reports.comparison_data import RunFigures

SCHEMA: Final = "sooner.sim.run/1"
RECORD: Final = "run.json"
PARTIAL: Final = ".partial"
"""The folder in which files are written before they get their names."""

_CODE: Final = (
    "policies",
    "predictor",
    "service.domain",
    "service.engine",
    "service.reports",
    "service.sim",
    "service.simulations",
)
_LIBRARIES: Final = ("numpy", "scipy", "scikit-learn", "quantile-forest", "xgboost-cpu", "xgboost")
"""Libraries whose numbers enter results, of the predictor ``trained`` and of contended networks."""


class InUse(Exception):
    """Another command writes into the folder."""


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no two commands write into it, and leave no half-written file there. Raises InUse and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            # Forked workers hold it too, until the last of them has ended.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse from error
        except OSError:
            pass  # a file system without locks
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    finally:
        os.close(descriptor)


def keys_of(setting: Setting, plans: Sequence[Plan]) -> list[str]:
    """The key of each run. O(jobs), about a hundredth of the time of a run."""
    assert setting.prepared is None, "jobs that no table describes"
    shared = hashlib.sha256(_code().encode())
    workload = setting.workload
    for part in (workload.name, len(workload.skipped), setting.cluster):
        shared.update(f"{part!r}\n".encode())
    for job in workload.jobs:
        shared.update(f"{job!r}\n".encode())
    keys = []
    for plan in plans:
        assert plan.jobs is None, "jobs that no table describes"
        options = replace(setting.options, seed=seed_of(setting, plan), keep_spans=False)
        own = (plan.label, plan.policy, sorted(plan.options.items()), _plugged(plan.policy), plan.predictor, options)
        digest = shared.copy()
        digest.update(repr(own).encode())
        keys.append(digest.hexdigest())
    return keys


def _code() -> str:
    """The version of everything that computes."""
    versions = []
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return " ".join([platform.python_version(), *versions, *map(_sources, _CODE)])


def _plugged(policy: str) -> str:
    """The version of a policy of another distribution; "" for one of ours."""
    if policy in BUILT_IN:
        return ""
    return " ".join(
        _sources(point.module.partition(".")[0]) for point in entry_points(group=ENTRY_POINT_GROUP, name=policy)
    )


def _sources(package: str) -> str:
    """The digest of a package's or module's files, compiled ones too."""
    digest = hashlib.sha256()
    spec = find_spec(package)
    if spec is not None:
        roots = [Path(place) for place in spec.submodule_search_locations or ()]
        files = [(file.relative_to(root), file) for root in roots for file in root.rglob("*")]
        if not files and spec.origin is not None:
            files = [(Path(package), Path(spec.origin))]
        for name, file in sorted(files):
            if file.suffix in (".py", ".so", ".pyd"):
                digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def read_kept(folder: Path, key: str, *, draw: bool) -> Finished | None:
    """The run in this folder, if it is the one of this key, and has the figures of a report where these are wanted."""
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA or document["key"] != key or not _complete(folder):
            return None
        found = _read(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.figures is not None or not draw else None


def _complete(folder: Path) -> bool:
    return all((folder / name).exists() for name in ("result.json", "jobs.csv", "batsim_jobs.csv"))


def write_kept(
    finished: Finished, simulation: Simulation, plan: Plan, key: str, workload_name: str, root: Path
) -> None:
    """Write the files of the run into ``plan.folder``, each in one step. ``root``: folder of the command. Raises OSError."""
    folder = plan.folder
    assert folder is not None
    scratch = root / PARTIAL / key
    write_simulation(simulation, scratch, workload_name)
    record = scratch / RECORD
    record.write_text(json.dumps(_document(finished, plan, key), allow_nan=True) + "\n", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    for file in sorted(scratch.iterdir(), key=lambda each: each.name == RECORD):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        file.replace(folder / file.name)
    scratch.rmdir()


def write_unkept(simulation: Simulation, folder: Path, workload_name: str) -> None:
    """Write the files of a run that no command takes over. Raises OSError."""
    (folder / RECORD).unlink(missing_ok=True)
    write_simulation(simulation, folder, workload_name)


def _document(finished: Finished, plan: Plan, key: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "key": key,
        "policy": plan.policy,
        "options": dict(plan.options),
        "result": finished.result.to_dict(),
        "unfinished": [asdict(each) for each in finished.unfinished],
        "faults": None if finished.faults is None else asdict(finished.faults),
        "figures": None if finished.figures is None else {**asdict(finished.figures), "result": None},
    }


def _read(document: Mapping[str, Any]) -> Finished:
    values = dict(document["result"])
    if values.pop("schema") != RESULT_SCHEMA:
        raise ValueError("another schema")
    result = Result(**values)
    unfinished = [Unfinished(each["job_id"], Reason(each["reason"])) for each in document["unfinished"]]
    faults, drawn = document["faults"], document["figures"]
    return Finished(
        result,
        None if drawn is None else _figures(result, drawn),
        unfinished,
        None if faults is None else FaultCounts(**faults),
    )


def _figures(result: Result, drawn: Mapping[str, Any]) -> "RunFigures":
    from service.reports.comparison_data import Bar, Curve, Group, Parts, RunFigures

    def read(name: str, value: Any) -> Any:
        if name in ("jct_cdf", "slowdown_cdf", "busy", "queue"):
            return Curve(tuple(value["xs"]), tuple(value["ys"]))
        if name.startswith("by_"):
            return tuple(Group(**each) for each in value)
        if name == "parts":
            return Parts(**value)
        if name == "bars":
            return tuple(Bar(**each) for each in value)
        return tuple(value) if name == "window_s" else value

    values = {each.name: read(each.name, drawn[each.name]) for each in fields(RunFigures) if each.name != "result"}
    return RunFigures(result=result, **values)
