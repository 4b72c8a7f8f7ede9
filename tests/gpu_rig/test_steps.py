"""What a step does once, or not at all: modes of modules."""

from __future__ import annotations

from unittest import mock

from gpu_rig.ranks import base_run
from torch import nn

from sgp_runner.assembly.build import build_problem


def test_modules_change_their_mode_after_an_evaluation_alone() -> None:
    problem = build_problem(base_run())
    modules = len([*problem.flat.module.modules()])
    x, buffers = problem.start(), problem.flat.fresh_buffers()
    assert modules == 6
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
        assert calls == [False] * modules
        problem.gradient(x, buffers, 0, 0)
        assert calls == [False] * modules + [True] * modules
