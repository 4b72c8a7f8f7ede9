"""`Averager` with replicas of two devices: DDP inside a replica, the algorithm between replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.paths import RANKS
from helpers.processes import run_world
from helpers.ranks.mesh_rank import CASES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from sgp_runner import Averager
from sgp_runner.utils.errors import ConfigError

Ranks = dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("mesh")
    run_world(folder, 1, str(RANKS / "mesh_rank.py"), str(folder))
    return {path.stem: torch.load(path, weights_only=True) for path in folder.glob("*.pt")}


@pytest.mark.parametrize("case", CASES)
def test_replicas_of_two_devices_train_as_replicas_of_one(case: str, ranks: Ranks) -> None:
    for rank in range(4):
        expected, params = ranks[f"1{rank // 2}"][case][0], ranks[f"2{rank}"][case][0]
        if CASES[case][0] in {"sgp", "diloco"}:
            assert torch.equal(params, expected)
        else:  # the all-reduce adds in another order
            assert float((params - expected).abs().max()) < 1e-15
        assert torch.equal(params, ranks[f"2{rank ^ 1}"][case][0])  # the other device


@pytest.mark.parametrize("case", CASES)
def test_a_device_continues_exactly_from_its_state(case: str, ranks: Ranks) -> None:
    assert len(ranks) == 6
    assert all(torch.equal(*results[case]) for results in ranks.values())


def refusal(model: nn.Module, shape: tuple[int, ...]) -> str:
    mesh: Any = init_device_mesh("cpu", shape)
    with pytest.raises(ConfigError) as refused:
        Averager("sgp", model, torch.optim.SGD(model.parameters(), 0.1), mesh=mesh)
    return str(refused.value)


def test_a_mesh_needs_two_dimensions_and_ddp_over_the_second(alone: None) -> None:
    model = nn.Linear(2, 1)
    assert refusal(model, (1,)) == (
        "mesh: [0] must have the replicas as rows, and all ranks in their order: "
        "init_device_mesh(kind, (replicas, devices))."
    )
    assert refusal(model, (1, 1)) == (
        "model: gradients must be averaged over the ranks [0] of a replica: wrap the module in "
        "DistributedDataParallel(module, process_group=mesh.get_group(1))."
    )
