"""`Averager`: what it refuses, what its calls do on one node, and the script of its page."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from helpers.paths import ROOT
from helpers.refusals import refusal
from torch import nn

import sgp_runner
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.plugin import Algorithm, Worker
from sgp_runner.topology.graphs import DirectedExponential, Ring
from sgp_runner.utils.errors import ConfigError

PAGE = ROOT / "docs/averager.md"


def net() -> nn.Linear:
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.fill_(0.5)
    return model


def sgd(model: nn.Module, **settings: float) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **settings})


def said(*arguments: Any, **settings: Any) -> str:
    return str(refusal(sgp_runner.Averager, *arguments, **settings))


def torchrun(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", script],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1000,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )


def test_models_and_optimizers_that_cannot_work_are_refused(alone: None) -> None:
    model = net()
    assert said("sgp", print, 0.1) == (
        "model: builtin_function_or_method is not a torch.nn.Module."
    )
    assert said("sgp", model, sgd(nn.Linear(3, 4))) == (
        "optimizer: a parameter of shape (4, 3) is not one of the model's: "
        "create it with model.parameters()."
    )
    assert said("sgp", model, 0.1) == ("optimizer: float is not a torch.optim.Optimizer: pass one.")
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    assert said("sgp", mixed, sgd(mixed)) == (
        "model: the parameters span several types (torch.float32, torch.float64): use one."
    )
    apart = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert said("sgp", apart, sgd(apart)) == (
        "model: the parameters span several devices (cpu, meta): use one."
    )
    assert said("accum_adam", model, torch.optim.Adam(model.parameters())) == (
        "optim: AccumAdam computes Adam's steps itself and cannot use a PyTorch optimizer: "
        "use sgp-run."
    )
    frozen = net().requires_grad_(False)
    assert said("sgp", frozen, sgd(frozen)) == ("model: no parameter requires a gradient.")


@pytest.mark.parametrize(
    ("algo", "settings", "sentence"),
    [
        ("spg", {}, "algo: 'spg' is not one of a2cid2, acco, accum_adam, "),
        ("sgp", {"topolgy": "ring"}, "algo.topolgy: there is no such setting. Did you mean"),
        ("osgp", {"tau": -1}, "algo.tau: -1 must be at least 0."),
        ("ad_psgd", {}, "algo: AD-PSGD is asynchronous: run it with sgp-run."),
        ("ps_sgd", {}, "algo: PS-SGD has a server: run it with sgp-run."),
        ("acco", {}, "algo: ACCO undoes steps, and a PyTorch optimizer cannot: use sgp-run."),
        ("hybrid", {}, "algo: AR-SGD, then SGP changes at an epoch, and a training loop has none"),
        (SGP(Ring()), {"tau": 1}, "algo: settings apply only to the name of an algorithm, not to"),
        ("sgp", {"steps": 0}, "steps: 0 must be at least 1 step, or None."),
    ],
)
def test_algorithms_that_cannot_work_are_refused(
    algo: Any, settings: dict[str, Any], sentence: str, alone: None
) -> None:
    model = net()
    assert said(algo, model, sgd(model), **settings).startswith(sentence)


def test_a_process_without_others_steps_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = net()
    try:
        with sgp_runner.Averager("sgp", model, sgd(model)) as averager:
            model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
            averager.step()
    finally:
        dist.destroy_process_group()
    assert model.weight.tolist() == [[0.9, 1.9]] and averager.size == 1
    assert [record.message for record in caplog.records] == [
        "No launcher has started this process, so it trains alone and nothing is averaged: "
        "start it with torchrun --nproc-per-node=2 SCRIPT."
    ]


def test_an_algorithm_that_moves_before_its_gradient_is_refused(alone: None) -> None:
    model = net()
    averager = sgp_runner.Averager(
        OSGP(DirectedExponential(), layout="released", push_sum_weight=False), model, sgd(model)
    )
    with pytest.raises(ConfigError, match="OSGP with these settings changes the parameters before"):
        averager.step()


@dataclass(frozen=True)
class Busy(Algorithm):
    """An algorithm that does something else before its gradient."""

    act: Callable[[Worker], object] = Worker.abandon
    title: ClassVar[str] = "Busy"

    async def run(self, worker: Worker) -> None:
        for _ in worker.steps():
            self.act(worker)
            worker.params.sub_(worker.update(await worker.grad()))


async def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (Worker.abandon, "abandons gradients"),
        (lambda worker: worker.spawn(nothing()), "runs a second activity"),
        (lambda worker: worker.sleep(1.0), "waits for a time"),
    ],
)
def test_an_algorithm_that_needs_more_than_a_loop_is_refused(
    act: Callable[[Worker], object], sentence: str, alone: None
) -> None:
    model = net()
    averager = sgp_runner.Averager(Busy(act), model, sgd(model))
    expected = f"algo: Busy {sentence} while the loop computes: run it with sgp-run."
    assert str(refusal(averager.step)) == expected


def test_a_step_is_the_optimizers(alone: None) -> None:
    """With momentum and decay, a parameter without gradient, and one that is frozen."""
    model = nn.Sequential(net(), net(), net())
    model[2].requires_grad_(False)
    averager = sgp_runner.Averager("sgp", model, sgd(model, momentum=0.5, weight_decay=0.1))
    for _ in range(2):
        model[0](torch.ones(1, 2).double()).sum().backward()  # a gradient of 1 everywhere
        averager.step()
    # w <- 1 - 0.1 (1 + 0.1), then - 0.1 (0.5 1.1 + 1 + 0.089); without gradient only decay
    assert model[0].weight.tolist() == [pytest.approx([0.7261, 1.7012])]
    assert model[1].weight.tolist() == [pytest.approx([0.9751, 1.9502])]
    assert model[2].weight.tolist() == [[1.0, 2.0]]
    assert all(p.grad is None for p in model.parameters())
    assert averager.param_groups[0]["momentum"] == 0.5
    averager.finish()


def test_the_known_number_of_steps_is_the_last(alone: None) -> None:
    model = net()
    with sgp_runner.Averager("diloco", model, sgd(model), steps=2) as averager:
        for _ in range(2):
            averager.step()
        with pytest.raises(RuntimeError, match="^the averager has taken all its 2 steps$"):
            averager.step()


def test_a_state_of_another_algorithm_is_refused(alone: None) -> None:
    model = net()
    averager = sgp_runner.Averager("diloco", model, sgd(model), period=2)
    state = averager.state_dict()
    averager.finish()
    other = sgp_runner.Averager("diloco", model, sgd(model), period=3)
    with pytest.raises(
        ConfigError, match=r"^state: its algorithm is DiLoCo\(period=2, .+ but this"
    ):
        other.load_state_dict(state)
    other.step()
    with pytest.raises(RuntimeError, match="^a state must be loaded before the first step$"):
        other.load_state_dict(other.state_dict())
    other.finish()


def replaced(value: Any, where: str, by: object) -> Any:
    """Return a state with another value at a dotted key."""
    first, _, rest = where.partition(".")
    key = int(first) if isinstance(value, list) or first.isdecimal() else first
    inner = replaced(value[key], rest, by) if rest else by
    if isinstance(value, list):
        return [*value[:key], inner, *value[key + 1 :]]
    return {**value, key: inner}


DAMAGED = [
    ("worker.state.outer_momentum", None, "worker.state.outer_momentum was torch.float64 [3] when"),
    ("worker.state.outer_momentum", [], "worker.state.outer_momentum was torch.float64 [3] when"),
    ("worker.state", None, "worker.state.outer_momentum was torch.float64 [3] when"),
    ("worker.push_sum", torch.ones(9), "push_sum was torch.float64 [4] when it was saved, and is "),
    ("worker.step", torch.ones(1), "worker.step was 2 when it was saved, and is torch.float32 [1]"),
    ("worker.step", 3.0, "worker.step was 2 when it was saved, and is a number."),
    ("worker.steps_taken", 10**9, "worker.steps_taken was 3 when it was saved, and is 1000000000."),
    ("worker.comm.collectives", -1, "worker.comm.collectives was 1 when it was saved, and is -1."),
    ("worker.comm.mailbox", [(0, 0, "a")], "worker.comm.mailbox was [] when it was saved, and is "),
    ("worker.model_buffers", [], "worker.model_buffers.0 was torch.float32 [2] when it was saved"),
    ("worker.num_bytes_sent", "0", "worker.num_bytes_sent was 0 when it was saved, and is '0'."),
    ("worker", None, "worker.push_sum was torch.float64 [4] when it was saved, and is None."),
    ("optimizer.state.0.momentum_buffer", None, "momentum_buffer was torch.float64 [1, 2] when it"),
    ("optimizer.param_groups.0.lr", None, "param_groups.0.lr was a number when it was saved, and "),
    ("optimizer.param_groups", [], "param_groups.0.lr was a number when it was saved, and is None"),
    ("outline", None, "worker.push_sum was None when it was saved, and is torch.float64 [4]."),
    ("model", {}, "its model.weight is None, but this model.weight is torch.float64 [1, 2]."),
    ("kind of optimizer", "Adam", "its kind of optimizer is Adam, but this kind of optimizer is"),
    ("groups of parameters", [1], "its groups of parameters.0 is 1, but this groups of parameters"),
    ("version", 1, "state: its version is 1, but this version is 2."),
]


def test_a_damaged_state_is_refused_before_anything_is_replaced(alone: None) -> None:
    def averager() -> tuple[nn.Module, sgp_runner.Averager]:
        model = net()
        model.register_buffer("counts", torch.ones(2))
        return model, sgp_runner.Averager("diloco", model, sgd(model, momentum=0.9), period=2)

    model, made = averager()
    for _ in range(3):
        model(torch.ones(1, 2).double()).sum().backward()
        made.step()
    state = copy.deepcopy(made.state_dict())
    made.finish()
    _, other = averager()
    before = copy.deepcopy(other.state_dict())
    for where, by, sentence in DAMAGED:
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            other.load_state_dict(replaced(state, where, by))
    for nothing in (None, [], {}):
        with pytest.raises(ConfigError, match=r"^state: its version is None, but this version"):
            other.load_state_dict(nothing)  # type: ignore[arg-type]
    assert str(other.state_dict()) == str(before)
    other.load_state_dict(state)
    del state["worker"]["collectives"]  # of a step that has begun
    assert str(other.state_dict()["worker"]) == str(state["worker"])
    other.finish()


def test_a_state_of_another_model_or_optimizer_is_refused(alone: None) -> None:
    model = net()
    averager = sgp_runner.Averager("sgp", model, sgd(model))
    state = averager.state_dict()
    averager.finish()
    wide = nn.Linear(3, 1).double()
    for module, optimizer, sentence in (
        (wide, sgd(wide), "its model.weight is torch.float64 [1, 2], but this model.weight is"),
        (model, torch.optim.Adam(model.parameters()), "its kind of optimizer is SGD, but this"),
    ):
        other = sgp_runner.Averager("sgp", module, optimizer)
        with pytest.raises(ConfigError, match=f"^state: {re.escape(sentence)}"):
            other.load_state_dict(state)
        other.finish()


def test_five_lines_of_the_page_make_a_decentralised_run(tmp_path: Path) -> None:
    files = dict(
        re.findall(r"^`([\w.]+)`:\n\n```\w+\n([\s\S]*?)^```$", PAGE.read_text(), re.MULTILINE)
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert sum(line.startswith("+") for line in files["averager.diff"].splitlines()[2:]) == 5
    assert len(files["train.py"].splitlines()) < 60
    subprocess.run(["git", "apply", "--unidiff-zero", "averager.diff"], cwd=tmp_path, check=True)
    done = torchrun(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"validation loss (\d\.\d\d)", done.stdout)]
    assert len(losses) == 2 and max(losses) < 3.3  # 4.4 before training
    models = [torch.load(tmp_path / f"model{rank}.pt", weights_only=True) for rank in range(2)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


SCRIPT = """
import torch
from sgp_runner import Averager

