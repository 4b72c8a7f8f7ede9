"""The state of ranks at the end of periods, ranks with other numbers of steps, and lost ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.paths import RANKS
from helpers.processes import run_world
from helpers.ranks.local_state_rank import net, sgd
from helpers.refusals import refusal
from torch import nn

from sgp_runner import Averager
from sgp_runner.utils.errors import Diverged

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("local")
    run_world(folder, 1, str(RANKS / "local_state_rank.py"), str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def means(ranks: Ranks, case: str, kind: str) -> list[torch.Tensor]:
    pairs = zip(*(results[case][kind] for results in ranks), strict=True)
    return [(one + other) / 2 for one, other in pairs]


@pytest.mark.parametrize(
    ("case", "local", "kind", "other"),
    [
        ("adam mean", "adam local", "optimizer", "buffers"),
        ("buffers", "adam local", "buffers", "optimizer"),
        ("sgd mean", "sgd local", "optimizer", "buffers"),
        ("last", "sgd local", "optimizer", "buffers"),
    ],
)
def test_state_is_the_mean_of_all_ranks(
    case: str, local: str, kind: str, other: str, ranks: Ranks
) -> None:
    expected = means(ranks, local, kind)
    for results in ranks:
        assert all(map(torch.equal, results[case][kind], expected))
        assert all(map(torch.equal, results[case][other], results[local][other]))
    assert not torch.equal(ranks[0][local][kind][0 if kind == "buffers" else -1], expected[0])


def test_adams_state_is_its_moments_and_step(ranks: Ranks) -> None:
    state = ranks[0]["adam reset"]["optimizer"]
    assert len(state) == 3 * 6  # two layers and BatchNorm have a weight and a bias each
    assert not any(map(torch.count_nonzero, state))
    assert [value.item() for value in ranks[0]["adam mean"]["optimizer"][::3]] == [2.0] * 6


def test_state_stays_local_within_a_period(ranks: Ranks) -> None:
    for results in ranks:
        pairs = zip(results["within"]["optimizer"], results["sgd local"]["optimizer"], strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_the_rule_of_slowmo_is_its_own_setting(ranks: Ranks) -> None:
    for results in ranks:
        one, other = results["slowmo"], results["slowmo mean"]
        assert torch.equal(one["params"], other["params"])
        assert all(map(torch.equal, one["optimizer"], other["optimizer"]))


@pytest.mark.parametrize("algo", ["sgp", "local"])
def test_a_rank_without_batches_exchanges_messages_without_steps(algo: str, ranks: Ranks) -> None:
    for results in ranks:
        joined, skipped = results[f"{algo} joined"], results[f"{algo} skipped"]
        assert torch.equal(joined["params"], skipped["params"])


def test_a_gradient_that_is_not_finite_ends_all_ranks(ranks: Ranks) -> None:
    assert [results["error"] for results in ranks] == [
        "RankLost: rank 0 lost a connection in an all-reduce in step 2: another process has ended, "
        "and its message states the cause; continue all ranks from the states that they have "
        "saved.",
        "Diverged: rank 1 diverged at step 2: the gradient of 2.weight is not finite: lower the "
        "learning rate, clip the gradient, or use a GradScaler with float16.",
    ]


def make(algo: str, optimizer: Any = sgd, **settings: Any) -> tuple[nn.Module, Averager]:
    model = net()
    return model, Averager(algo, model, optimizer(model.parameters()), **settings)


def test_one_rank_continues_from_the_means_of_two(ranks: Ranks, alone: None) -> None:
    states = [results["sgd kept"]["saved"] for results in ranks]
    model, averager = make("diloco", period=2)
    averager.load_states(states[::-1])
    loaded = averager.runtime.worker
    vectors = [state["worker"]["push_sum"][:-1] for state in states]
    assert not torch.equal(*vectors)
    assert torch.equal(loaded.params, (vectors[0] + vectors[1]) / 2)
    assert all(map(torch.equal, averager.buffers, means(ranks, "sgd kept", "buffers")))
    momenta = averager.runtime.optim.buffers(loaded.params).values()
    assert all(map(torch.equal, momenta, means(ranks, "sgd kept", "optimizer")))
    for name in ("outer", "outer_momentum"):
        assert torch.equal(loaded.state[name], states[0]["worker"]["state"][name])
    assert (loaded.steps_taken, loaded.push_sum_weight) == (3, 1.0)
    model(torch.ones(6, 3).double()).square().mean().backward()
    averager.step()  # the last one of a period
    assert torch.equal(loaded.params, loaded.state["outer"])
    averager.finish()


def test_states_without_a_rule_for_other_ranks_are_refused(ranks: Ranks, alone: None) -> None:
    states = [results["sgd kept"]["saved"] for results in ranks]
    _, averager = make("diloco", period=2)
    assert [str(refusal(averager.load_states, given)) for given in (states[:1], [])] == [
        "states: of the ranks 0 of 2: pass one state of each former rank.",
        "states: of the ranks none: pass one state of each former rank.",
    ]
    for state in states:
        state["worker"]["state"]["error"] = torch.zeros(1)
        state["outline"]["worker.state.error"] = "torch.float32 [1]"
    assert str(refusal(averager.load_states, states)) == (
        "states: DiLoCo cannot convert error to another number of ranks: continue with 2 "
        "ranks, or start an averager from the mean model."
    )
    averager.finish()


NEVER = (
    "has no step after which all ranks have one model, so 'mean' never applies: write 'local', or "
    "use local_sgd, slowmo, diloco, sparseloco or gossip_pga."
)


@pytest.mark.parametrize(
    ("algo", "settings", "sentence"),
    [
        ("sgp", {"optimizer_state": "mean"}, f"optimizer_state: SGP {NEVER}"),
        ("osgp", {"buffers": "mean"}, f"buffers: OSGP {NEVER}"),
        ("diloco", {"overlap": "eager", "buffers": "mean"}, f"buffers: DiLoCo {NEVER}"),
        (
            "sgp",
            {"optimizer_state": "sum"},
            "optimizer_state: 'sum' must be one of local, mean, reset.",
        ),
        (
            "slowmo",
            {"buffers": "average"},
            "buffers: 'average' must be one of local, mean; SlowMo's setting of this name is "
            "optimizer_state= here.",
        ),
    ],
)
def test_rules_without_a_moment_are_refused(
    algo: str, settings: dict[str, Any], sentence: str, alone: None
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert str(refusal(Averager, algo, model, optimizer, **settings)) == sentence


def test_quasi_global_momentum_needs_one_momentum(alone: None) -> None:
    model = nn.Linear(2, 1)
    groups: list[dict[str, Any]] = [
        {"params": [model.weight], "momentum": 0.9},
        {"params": [model.bias]},
    ]
    assert str(refusal(Averager, "qg_dsgdm", model, torch.optim.SGD(groups, 0.1))) == (
        "optimizer: QG-DSGDm replaces the momentum of all parameters: use one momentum, and "
        "dampening=0, in all groups."
    )


def test_a_gradient_is_checked_before_the_optimizer_has_it(alone: None) -> None:
    model = nn.Linear(2, 1)
    averager = Averager("sgp", model, torch.optim.SGD(model.parameters(), 0.1))
    before = model.weight.clone()
    model(torch.full((1, 2), torch.inf)).sum().backward()
    with pytest.raises(
        Diverged, match=r"^rank 0 diverged at step 0: the gradient of weight is not"
    ):
        averager.step()
    assert torch.equal(model.weight, before)
