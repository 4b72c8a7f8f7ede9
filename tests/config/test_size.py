"""The memory that a run needs at least is never more than what it really makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.experiments import make_experiment

from sgp_runner.assembly.build import build_problem
from sgp_runner.config.size import check_memory, data_needs, model_need
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.memory import limits_of_groups, most_bytes


@pytest.mark.parametrize(
    "overrides",
    [
        "model=quadratic data.dimension=300",
        "model=quadratic dtype=float64 optim.momentum=0",
        "model=mlp model.hidden=[64,32]",
        "model=mlp model.hidden=[] data=synthetic data.image_size=8 data.num_classes=5",
        "model=mlp data=teacher",
        "model=resnet8",
        "model=resnet20 data=shapes data.train_size=40 data.valid_size=10 batch_size=2",
        "model=resnet18 nodes=2 data=synthetic data.image_size=8 data.num_classes=5",
        "model=resnet50 nodes=2 data=synthetic data.image_size=64 data.num_classes=5",
        "model=transformer optim=adam data.train_size=300 data.valid_size=10",
        "model=timing_only model.grain=500",
        "model=gpt model.width=256 data.train_size=300 data.valid_size=10",
    ],
)
def test_no_more_is_asked_for_than_a_run_makes(overrides: str, tmp_path: Path) -> None:
    run = make_experiment(tmp_path, *overrides.split()).run
    problem = build_problem(run)
    start = problem.start()
    buffers = run.optim.buffers(start).values() if run.model.trains else ()
    vectors = [start, *(buffer for buffer in buffers if buffer.dim())] if run.model.trains else []
    made = sum(vector.nbytes for vector in vectors) * run.nodes + start.nbytes
    assert 0.8 * made < model_need(run).bytes <= made
    tensors = [
        tensor
        for split in [problem.dataset.train, problem.dataset.valid]
        for value in vars(split).values()
        for tensor in (value if isinstance(value, tuple) else [value])
        if isinstance(tensor, torch.Tensor)
    ]
    storages = [tensor.untyped_storage() for tensor in tensors]
    assert data_needs(run)[1].bytes <= sum(
        {storage.data_ptr(): storage.nbytes() for storage in storages}.values()
    )


def test_what_fits_exactly_is_not_refused(tmp_path: Path) -> None:
    run = make_experiment(tmp_path, "model=quadratic", "nodes=4").run
    # 4096 vectors and 1 + 4 * 2 of 64 numbers, and the labels; while it is made, 8192 of 64.
    kept, made = 4 * 64 * (4096 + 9) + 8 * 4096, 8 * (64 * (8192 + 16) + 4096)
    assert kept < made
    check_memory(run, 1, made)
    with pytest.raises(ConfigError, match=r"^data\.dimension: the data set needs at least 4.24 MB"):
        check_memory(run, 1, made - 1)


def test_the_limit_of_a_control_group_counts(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    (groups / "job/step").mkdir(parents=True)
    (groups / "memory/old").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,memory:/old\n0::/job/step\n")
    (groups / "job/step/memory.max").write_text("max\n")
    (groups / "job/memory.max").write_text("4096\n")
    (groups / "memory/old/memory.limit_in_bytes").write_text("8192\n")
    assert list(limits_of_groups(tmp_path)) == [8192, 4096]
    assert list(limits_of_groups(tmp_path / "none")) == []
    assert most_bytes() > 2**28


def test_a_run_that_is_too_large_is_refused_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from sgp_runner.cli.main import main\n"
        "code = main(['model=resnet50', 'nodes=2000', 'dtype=float64', 'optim.momentum=0'])\n"
        "sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.startswith(
        "sgp-run: nodes: resnet50, with 23,000,640 parameters or more, needs at least 368 GB of "
        "memory (nodes=2000), but this machine has "
    )
    assert done.returncode == 2 and not [*tmp_path.iterdir()]
