"""The share of a machine's cores that a rank has."""

from __future__ import annotations

import os

import pytest

from sgp_runner.utils.cores import asked_cores, share_of_cores
from sgp_runner.utils.errors import ConfigError

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
}


@pytest.mark.parametrize(
    ("environment", "usable", "cores"),
    [
        ({}, 64, 64),
        (TORCHRUN, 64, 8),
        (TORCHRUN, 32, 4),  # a part of the machine, for all ranks
        (TORCHRUN, 4, 1),
        (SRUN, 64, 8),
        (SRUN, 12, 12),  # bound to its cores
    ],
)
def test_ranks_share_the_cores_to_which_they_are_not_bound(
    environment: dict[str, str], usable: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*TORCHRUN, *SRUN):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(usable)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert share_of_cores() == cores


@pytest.mark.parametrize(("value", "cores"), [("", None), ("4", 4), ("3,2", 3)])
def test_asked_cores(value: str, cores: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert asked_cores() == cores


@pytest.mark.parametrize(
    ("value", "sentence"), [("all", "'all' is not a whole number."), ("0", "0 must be at least 1.")]
)
def test_cores_that_cannot_be_are_refused(
    value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match=f"^OMP_NUM_THREADS: {sentence}"):
        asked_cores()
