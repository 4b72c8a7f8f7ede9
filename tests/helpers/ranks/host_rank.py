"""Ranks of the training loop of a library, and of a plain loop on the same batches.

``host_rank.py LIBRARY FOLDER SIZE``: for each of `VARIANTS`, the library's loop saves a checkpoint
at `HALF` of its `STEPS` and another loop continues from there; a third loop is plain PyTorch. Rank
R leaves what it had in ``VARIANT_R.pt``. Then the script of the library's page runs, if the folder
has it. Then comes a loop whose rank 1 hangs, and last one whose rank 1 ends early, of which the
other ranks leave the error.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from sgp_runner import Averager
from sgp_runner.api import step_counts
from sgp_runner.api.roll_call import RollCall
from sgp_runner.utils.torchvision_import import import_torchvision

STEPS, HALF, BATCH = 20, 10, 4
LOST = 9  # exit code of the rank that ends early
#: Variant -> algorithm and settings
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "local_sgd": ("local_sgd", {"tau": 3}),
    "diloco": ("diloco", {"period": 3}),
}
AT = 5  # the step at which rank 1 is lost or hangs: the last of a period of local SGD


class Net(nn.Module):
    """A network on float64 inputs [B, 5] with three classes, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.double()
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append((x.clone(), labels.clone()))
        logits = self.last(torch.tanh(self.norm(self.first(x))))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """``count`` points of a fixed seed."""

    def __init__(self, count: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 5, generator=random, dtype=torch.float64)
        self.labels = (self.x[:, :3] + self.x[:, 2:]).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


def optimizer_of(name: str, model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=0.02)
        if name == "diloco"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def train_data(size: int) -> Points:
    """Return the points of two epochs."""
    return Points(HALF * BATCH * size, seed=1)


def valid_data(size: int) -> Points:
    return Points(BATCH * size, seed=2)


def local(averager: Averager | None) -> torch.Tensor:
    assert averager is not None
    return averager.runtime.worker.params.clone()


