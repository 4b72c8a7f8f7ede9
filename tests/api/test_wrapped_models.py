"""`Averager` with a model inside DistributedDataParallel, with GradScaler, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import RANKS
from helpers.processes import run_world
from helpers.ranks.wrapped_rank import CASES
from helpers.refusals import refusal
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sgp_runner import Averager

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("wrapped")
    run_world(folder, 1, str(RANKS / "wrapped_rank.py"), str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_a_model_inside_ddp_trains_as_the_module_does_to_the_bit(case: str, ranks: Ranks) -> None:
    for results in ranks:
        bare, wrapped = results[case]["bare"], results[case]["wrapped"]
        assert str(bare) == str(wrapped)
        assert torch.equal(bare["params"], wrapped["params"])
        for kind in ("buffers", "optimizer"):
            assert all(map(torch.equal, bare[kind], wrapped[kind]))


def test_local_steps_follow_the_gradients_of_their_rank(ranks: Ranks) -> None:
    """Local SGD ends in the middle of a period: DDP has not averaged the gradients of its step."""
    assert not torch.equal(*(results["unused"]["wrapped"]["params"] for results in ranks))


def test_scaled_gradients_give_the_same_steps_to_the_bit(ranks: Ranks) -> None:
    for results in ranks:
        for plain, scaled in (("plain", "scaler"), ("clipping", "scaler and clipping")):
            for kind in ("bare", "wrapped"):
                one, other = results[plain][kind], results[scaled][kind]
                assert torch.equal(one["params"], other["params"])


def test_a_rank_whose_gradient_is_infinite_halves_its_scale_alone(ranks: Ranks) -> None:
    assert [results["infinite"]["wrapped"]["scale"] for results in ranks] == [256.0, 128.0]
    assert all(results["infinite"]["wrapped"]["params"].isfinite().all() for results in ranks)


def test_rank_0_says_once_for_each_model_that_ddp_averages_no_longer(ranks: Ranks) -> None:
    sentence = (
        "DistributedDataParallel no longer averages gradients or broadcasts buffers of this "
        "model: Averager has set a communication hook that leaves them as they are."
    )
    assert [results["messages"] for results in ranks] == [[sentence] * len(CASES), []]


def test_a_step_with_an_infinite_gradient_leaves_model_and_momentum(alone: None) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.25, momentum=0.5)
    averager = Averager("sgp", model, optimizer)
    scaler: Any = torch.amp.GradScaler("cpu", 4.0)
    seen = []
    for gradient in (1.0, torch.inf, 1.0):
        scaler.scale(model(torch.full((1, 1), gradient).double()).sum()).backward()
        scaler.step(averager)
        scaler.update()
        seen.append((model.weight.item(), optimizer.state[model.weight]["momentum_buffer"].item()))
    # w <- 1 - 0.25, then nothing, then - 0.25 (0.5 + 1)
    assert seen == [(0.75, 1.0), (0.75, 1.0), (0.375, 1.5)]
    assert scaler.get_scale() == 2.0
    averager.finish()


def said(model: nn.Module, optimizer: Any = None) -> str:
    given = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return str(refusal(Averager, "sgp", model, given))


def test_a_model_that_somebody_else_averages_is_refused(alone: None) -> None:
    model = nn.Linear(2, 1)
    wrapped = DistributedDataParallel(model)
    averager = Averager("sgp", wrapped, torch.optim.SGD(model.parameters(), 0.1))
    for again in (model, wrapped):
        assert said(again) == ANOTHER
    averager.finish()
    Averager("sgp", wrapped, torch.optim.SGD(model.parameters(), 0.1)).finish()
    assert said(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))) == (
        "model: the module 1 is of the class SyncBatchNorm, which exchanges statistics of the "
        "batch among all ranks in each forward pass: use BatchNorm, whose statistics stay on a "
        "rank, or GroupNorm."
    )


ANOTHER = "model: another Averager trains the model or a part of it: call its finish() first."
INNER = "use the optimizer inside it, for example torch.optim.AdamW."
#: Case -> the error of both ranks; of models that differ, the description on ranks 0 and 1.
SAID: dict[str, str | tuple[str, str]] = {
    "twice": ANOTHER,
    "part": ANOTHER,
    "hook": "model: a communication hook of DistributedDataParallel averages its gradients already "
    "(register_comm_hook or register_builtin_comm_hook can only be called once): wrap the module "
    "without this hook.",
    "post_local": "optimizer: PostLocalSGDOptimizer averages the parameters of all ranks itself: "
    f"{INNER}",
    "closure": "optimizer: LBFGS does not step with one dense gradient: use another, for example "
    "torch.optim.AdamW.",
    "names": ("head.weight [2, 2] torch.float32", "tail.weight [2, 2] torch.float32"),
    "shapes": ("1.weight [3, 2] torch.float32", "1.weight [4, 2] torch.float32"),
    "count": ("1.weight [2, 2] torch.float32", "missing or frozen"),
    "frozen": ("bias [1] torch.float32", "missing or frozen"),
    "buffer": ("missing or frozen", "mask [2] torch.float32"),
    "kind": ("weight [1, 2] torch.float32", "weight [1, 2] torch.float64"),
}


def test_ranks_that_cannot_average_say_so_with_one_sentence(tmp_path: Path) -> None:
    """A refusal leaves the ranks able to try again."""
    run_world(tmp_path, 2, str(RANKS / "refused_rank.py"), str(tmp_path))
    expected = {
        case: said
        if isinstance(said, str)
        else f"the first different tensor of the model is {said[0]} on rank 0 but {said[1]} on "
        "rank 1: start all ranks with the same command and code."
        for case, said in SAID.items()
    }
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


# Named as PyTorch's, which needs an accelerator, and as the base of what `fully_shard` makes.
@pytest.mark.parametrize("name", ["FullyShardedDataParallel", "FSDPModule"])
def test_a_sharded_model_is_refused(name: str, alone: None) -> None:
    sharded = type(name, (nn.Sequential,), {})
    assert said(sharded(nn.Linear(2, 1))) == (
        f"model: the model is of the class {name}, which shards parameters, so no rank has a whole "
        "model to average: use fully_shard (FSDP2) over the devices of a replica, and mesh=; or "
        "DistributedDataParallel."
    )


def test_optimizers_of_another_rule_are_refused(alone: None) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    class Twice(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return closure()

    model = nn.Linear(2, 1)
    assert said(model, Twice(model.parameters(), 0.1)) == (
        "optimizer: Twice does not step with one dense gradient: "
        "use another, for example torch.optim.AdamW."
    )
    assert said(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)) == (
        "optimizer: ZeroRedundancyOptimizer broadcasts the parameters that each rank has updated "
        "to all ranks: use the optimizer inside it, for example torch.optim.AdamW."
    )
