"""Isolated measurements on the GPU: codecs, and gradients of simulated workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_parts.sizes import REAL, Sizes

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.codecs.codec import Codec
    from sgp_runner.core.optim.optimizer import Shapes
    from sgp_runner.core.problem import Problem

DEVICE = "cuda:0"
TIMES = 3  # a piece is timed, after a first time


def codecs(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Time each codec, and record its memory per number, in addition to vector and message."""
    import torch

    from sgp_runner.core.codecs.low_rank import LowRank
    from sgp_runner.core.codecs.quantised import FP4, Int8, Sign, TwoBit
    from sgp_runner.core.codecs.top_k import TopK

    for count in sizes.codec:
        rows = sizes.rows
        columns = min(4 * rows, count // rows)
        shapes = {f"weight{i}": (rows, columns) for i in range(count // (rows * columns))}
        size = len(shapes) * rows * columns
        x = torch.linspace(-1, 1, size, device=DEVICE)
        for codec in (Int8(), FP4(), TwoBit(), Sign(), TopK(), LowRank()):
            noted = seen.setdefault(codec.name, {}).setdefault(str(size), {})
            try:
                code(codec, x, shapes, noted)
            except torch.OutOfMemoryError as error:
                noted["error"] = str(error)[:200]
    return "yes"


def code(codec: Codec, x: Tensor, shapes: Shapes, noted: dict[str, Any]) -> None:
    """Record the time and memory of a codec for a vector with these shapes."""
    checks: list[Any] = []
    message = codec.encode(x, shapes, 0, checks.append)
    noted["bytes_of_message"] = message.nbytes
    noted["encode"] = timed(lambda: codec.encode(x, shapes, 0, checks.append), x.numel())
    noted["decode"] = timed(lambda: codec.decode(message, shapes, x, 0), x.numel())


def timed(work: Callable[[], Any], size: int) -> dict[str, float]:
    """Return the milliseconds of ``work`` and the bytes that it needs per element."""
    import torch

    work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(TIMES):
        work()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / TIMES
    peak = torch.cuda.max_memory_allocated() - before
    return {"ms": round(1000 * seconds, 3), "peak_bytes_each": round(peak / size, 2)}


def workers(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Record how many gradients of simulated workers the GPU computes per second."""
    language = ("model=gpt", "data.train_size=4096", "data.valid_size=1")
    for name, overrides in {"mlp": ("model=mlp",), "gpt": language}.items():
        for width in sizes.widths:
            noted = seen.setdefault(name, {}).setdefault(str(width), {})
            for engine in ("vmap", "loop"):
                noted[engine] = gradients_per_second(overrides, width, engine, 8)
    for width in sizes.many:
        overrides = (*sizes.images, f"data.size={8 * width * 32}", "data.valid_size=4")
        noted = seen.setdefault("images", {}).setdefault(str(width), {})
        noted["loop"] = gradients_per_second(overrides, width, "loop", min(32, sizes.batch_size))
    return "yes"


def gradients_per_second(
    overrides: tuple[str, ...], width: int, engine: str, batch_size: int
) -> float:
    """Return the rate of ``width`` workers with their batches on the GPU."""
    import torch

    from benchmarks.rivals import Resident
    from sgp_runner.assembly.build import build_problem
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.problem import Compute

    more = (f"nodes={width}", f"batch_size={batch_size}", "logger=jsonl", "resume=never")
    run = experiment_of(["algo=sgp", *overrides, *more]).run
    problem = build_problem(run, Compute(DEVICE, "bf16"))
    with Resident(count=1).read():
        compute_all(problem, width, engine)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(TIMES):
            compute_all(problem, width, engine)
        torch.cuda.synchronize()
    return round(TIMES * width / (time.perf_counter() - began), 1)


def compute_all(problem: Problem, width: int, engine: str) -> None:
    """Compute a gradient for each of ``width`` workers."""
    from sgp_runner.simulator.engine import Gradient, Loop, Vmap

    x = problem.start()
    gradients = [
        Gradient(rank, 0, x.clone(), problem.flat.fresh_buffers()) for rank in range(width)
    ]
    if engine == "vmap":
        Vmap(problem, width).compute(gradients)
        return
    loop = Loop(problem)
    for gradient in gradients:
        loop.finish(gradient)
