"""The twelve published times of the SlowMo paper, each also predicted by a fit without it.

Each of the four constants of ``slowmo_ethernet`` and ``slowmo_ethernet_in_memory`` is fitted to one
row. If this row is left out, the constant is fitted to the row of the same algorithm with SlowMo
instead. No constant of the profiles is fitted to the eight other rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.report.read.published import published
from validation.cells import Cell, simulated

STEPS = 480  # whole periods of SlowMo, 48 steps


def cells() -> list[Cell]:
    """Return a cell for each row with a published time, in seconds per iteration."""
    return [cell_of(row) for row in published() if is_timed(row)]


def is_timed(row: str) -> bool:
    return row.startswith("slowmo_") and "ms_per_iteration" in published()[row]


def cell_of(row: str) -> Cell:
    run = run_of(row)
    fitted = row in run.cluster.validated.fitted_on
    left_out = simulated_row(row, refitted(row, run)) if fitted else None
    return Cell((row,), real(row), simulated_row(row), fitted, left_out)


def real(row: str) -> float:
    return published()[row]["ms_per_iteration"].value / 1000


def simulated_row(row: str, *words: str) -> float:
    study = (f"experiment={row}", "model=timing_only", f"model.sample_steps={STEPS}")
    return simulated(*study, f"log_every={STEPS}", *words)


def run_of(row: str) -> Run:
    return experiment_of([f"experiment={row}", "model=timing_only"]).run


def refitted(row: str, run: Run) -> str:
    """Return the setting of the constant fitted to ``row``, refitted to the row with SlowMo."""
    twin = f"{row}_slowmo"
    late = real(twin) - simulated_row(twin)
    cluster, model = run.cluster, run.timed_as.model
    bits = 32 * (run.timed_as.num_parameters or 0)
    gradient = (
        f"compute.step_seconds.{model}",
        cluster.compute.step_seconds[str(model)] + late,
    )
    constants: Mapping[str, tuple[str, float]] = {
        "slowmo_imagenet_osgp": gradient,
        "slowmo_wmt16_local_adam": gradient,
        "slowmo_imagenet_sgp": ("compute.input_seconds", cluster.compute.input_seconds - late),
        "slowmo_wmt16_sgp": ("links.bandwidth", bits / (bits / cluster.links.rate + late)),
    }
    key, value = constants[row]
    return f"cluster.{key}={value}"
