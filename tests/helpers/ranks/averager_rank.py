"""Three ranks of plain training loops with `Averager`, one loop for each experiment in a folder.

``averager_rank.py FOLDER``: ``how.json`` in the folder of an experiment describes a loop that
trains its model on the same batches. The loop saves its parameters, and those of a loop that
continues from its state. The ranks end at the first loop that fails and leave its ``error``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sgp_runner.api import averager
from sgp_runner.api.arguments import overrides_of
from sgp_runner.assembly.build import build_problem
from sgp_runner.config.experiment import load_experiment
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.optim import Horizon
from sgp_runner.core.problem import Problem
from sgp_runner.distributed.torch_world import TorchWorld

RANKS = 3
HALF = 5  # steps until a loop saves its state


def optimizer_of(model: torch.nn.Module, optim: Any) -> torch.optim.Optimizer:
    """Return the optimizer that a user would write for these settings."""
    if optim.name == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            optim.lr,
            optim.momentum,
            nesterov=optim.nesterov and optim.momentum > 0,
            weight_decay=optim.weight_decay,
        )
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": others, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": optim.weight_decay},
    ]
    return torch.optim.AdamW(groups, optim.lr, (optim.beta1, optim.beta2), optim.eps)


class Loop:
    """A training loop that could be anyone's."""

    def __init__(self, run: Any, problem: Problem, how: dict[str, Any], steps: int) -> None:
        self.run, self.problem, self.how = run, problem, how
        self.model = problem.flat.module
        self.optimizer = optimizer_of(self.model, run.optim)
        per_epoch = problem.sampler.steps_per_epoch
        horizon = Horizon(run.epochs, per_epoch, run.nodes, run.nodes * run.batch_size)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: run.optim.schedule.factor(step / horizon.steps_per_epoch, horizon),
        )
        known = steps if how.get("steps") else None
        algo = how["algo"]
        self.averager = averager.Averager(
            algo,
            self.model,
            self.optimizer,
            steps=known,
            **how["settings"],
            **how.get("rules", {}),
        )

    def train(self, first: int, last: int) -> None:
        rank, parts = self.averager.rank, self.how.get("parts", 1)
        for step in range(first, last):
            inputs, targets = self.problem.batch(rank, step)
            for part in range(parts):
                x, y = inputs[0].chunk(parts)[part], targets.chunk(parts)[part]
                (self.problem.loss(self.model, ((x,), y)) / parts).backward()
            if (clip := getattr(self.run.optim, "clip", None)) is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.averager.step()
            self.averager.zero_grad()
            self.schedule.step()

    def parameters(self) -> torch.Tensor:
        return self.averager.runtime.worker.params.clone()


def run(path: Path, how: dict[str, Any], rank: int) -> None:
    experiment = load_experiment(path.with_name("config.yaml"), None)
    problem = build_problem(experiment.run)
    steps = experiment.run.total_steps(problem)
    loop = Loop(experiment.run, problem, how, steps)
    loop.train(0, HALF)
    state = path.with_name(f"state{rank}")
    both = {"averager": loop.averager.state_dict(), "schedule": loop.schedule.state_dict()}
    torch.save(both, state)
    loop.train(HALF, steps)
    loop.averager.finish()
    results = {"params": loop.parameters(), "weight": loop.averager.runtime.worker.push_sum[-1]}
    results["average"] = torch.cat([p.detach().flatten() for p in loop.model.parameters()])
    # Another process would begin with parameters of its own.
    for p in loop.model.parameters():
        p.data = torch.zeros_like(p)
    loop = Loop(experiment.run, problem, how, steps)
    saved = torch.load(state, weights_only=True)
    loop.averager.load_state_dict(saved["averager"])
    loop.schedule.load_state_dict(saved["schedule"])
    loop.train(HALF, steps)
    loop.averager.finish()
    torch.save({**results, "resumed": loop.parameters()}, path.with_name(f"loop{rank}.pt"))


def main(folder: Path, rank: int) -> int:
    store = dist.FileStore(str(folder / "loops"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    world_on = averager.world_on
    for path in sorted(folder.glob("*/how.json")):
        how = json.loads(path.read_text())
        averager.world_on = (
            (lambda *at: TorchWorld(paired=True, joins=True)) if how.get("paired") else world_on
        )
        try:
            run(path, how, rank)
        except Exception:
            path.with_name("error").write_text(traceback.format_exc())
            return 1
    dist.destroy_process_group()
    return 0


def prepare(folder: Path) -> None:
    """Compose the algorithms, and import what PyTorch imports late, once for all ranks."""
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    for path in folder.glob("*/how.json"):
        how = json.loads(path.read_text())
        optim = load_experiment(path.with_name("config.yaml"), None).run.optim.name
        overrides = overrides_of("algo", {"name": how["algo"], **how["settings"]})
        experiment_of([*overrides, f"optim={optim}", f"nodes={RANKS}"])


def fork(folder: Path) -> None:
    """Run all ranks; the first one that fails ends the others."""
    ranks = set()
    for rank in range(RANKS):
        if (child := os.fork()) == 0:
            os._exit(main(folder, rank))
        ranks.add(child)
    while ranks:
        child, status = os.wait()
        ranks.remove(child)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    fork(Path(sys.argv[1]))
