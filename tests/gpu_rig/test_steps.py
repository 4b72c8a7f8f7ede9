"""Work that steps skip: changes of the modules' mode, divisions by one, fragmented memory."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from gpu_rig.pretend_gpu import DEVICE, pretend_gpu, values
from gpu_rig.ranks import NODES, START, STEPS, base_run, train
from gpu_rig.test_launches import peak
from torch import nn

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.assembly.build import ALLOCATOR, build_problem
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.optim import SGD, Constant
from sgp_runner.core.problem import Compute, Problem
from sgp_runner.core.push_sum import fold
from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.distributed.blocks import InBlocks, blocks_of
from sgp_runner.models.dropout import SeededDropout
from sgp_runner.topology.finite_time import Base
from sgp_runner.topology.graphs import DirectedExponential, Ring


def test_modules_change_their_mode_after_an_evaluation_alone() -> None:
    problem = build_problem(base_run())
    x, buffers = problem.start(), problem.flat.fresh_buffers()
    assert len([*problem.flat.module.modules()]) == 6
    calls: list[bool] = []
    train = nn.Module.train

    def noted(self: nn.Module, mode: bool = True) -> nn.Module:
        calls.append(mode)
        return train(self, mode)

    with mock.patch.object(nn.Module, "train", noted):
        for _ in range(3):
            problem.gradient(x, buffers, 0, 0)
        assert calls == []
        problem.evaluate(x, buffers)
        assert calls == [False] * 6
        problem.gradient(x, buffers, 0, 0)
        assert calls == [False] * 6 + [True] * 6


@pytest.mark.parametrize(("weighted", "launches"), [(True, 3), (False, 4)])
def test_a_model_whose_weight_stays_one_is_not_divided_on_a_gpu(
    weighted: bool, launches: int
) -> None:
    x, message = torch.tensor([2.0, 4.0, 0.5]), torch.tensor([1.0, 1.0, 0.5])
    with pretend_gpu() as log:
        on_gpu, received = x.to(DEVICE), message.to(DEVICE)
        log.clear()
        fold(on_gpu, [received], weighted)
    assert (sum(log.launches.values()), log.syncs) == (launches, {})
    fold(x, [message], weighted)
    assert values(on_gpu).tolist() == x.tolist() == [3.0, 5.0, 1.0]


@pytest.mark.parametrize(
    ("algo", "numbers"),
    [
        (ARSGD(), 29),
        (SGP(DirectedExponential()), 33),
        (SGP(Ring()), 38),
        (SGP(Base()), 35),
        (OSGP(DirectedExponential()), 34),
        (OSGP(DirectedExponential(), push_sum_weight=False), 31),
    ],
    ids=str,
)
def test_the_numbers_that_a_step_moves(
    algo: Algorithm, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per parameter, with those of the rig's gradient and of SGD, 20 and the exchange."""
    monkeypatch.delattr(torch, "_fused_sgd_")
    moved = train(algo, SGD(Constant()), on_gpu=True).log.moved
    assert round(sum(moved.values()) / (START.nbytes * NODES * STEPS)) == numbers


def gradient_in_blocks(problem: Problem) -> torch.Tensor:
    """Return a gradient that is averaged over one process while it is computed."""
    flat = problem.flat
    blocks = blocks_of(flat.layers, [slice(0, sum(flat.layers))], most=2**15)
    assert len(blocks) == 7
    model = InBlocks(problem, blocks, lambda values, block: mock.Mock(), WaitMeter())
    gradient, _ = model.reduced(problem.start(), flat.fresh_buffers(), 0, 0, None)
    assert model.gradient.untyped_storage().nbytes() == 0
    return gradient


def gradient_alone(problem: Problem) -> torch.Tensor:
    return problem.gradient(problem.start(), problem.flat.fresh_buffers(), 0, 0)[0]


@pytest.mark.parametrize("gradient", [gradient_alone, gradient_in_blocks])
def test_a_gradient_on_a_gpu_is_gathered_while_others_are_computed(
    gradient: Callable[[Problem], torch.Tensor],
) -> None:
    """Beside the parameters and the gradient, one of 12 equal layers needs memory; values equal
    those that are joined at the end.
    """
    settings = ("data=digits", "model=mlp", f"model.hidden={[128] * 13}", "nodes=4", "batch_size=8")
    run = experiment_of([*settings, "logger=jsonl", "resume=never"]).run
    gradients = []
    with pretend_gpu() as log:
        problem = build_problem(run, Compute(str(DEVICE)))
        problem.backward(problem.start(), problem.flat.fresh_buffers(), 0, 0)
        expected = values(problem.flat.detach_gradient())
        log.clear()
        most = peak(lambda: gradients.append(gradient(problem)))
    assert torch.equal(values(gradients[0]), expected)
    assert {p.grad for p in problem.flat.parameters} == {None}
    assert not [where for where in log.launches if "detach" in where]
    assert expected.nbytes * 25 / 12 < most < expected.nbytes * 9 / 4


def test_the_kernels_and_bytes_of_dropout() -> None:
    """The mask is a CPU's."""
    dropout, x = SeededDropout(0.1, layer=3), torch.ones(2**16)
    dropout.dropout_seed.fill_(2**62 + 1)
    with pretend_gpu() as log:
        on_gpu, inputs = copy.deepcopy(dropout).to(DEVICE), x.to(DEVICE)
        log.clear()
        dropped = on_gpu(inputs)
    assert log.syncs == {}
    assert (sum(log.launches.values()), sum(log.moved.values()) // len(x)) == (39, 76)
    assert torch.equal(values(dropped), dropout(x))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {ALLOCATOR[0]: "expandable_segments:True"}),
        ({ALLOCATOR[0]: "max_split_size_mb:64"}, {ALLOCATOR[0]: "max_split_size_mb:64"}),
        ({ALLOCATOR[1]: "max_split_size_mb:64"}, {ALLOCATOR[1]: "max_split_size_mb:64"}),
    ],
)
def test_memory_of_a_gpu_grows_in_place_unless_its_user_says_how(
    before: dict[str, str], after: dict[str, str]
) -> None:
    others = {key: value for key, value in os.environ.items() if key not in ALLOCATOR}
    with mock.patch.dict(os.environ, {**others, **before}, clear=True):
        build_problem(base_run())
        assert {key: os.environ[key] for key in ALLOCATOR if key in os.environ} == before
        with pretend_gpu():
            build_problem(base_run(), Compute(str(DEVICE)))
        assert {key: os.environ[key] for key in ALLOCATOR if key in os.environ} == after
