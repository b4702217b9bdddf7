"""Training in a separate process: ``python -m predictor.train_process --input rows.jsonl[.gz] --out DIR --seed N``.

Input: JSON lines in any order. The first line is ``{"schema": "sooner.ended-jobs/1"}``; each further line is an
ended job: ``job``, ``gpus``, ``submitted_at_s``, ``ended_at_s``, ``service_s`` and, where known, ``user``, ``project``, ``name``,
``iterations``, ``final_state``, ``declared_iterations``, ``walltime_s``, ``model``, ``batch_size``, ``stages``,
``parameter_bytes``, ``gpu_type``, ``seconds_per_iteration``, ``ran_on_gpu_type``, ``servers_spanned``,
``reported_iterations``. Times are seconds since the Unix epoch, UTC. The 200,000 newest ended jobs are the history, the 40,000
newest of them the training set.

Output: the model folder of :mod:`predictor.artifacts`, written atomically. Standard output gets one JSON line:
``{"version", "sha256", "promotable"}``. ``--sheet FILE`` writes what would have been served for the newest tested jobs, for
a replay (:mod:`predictor.replay_sheet`); with ``--champion DIR`` also those of the model that serves.

Exit codes: 0 trained (whether or not a model passed the gate), 2 wrong usage or input, 3 too few jobs; 1 is that of an unforeseen
error. The caller sets the time, processor and memory limits; killing the process at any time leaves no partial folder.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from policies.model.estimate import Unit
from predictor import artifacts, replay_sheet
from predictor.artifacts import ModelVersion, model_version
from predictor.errors import ArtifactError, TrainingError
from predictor.prequential import HeadTest
from predictor.rows import RowError, newest_by_submission, read_jsonl
from predictor.training import TrainedModel, train

EXIT_TOO_FEW: Final = 3
"""Not 1, with which Python ends a program after an exception."""

HISTORY_ROWS_MAX: Final = 200_000
"""Bounds the memory of a training (about 200 MB). Older jobs are no longer among the newest 20 of their groups."""

SHEET_JOBS: Final = 2_000
"""At most as many as the gate tests per head."""


def load_result(folder: Path) -> ModelVersion:
    """The record of what a training process left in ``folder``, verified. Raises :class:`predictor.errors.ArtifactError`."""
    return model_version(artifacts.load(folder), folder, artifacts.sha256_of(folder / artifacts.MANIFEST))


def _champion(folder: Path | None, sha256: str | None) -> TrainedModel | None:
    """The model that serves; None where it can no longer be loaded: then it is left out of the comparison."""
    if folder is None:
        return None
    try:
        return artifacts.load(folder, manifest_sha256=sha256)
    except ArtifactError as error:
        print(f"--champion: {error}", file=sys.stderr)
        return None


def main(arguments: list[str] | None = None) -> int:
    """Run one training; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m predictor.train_process", description="Train from ended jobs.")
    parser.add_argument("--input", type=Path, required=True, help="JSON lines of ended jobs (.gz allowed)")
    parser.add_argument("--out", type=Path, required=True, help="folder to create; must not exist or be empty")
    parser.add_argument("--seed", type=int, default=0, help="seed of every random choice (default 0)")
    parser.add_argument(
        "--sheet", type=Path, help="file to create: predictions for the tested jobs, with and without models"
    )
    parser.add_argument("--sheet-jobs", type=int, default=SHEET_JOBS, help="newest tested jobs in it")
    parser.add_argument("--champion", type=Path, help="folder of the model that serves now")
    parser.add_argument("--champion-sha256", help="the registry's record of that folder")
    options = parser.parse_args(arguments)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        print(f"--out {options.out}: exists and is not an empty folder", file=sys.stderr)
        return 2
    tested: dict[Unit, HeadTest] = {}

    def keep(unit: Unit, test: HeadTest) -> None:
        tested[unit] = test

    try:
        rows = newest_by_submission(read_jsonl(options.input), HISTORY_ROWS_MAX)
        model = train(rows, seed=options.seed, on_tested=keep if options.sheet else None)
    except (RowError, OSError) as error:
        print(f"--input: {error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(error, file=sys.stderr)
        return EXIT_TOO_FEW
    if options.sheet:
        champion = _champion(options.champion, options.champion_sha256)
        replay_sheet.write_sheet(options.sheet, tested, champion, options.sheet_jobs)
    digest = artifacts.save(model, options.out)
    result = {"version": model.version, "sha256": digest, "promotable": model.promotable}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
