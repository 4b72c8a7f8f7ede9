"""Templates of the files that ``sgp-run export`` writes; ``@NAME@`` is a placeholder."""

from __future__ import annotations

from dataclasses import dataclass

SCRIPT = '''"""@TITLE@ for @LOOP@, with the settings of @SOURCE@.

@USE@

The run had @NODES@ nodes with batches of @BATCH@ and the schedule @SCHEDULE@; its gradients
were @CLIP@. Start a script with: torchrun --nproc-per-node=@NODES@ SCRIPT
"""

import torch
@IMPORTS@

ALGO = @ALGO@
SETTINGS = @SETTINGS@


def optimizer_of(model):
    """Return the optimizer of the run, at its highest learning rate."""
@OPTIMIZER@


@FACTORY@
'''

TEST = '''"""Checks @MODULE@.py on @SIZE@ ranks: python -m pytest test_@MODULE@.py"""

import os
import subprocess
import sys
from pathlib import Path

import torch
from @MODULE@ import *  # noqa: F403
from torch import nn

STEPS, BATCH, SIZE = 20, 4, @SIZE@


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
inputs = torch.randn(STEPS * BATCH * SIZE, 5)
points = [{"x": x, "labels": x[:3].argmax()} for x in inputs]
batches = torch.utils.data.DataLoader(points, BATCH)


@TRAIN@


def main(folder):
    model = Net()
    train(model, folder)
    torch.save(model.state_dict(), Path(folder, f"model{os.environ['RANK']}.pt"))


def test_all_ranks_end_with_one_trained_model(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={SIZE}", __file__, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, *others = [torch.load(tmp_path / f"model{rank}.pt") for rank in range(SIZE)]
    torch.manual_seed(0)
    for name, value in first.items():
        assert torch.isfinite(value).all()
        assert all(torch.equal(value, other[name]) for other in others)


if __name__ == "__main__":
    main(sys.argv[1])
'''

OPTIMIZERS = {
    "sgd": """\
    return torch.optim.SGD(
        model.parameters(),
        lr={lr:g},
        momentum={momentum!r},
        nesterov={nesterov!r},
        weight_decay={weight_decay!r},
    )""",
    "adam": """\
    return torch.optim.Adam(
        model.parameters(),
        lr={lr:g},
        betas=({beta1!r}, {beta2!r}),
        eps={eps!r},
        weight_decay={weight_decay!r},
    )""",
    "adamw": """\
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {{"params": others, "weight_decay": 0.0}},
        {{"params": matrices, "weight_decay": {weight_decay!r}}},
    ]
    return torch.optim.AdamW(groups, lr={lr:g}, betas=({beta1!r}, {beta2!r}), eps={eps!r})""",
}


@dataclass(frozen=True)
class LoopTexts:
    """Texts for one kind of training loop.

    title: its name. use: lines of a script with the file. imports, factory: lines of the file
    train: lines of the test
    """

    title: str
    use: str
    imports: str
    factory: str
    train: str


HOSTS = {
    "ddp": LoopTexts(
        "DistributedDataParallel",
        """\
    averager = averager_of(model, optimizer)  # the model is in DistributedDataParallel
    averager.step()  # instead of optimizer.step()
    averager.finish()  # at the end""",
        "from sgp_runner import Averager",
        '''\
def averager_of(model, optimizer, steps=None, **settings):
    """Return the averager of a model; ``settings`` replace those above."""
    return Averager(ALGO, model, optimizer, steps=steps, **{**SETTINGS, **settings})''',
        """\
def train(model, folder):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(model)
    averager = averager_of(model, optimizer_of(model), steps=STEPS)  # noqa: F405
    for batch in list(batches)[rank::SIZE]:
        model(**batch)["loss"].backward()
        averager.step()
    averager.finish()""",
    ),
    "accelerate": LoopTexts(
        "accelerate",
        """\
    averager = averager_of(accelerator, model, optimizer)  # of accelerator.prepare
    averager.finish()  # at the end; optimizer.step() stays""",
        "from sgp_runner.hosts import with_accelerate",
        '''\
def averager_of(accelerator, model, optimizer, steps=None, **settings):
    """Return the averager of a prepared model; ``settings`` replace those above."""
    settings = {**SETTINGS, **settings}
    return with_accelerate.averager_of(
        accelerator, model, optimizer, ALGO, steps=steps, **settings
    )''',
        """\
def train(model, folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, data = accelerator.prepare(model, optimizer_of(model), batches)  # noqa: F405
    averager = averager_of(accelerator, model, optimizer, steps=STEPS)  # noqa: F405
    for batch in data:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    averager.finish()""",
    ),
    "trainer": LoopTexts(
        "the Trainer of transformers",
        """\
    trainer = Trainer(..., optimizers=(optimizer_of(model), None))
    trainer.add_callback(callback_of(trainer))""",
        "from sgp_runner.hosts.with_trainer import AveragingCallback",
        '''\
def callback_of(trainer, **settings):
    """Return the callback of a trainer; ``settings`` replace those above."""
    return AveragingCallback(trainer, ALGO, **{**SETTINGS, **settings})''',
        """\
def train(model, folder):
    from transformers import Trainer, TrainingArguments

    options = {"use_cpu": True, "save_strategy": "no", "report_to": "none"}
    arguments = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=BATCH, **options
    )
    optimizers = (optimizer_of(model), None)  # noqa: F405
    trainer = Trainer(model, arguments, train_dataset=points, optimizers=optimizers)
    trainer.add_callback(callback_of(trainer))  # noqa: F405
    trainer.train()""",
    ),
    "lightning": LoopTexts(
        "Lightning",
        """\
    trainer = Trainer(strategy=strategy_of(), ...)
    # and in the module: def configure_optimizers(self): return optimizer_of(self)""",
        "from sgp_runner.hosts.with_lightning import AveragingStrategy",
        '''\
def strategy_of(**settings):
    """Return the strategy of a trainer; ``settings`` replace those above."""
    return AveragingStrategy(ALGO, **{**SETTINGS, **settings})''',
        """\
def train(model, folder):
    from lightning import pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model

        def training_step(self, batch, number):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return optimizer_of(self)  # noqa: F405

    options = {"accelerator": "cpu", "devices": SIZE, "max_steps": STEPS}
    options |= {"logger": False, "enable_checkpointing": False}
    trainer = pl.Trainer(strategy=strategy_of(), **options)  # noqa: F405
    trainer.fit(Module(), batches)""",
    ),
}
