"""`Averager` with replicas of two devices: DDP inside a replica, the algorithm between replicas."""

from __future__ import annotations

import pytest
import torch
from helpers.paths import RANKS
from helpers.processes import run_world
from helpers.ranks.mesh_rank import CASES
from helpers.refusals import refusal
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

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
def test_sharded_replicas_train_as_replicas_of_one_device(case: str, ranks: Ranks) -> None:
    for rank in range(4):
        expected, params = ranks[f"1{rank // 2}"][case][0], ranks[f"fsdp2{rank}"][case][0]
        assert params.shape == expected.shape
        assert float((params - expected).detach().abs().max()) < 1e-15


@pytest.mark.parametrize("case", CASES)
def test_a_device_continues_exactly_from_its_state(case: str, ranks: Ranks) -> None:
    assert len(ranks) == 10
    assert all(torch.equal(*results[case]) for results in ranks.values())


def said(model: nn.Module, shape: tuple[int, ...], algo: str = "sgp") -> str:
    optimizer, mesh = torch.optim.SGD(model.parameters(), 0.1), init_device_mesh("cpu", shape)
    return str(refusal(Averager, algo, model, optimizer, mesh=mesh))


def test_a_mesh_needs_two_dimensions_and_ddp_over_the_second(alone: None) -> None:
    model = nn.Linear(2, 1)
    assert said(model, (1,)) == (
        "mesh: [0] must have the replicas as rows, and all ranks in their order: "
        "init_device_mesh(kind, (replicas, devices))."
    )
    assert said(model, (1, 1)) == (
        "model: gradients must be averaged over the ranks [0] of a replica: wrap the module in "
        "DistributedDataParallel(module, process_group=mesh.get_group(1))."
    )


def test_fsdp_must_shard_the_whole_model_over_the_second_dimension(alone: None) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "devices"))
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    fully_shard(net[0], mesh=mesh["devices"])
    assert said(net, (1, 1)).startswith("model: gradients must be averaged over the ranks [0] ")
    whole = fully_shard(nn.Linear(2, 1).bfloat16(), mesh=mesh["devices"])
    assert said(whole, (1, 1)) == (
        "model: the parameter weight is in bfloat16, not in float32: shard the whole model "
        "over the ranks [0] of a replica, fully_shard(model, mesh=mesh[NAME]) with the second "
        "dimension's name; MixedPrecisionPolicy sets the precision in which it computes."
    )
    whole = fully_shard(nn.Linear(2, 1), mesh=mesh["devices"])
    assert said(whole, (1, 1), "powersgd") == (
        "algo: PowerSGD factorizes whole vectors: use DistributedDataParallel over the devices of "
        "a replica."
    )
    with pytest.raises(ConfigError, match=r"^model: the model is of the class FSDPModule, which "):
        Averager("sgp", whole, torch.optim.SGD(whole.parameters(), 0.1))
