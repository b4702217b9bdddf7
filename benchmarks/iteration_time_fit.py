"""Fits the constants of the iteration time on a table of published throughputs, and validates them on rows left out.

python -m benchmarks.iteration_time_fit --table open.csv --models models.csv --gpus gpus.csv [--cross-validate]

Least squares of the relative errors with a soft loss, and a pull of each constant to a usual value (PRIOR). Cross-validation
leaves out whole models, GPUs, releases, or tenths of the pairs of model and GPU.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.iteration_time import add_tables, summary
from benchmarks.throughput_table import Measured, load
from policies.training.constants import Constants
from policies.training.iteration import Rates, parts, rates
from policies.training.work import Work, work

Numbers = NDArray[np.float64]
Kind = TypeVar("Kind", Work, Rates)

PRIOR = Constants(
    product_volta=0.65, product_ampere=0.72, product_hopper=0.65, product_blackwell=0.6, product_blackwell_ultra=0.68,
    fp32=0.95, fp4=0.75, convolution=0.6, attention=0.6, experts=0.6, experts_hopper=0.6, expert_width=1500.0,
    fp8_experts=0.7, graphed_experts=1.3, memory=0.8, dense_launch_s=0.0005, expert_launch_s=0.0025, held_launch_s=0.0003,
    tensor_exposed=0.6, expert_inside_exposed=0.6, expert_beyond_exposed=0.5, context_exposed=0.7, stage_exposed=0.3,
    data_exposed=0.3,
)  # fmt: skip
"""Usual values: what large products reach in the makers' libraries, and what overlapping launchers leave exposed."""

PRIOR_WEIGHT = 1.5
"""Of a constant that is e times its usual value, in units of a row that is wrong by all of its speed."""

SOFT_ERROR = 0.1
"""Errors above this count linearly, not squared: releases of one configuration differ by more."""

UNBOUNDED = ("expert_width", "dense_launch_s", "expert_launch_s", "held_launch_s", "graphed_experts")
NAMES = [field.name for field in fields(Constants)]


@dataclass(frozen=True)
class Rows:
    """Measured rows with their work, an array element for each."""

    measured: list[Measured]
    work: Work
    iteration_s: Numbers

    @classmethod
    def of(cls, measured: list[Measured]) -> "Rows":
        counted = [work(row.shape, row.plan, row.links) for row in measured]
        return cls(measured, _stacked(Work, counted), np.array([row.iteration_s for row in measured]))

    def errors(self, constants: Constants) -> Numbers:
        """Predicted over measured speed, less one."""
        reached = [rates(row.shape, row.plan, row.gpu, constants) for row in self.measured]
        found = parts(self.work, _stacked(Rates, reached), constants)
        return self.iteration_s / sum(found.values()) - 1


def _stacked(kind: type[Kind], values: Sequence[Kind]) -> Kind:
    columns: dict[str, Any] = {
        field.name: np.array([getattr(value, field.name) for value in values], float) for field in fields(kind)
    }
    return kind(**columns)


def fit(rows: Rows) -> Constants:
    """The constants that predict the rows best."""
    prior = np.log([getattr(PRIOR, name) for name in NAMES])
    most = np.array([np.inf if name in UNBOUNDED else 1e-9 for name in NAMES])

    def constants(values: Numbers) -> Constants:
        return Constants(**dict(zip(NAMES, np.exp(values).tolist(), strict=True)))

    def misses(values: Numbers) -> Numbers:
        return np.concatenate([rows.errors(constants(values)), PRIOR_WEIGHT * (values - prior)])

    found = least_squares(misses, prior, loss="soft_l1", f_scale=SOFT_ERROR, bounds=(-np.inf, most), max_nfev=100)
    return constants(found.x)


GROUPS: dict[str, Callable[[Measured], str]] = {
    "model": lambda row: row.row["model"],
    "gpu": lambda row: row.row["gpu"],
    "release": lambda row: row.row["release"],
    "source": lambda row: row.row["source"],
    "tenths": lambda row: str(sum(map(ord, row.row["model"] + row.row["gpu"])) % 10),
}
"""What is left out together. ``tenths``: of the pairs of model and GPU."""


def cross_validated(rows: Sequence[Measured], group: Callable[[Measured], str]) -> list[float]:
    """The error of each row, predicted with constants that were fitted without its group."""
    errors = np.zeros(len(rows))
    for name in sorted({group(row) for row in rows}):
        left_out = np.array([group(row) == name for row in rows])
        constants = fit(Rows.of([row for row, out in zip(rows, left_out, strict=True) if not out]))
        errors[left_out] = Rows.of([row for row, out in zip(rows, left_out, strict=True) if out]).errors(constants)
    return [float(abs(value)) for value in errors]


def main(arguments: Sequence[str] | None = None, write: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tables(parser)
    parser.add_argument("--cross-validate", action="store_true", help="leave out whole groups of rows; takes a minute")
    chosen = parser.parse_args(arguments)
    rows, _ = load(chosen.table, chosen.models, chosen.gpus)
    constants = fit(Rows.of(rows))
    for name, value in asdict(constants).items():
        write(f"    {name}: float = {value:.3g}")
    errors = [float(abs(value)) for value in Rows.of(rows).errors(constants)]
    write(f"fitted on all rows: {summary(rows, errors)}")
    for name, group in GROUPS.items() if chosen.cross_validate else ():
        write(f"without the row's {name}: {summary(rows, cross_validated(rows, group))}")


if __name__ == "__main__":
    main()
