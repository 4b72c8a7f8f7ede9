"""A step of SGP in the training loops of other libraries, next to DistributedDataParallel (DDP).

Two gloo processes with a thread each train one network on batches of 16: 2.1M parameters, float32,
SGD with momentum. A turn is the median of its steps after the first five, on the slower process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.measure import Result, Skipped, Table, interleaved, ratio
from benchmarks.ranks import Ranks

BATCH, WIDTH, RANKS, WARM_UP, DDP = 16, 1024, 2, 5, "DDP in a plain loop"


def measure(steps: int = 40, repeats: int = 5) -> Iterator[Table]:
    for library in ("accelerate", "transformers", "lightning"):
        if find_spec(library) is None:
            raise Skipped(f"{library} is not installed: pip install 'sgp-runner[hosts]'.")
    with Ranks(RANKS) as ranks:
        turns = interleaved(
            {name: partial(ranks.call, train, name, steps) for name in LOOPS}, repeats
        )
    times = {name: tuple(map(max, ranks)) for name, ranks in turns.items()}
    yield Table("Time of a step", tuple(Result(name, "ms", ms) for name, ms in times.items()))
    ratios = (ratio(f"{name} / DDP", ms, times[DDP]) for name, ms in times.items())
    yield Table("Ratios", tuple(ratios)[1:])


def train(loop: str, steps: int) -> float:
    """Train as a rank in one of `LOOPS`; return the milliseconds per step."""
    import torch
    from torch import nn

    from sgp_runner.utils.torchvision_import import import_torchvision

    class Net(nn.Sequential):
        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            begun.append(time.monotonic())
            logits = super().forward(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    import_torchvision("bench")  # before transformers, if its wheel is for another torch
    os.environ["TORCHELASTIC_RUN_ID"] = "bench"  # as torchrun does, for Lightning
    if not torch.distributed.is_initialized():  # the libraries expect it to stay
        torch.distributed.init_process_group("gloo")
    begun: list[float] = []
    layers = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
    net = Net(*layers, nn.Linear(WIDTH, 10))
    points: Any = [
        {"x": x, "labels": x[:10].argmax()} for x in torch.randn(RANKS * steps * BATCH, WIDTH)
    ]
    data: Any = torch.utils.data.DataLoader(points, BATCH)
    LOOPS[loop](net, torch.optim.SGD(net.parameters(), 0.01, 0.9), data, steps)
    return 1000 * median(after - before for before, after in pairwise(begun[WARM_UP:]))


def go(model: Any, optimizer: Any, data: Any, backward: Any = lambda loss: loss.backward()) -> None:
    for batch in data:
        backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def plain(net: Any, optimizer: Any, data: Any, steps: int, algo: str | None = None) -> None:
    from torch.nn.parallel import DistributedDataParallel

    from sgp_runner import Averager

    model = DistributedDataParallel(net)
    shard = type(data)(data.dataset[int(os.environ["RANK"]) :: RANKS], BATCH)
    if algo is None:
        return go(model, optimizer, shard)
    with Averager(algo, model, optimizer) as averager:
        go(model, averager, shard)


def accelerate(net: Any, optimizer: Any, data: Any, steps: int) -> None:
    from accelerate import Accelerator

    from sgp_runner.hosts.with_accelerate import averager_of

    accelerator = Accelerator(cpu=True)
    model, optimizer, data = accelerator.prepare(net, optimizer, data)
    with averager_of(accelerator, model, optimizer, "sgp"):
        go(model, optimizer, data, accelerator.backward)
    accelerator.free_memory()


def trainer(net: Any, optimizer: Any, data: Any, steps: int) -> None:
    from transformers import Trainer, TrainingArguments

    from sgp_runner.hosts.with_trainer import AveragingCallback

    options: dict[str, Any] = {
        **{"max_steps": steps, "per_device_train_batch_size": BATCH, "use_cpu": True},
        **{"save_strategy": "no", "logging_strategy": "no", "report_to": "none"},
        **{"disable_tqdm": True, "ddp_find_unused_parameters": False},
    }
    arguments = TrainingArguments("unused", **options)
    loop = Trainer(net, arguments, train_dataset=data.dataset, optimizers=(optimizer, None))
    loop.add_callback(AveragingCallback(loop, "sgp"))
    loop.train()


def lightning(net: Any, optimizer: Any, data: Any, steps: int) -> None:
    from lightning import pytorch as pl

    from sgp_runner.hosts.with_lightning import AveragingStrategy

    class Module(pl.LightningModule):  # type: ignore[misc]  # Any, where it is not installed
        def configure_optimizers(self) -> Any:
            return optimizer

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(**batch)["loss"]

    module = Module()
    module.net = net
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = {**dict.fromkeys(quiet, False), "max_steps": steps, "devices": RANKS}
    pl.Trainer(accelerator="cpu", strategy=AveragingStrategy("sgp"), **options).fit(module, data)


LOOPS = {
    DDP: plain,
    "Averager in a plain loop": partial(plain, algo="sgp"),
    "accelerate": accelerate,
    "Trainer": trainer,
    "Lightning": lightning,
}