def plain(name: str, seen: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
    """Train on the batches that a library's loop has seen."""
    algo, settings = VARIANTS[name]
    model = Net()
    optimizer, schedule = optimizer_of(name, model)
    averager = Averager(algo, model, optimizer, steps=STEPS, **settings)
    result: dict[str, Any] = {}
    for step, (x, labels) in enumerate(seen):
        if step == HALF:
            result["half"] = local(averager)
            with averager.average():  # of DiLoCo, the mean of the outer parameters
                result["half_mean"] = nn.utils.parameters_to_vector(model.parameters()).detach()
        model(x, labels)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        averager.step()
        schedule.step()
    averager.finish()
    return {**result, "plain": local(averager)}


def accelerate(
    name: str, folder: Path, resumes: bool, act: Callable[[int], object]
) -> dict[str, Any]:
    from accelerate import Accelerator

    from sgp_runner.hosts.with_accelerate import averager_of

    size = dist.get_world_size()
    algo, settings = VARIANTS[name]
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    inner = Net()
    data = torch.utils.data.DataLoader(train_data(size), BATCH)
    valid = torch.utils.data.DataLoader(valid_data(size), BATCH)
    model, optimizer, schedule, data, valid = accelerator.prepare(
        inner, *optimizer_of(name, inner), data, valid
    )
    averager = averager_of(accelerator, model, optimizer, algo, steps=STEPS, **settings)
    if resumes:
        accelerator.load_state(str(folder / "checkpoint"))
    losses = []
    epochs = [data] if resumes else [data, data]
    for step, batch in enumerate(chain.from_iterable(epochs), HALF if resumes else 0):
        act(step)
        accelerator.backward(model(**batch)["loss"])
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step + 1 == HALF:
            accelerator.save_state(str(folder / "checkpoint"))
            model.eval()
            with averager.average(), torch.no_grad():
                (points,) = valid
                found = accelerator.gather(model(**points)["loss"].reshape(1))
                losses.append(float(found.mean()))
            model.train()
    averager.finish()
    accelerator.free_memory()
    return {"params": local(averager), "seen": inner.seen, "valid": losses}


def trainer(name: str, folder: Path, resumes: bool, act: Callable[[int], object]) -> dict[str, Any]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sgp_runner.hosts.with_trainer import AveragingCallback

    class Acts(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            act(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == STEPS:  # before the trainer loads its best model
                result["params"] = local(callback.averager)

    size = dist.get_world_size()
    algo, settings = VARIANTS[name]
    inner, result = Net(), {}
    made = Trainer(
        inner,
        TrainingArguments(
            str(folder / "trainer"),
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            max_steps=STEPS,
            eval_strategy="steps",
            eval_steps=HALF,
            save_steps=HALF,
            logging_steps=5,
            report_to="none",
            ddp_find_unused_parameters=False,  # else DDP waits for all ranks in each backward pass
            load_best_model_at_end=name == "diloco",
            metric_for_best_model="loss",
        ),
        train_dataset=train_data(size),
        eval_dataset=valid_data(size),
        optimizers=optimizer_of(name, inner),
        callbacks=[Acts()],
    )
    callback = AveragingCallback(made, algo, **settings)
    made.add_callback(callback)
    made.train(
        resume_from_checkpoint=str(folder / f"trainer/checkpoint-{HALF}") if resumes else None
    )
    valid = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    best = made.state.best_model_checkpoint
    return {
        **result,
        "seen": inner.seen,
        "valid": valid,
        "losses": losses,
        "best": best and Path(best).name,
        "end": {key: value.clone() for key, value in inner.state_dict().items()},
    }


def lightning(
    name: str, folder: Path, resumes: bool, act: Callable[[int], object]
) -> dict[str, Any]:
    from lightning import pytorch as pl

    from sgp_runner.hosts.with_lightning import AveragingStrategy

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            act(self.global_step)
            loss = self.net(**batch)["loss"]
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("valid", self.net(**batch)["loss"], sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer, schedule = optimizer_of(name, self)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Losses(pl.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.valid: list[float] = []

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            if not trainer.sanity_checking:
                self.valid.append(float(trainer.callback_metrics["valid"]))

    size = dist.get_world_size()
    algo, settings = VARIANTS[name]
    strategy, module, losses = AveragingStrategy(algo, **settings), Module(), Losses()
    saves = pl.callbacks.ModelCheckpoint(folder / "lightning", "{step}", save_top_k=-1)
    made = pl.Trainer(
        accelerator="cpu",
        devices=size,
        strategy=strategy,
        max_steps=STEPS,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        logger=pl.loggers.CSVLogger(folder / "logs"),
        callbacks=[losses, saves],
        enable_model_summary=False,
    )
    points = train_data(size)  # in the same order after a resume
    sampler = torch.utils.data.distributed.DistributedSampler(points, shuffle=False)
    data = torch.utils.data.DataLoader(points, BATCH, sampler=sampler)
    valid = torch.utils.data.DataLoader(valid_data(size), BATCH)
    path = str(folder / f"lightning/step={HALF}.ckpt") if resumes else None
    made.fit(module, data, valid, ckpt_path=path)
    end = {key: value.clone() for key, value in module.net.state_dict().items()}
    return {
        "params": local(strategy.averager),
        "seen": module.net.seen,
        "valid": losses.valid,
        "end": end,
    }


LOOPS = {"accelerate": accelerate, "trainer": trainer, "lightning": lightning}
MODULES = {
    "accelerate": ("accelerate", "sgp_runner.hosts.with_accelerate"),
    "trainer": ("transformers", "transformers.trainer", "sgp_runner.hosts.with_trainer"),
    "lightning": ("lightning.pytorch", "sgp_runner.hosts.with_lightning"),
}


def compare(library: str, folder: Path, rank: int) -> None:
    """Run the library's loop, the one that continues it, and the plain one, for each variant."""
    for name in VARIANTS:
        subfolder = folder / name
        result = LOOPS[library](name, subfolder, False, lambda step: None)
        again = LOOPS[library](name, subfolder, True, lambda step: None)
        result |= {"resumed": again["params"], "resumed_valid": again["valid"]}
        seen = [batch for batch in result.pop("seen") if len(batch[0])]
        torch.save({**result, **plain(name, seen)}, folder / f"{name}_{rank}.pt")


def lose(library: str, folder: Path, rank: int) -> None:
    """Run the library's loop until rank 1 ends, and leave the error of the others."""

    def act(step: int) -> None:
        if rank == 1 and step == AT:
            os._exit(LOST)

    try:
        LOOPS[library]("local_sgd", folder / "lost", False, act)
    except Exception as error:
        (folder / f"lost_{rank}").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)


def hang(library: str, folder: Path, rank: int) -> None:
    """Run the library's loop until rank 1 hangs, and leave the error of all ranks."""
    (hung, at_hang), (ended, until_end) = PIPES
    os.close(hung if rank == 1 else at_hang)
    os.close(until_end if rank == 1 else ended)
    made = []

    class Noted(RollCall):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    def act(step: int) -> None:
        if rank == 1 and step == AT:
            os.close(at_hang)
            os.read(ended, 1)  # until the others have ended
        elif step == AT:
            os.read(hung, 1)
            made[0].limit = 0.01

    step_counts.RollCall = Noted  # type: ignore[misc]
    try:
        LOOPS[library]("local_sgd", folder / "hung", False, act)
    except Exception as error:
        (folder / f"hung_{rank}").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)


def page(library: str, folder: Path, rank: int) -> None:
    """Run the script of the library's page, and leave what it prints."""
    os.chdir(folder)
    if not Path("train.py").is_file():
        return
    with open(f"printed_{rank}", "w") as file, redirect_stdout(file), redirect_stderr(file):
        sys.argv = ["train.py"]
        runpy.run_path("train.py", run_name="__main__")


def rank_of(
    act: Callable[[str, Path, int], None], library: str, folder: Path, rank: int, size: int
) -> int:
    """Run a rank that a launcher could have started."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",  # not used: there is a process group
        "TORCHELASTIC_RUN_ID": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    try:
        store = dist.FileStore(str(folder / f"store {act.__name__}"), size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        act(library, folder, rank)
    except BaseException:
        (folder / f"error {act.__name__} {rank}").write_text(traceback.format_exc())
        return 1
    return 0


def fork(act: Callable[[str, Path, int], None], library: str, folder: Path, size: int) -> None:
    """Run all ranks; the first one that fails ends the others."""
    ranks = set()
    for rank in range(size):
        if (child := os.fork()) == 0:
            os._exit(rank_of(act, library, folder, rank, size))
        ranks.add(child)
    for end in chain(*PIPES) if act is hang else ():
        os.close(end)
    while ranks:
        child, status = os.wait()
        ranks.remove(child)
        if status and os.waitstatus_to_exitcode(status) != LOST:
            for other in ranks:
                os.kill(other, 9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_torchvision("host")
    for module in MODULES[sys.argv[1]]:
        import_module(module)
    PIPES = os.pipe(), os.pipe()
    for act in (compare, page, hang, lose):
        fork(act, sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
