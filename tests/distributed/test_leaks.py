"""One process that makes several runs holds no more after the fifth than after the first."""

from __future__ import annotations

import resource
from functools import partial
from pathlib import Path

import pytest
import torch

import sgp_runner
from benchmarks.processes import RUN, repeat
from benchmarks.ranks import Ranks, in_process, rank_of_run
from sgp_runner.utils.errors import Diverged

MB = 2**20


def simulate(results: str) -> None:
    """A run that ends well, and one that diverges."""
    sgp_runner.run(*RUN, f"results={results}", nodes=4, verbose=False)
    with pytest.raises(Diverged):
        sgp_runner.run(*RUN, "optim.lr=1e30", f"results={results}", nodes=4, verbose=False)


def average(algo: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1000, 1000)
    averager = sgp_runner.Averager(
        algo, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    for _ in range(2):
        model(torch.ones(2, 1000)).square().mean().backward()
        averager.step()
    averager.finish()


def average_in_group(algo: str, files: int, times: int) -> list[dict[str, int]]:
    """Repeat averagers in the process group of a script that may open this many files."""
    torch.distributed.init_process_group("gloo")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, limits[1]))
    try:
        return repeat(partial(average, algo), times)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        torch.distributed.destroy_process_group()


def assert_constant(after: list[dict[str, int]]) -> None:
    first, last = after[1], after[-1]  # the first run may load libraries
    for what in ("tensors", "threads", "files"):
        assert last[what] <= first[what], what
    assert last["shared"] <= first["shared"] + MB
    # The C library returns memory in its own time; three runs have over 200 MB.
    assert last["anonymous"] <= first["anonymous"] + 100 * MB


def test_simulations_leave_nothing(tmp_path: Path) -> None:
    assert_constant(in_process(repeat, partial(simulate, str(tmp_path)), 5, OMP_NUM_THREADS="1"))


def test_ranks_and_averagers_leave_nothing(tmp_path: Path) -> None:
    overrides = [*RUN, "network=gloo", "nodes=2", f"results={tmp_path}", "name=run"]
    with Ranks(2) as ranks:
        for after in ranks.call(repeat, partial(rank_of_run, overrides), 5):
            assert_constant(after)
        for after in ranks.call(repeat, partial(average, "sgp"), 5):
            assert_constant(after)
        for after in ranks.call(average_in_group, "diloco", 200, 20):
            assert_constant(after)