model = torch.nn.Linear(4, 8)
averager = Averager("osgp", model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    averager.step()
"""


def test_a_program_that_forgets_to_finish_ends_well(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = torchrun(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr


def test_a_module_in_half_precision_is_trained_in_float32(alone: None) -> None:
    """0.001 is rounded away beside 1 in bfloat16, where the next lower number is 0.996."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    averager = sgp_runner.Averager("diloco", model, sgd(model, lr=0.001), period=2, lr=1.0)
    worker = averager.runtime.worker
    for _ in range(4):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        averager.step()
    assert worker.params.dtype == torch.float32
    kinds = {value.dtype for value in worker.state.values() if isinstance(value, torch.Tensor)}
    assert kinds == {torch.float32}
    averager.finish()
    assert model.weight.dtype == torch.bfloat16
    # DiLoCo's outer steps with momentum 0.9 (Nesterov) move by 0.0038, then by 0.00542.
    assert worker.params.item() == pytest.approx(1 - 0.0038 - 0.00542, abs=1e-6)
    assert model.weight.item() == 0.9921875


def test_the_state_of_an_optimizer_of_half_precision_is_continued_exactly(alone: None) -> None:
    def make() -> tuple[nn.Linear, sgp_runner.Averager]:
        model = nn.Linear(1, 1, bias=False).bfloat16()
        nn.init.ones_(model.weight)
        return model, sgp_runner.Averager("sgp", model, sgd(model, lr=0.001, momentum=0.9))

    def train(model: nn.Linear, averager: sgp_runner.Averager, steps: int) -> None:
        for _ in range(steps):
            model(torch.full((1, 1), 0.3, dtype=torch.bfloat16)).sum().backward()
            averager.step()

    model, averager = make()
    train(model, averager, 3)
    other, again = make()
    again.load_state_dict(copy.deepcopy(averager.state_dict()))
    for pair in ((model, averager), (other, again)):
        train(*pair, 3)
    assert torch.equal(averager.runtime.worker.params, again.runtime.worker.params)
    averager.finish()
    again.finish()
