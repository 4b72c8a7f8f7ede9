"""Parts that train: speed against a plain loop, profile, host waits, compilation, checkpoints."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks import gpu, rivals
from benchmarks.ranks import OneRank, rank_of_run
from gpu_parts.sizes import REAL, Sizes

GOAL = 1.02  # times a step of the plain loop
TINY = ("model=mlp", "data=digits", "batch_size=8", "logger=jsonl", "resume=never")
WAITS = "called a synchronizing CUDA operation"  # PyTorch's warning
POSTPONED = " check_finite."  # checks of messages, made with a record or at the end
PROFILED = 3  # steps
ALGORITHMS = {
    **{name: () for name in ("ar_sgd", "d_psgd", "sgp", "osgp", "demo", "ef_sign", "acco")},
    "diloco": ("algo.period=3",),
    "streaming_diloco": ("algo.period=4", "algo.delay=2", "algo.codec=fp4"),
    "sparseloco": ("algo.period=3", "algo.codec.k=30"),
    "powersgd": ("algo.start=2",),
    "choco_sgd": ("algo.codec=top_k", "algo.codec.k=30", "algo.codec.side=32"),
}


def small(out: Path, device: str, *overrides: str) -> dict[str, object]:
    """Return the summary of a small simulated run."""
    from sgp_runner.assembly.execution import run_experiment
    from sgp_runner.config.overrides import experiment_of

    settings = ("nodes=4", "network=sim", f"network.device={device}", f"results={out / 'results'}")
    summary = run_experiment(experiment_of(["algo=sgp", *TINY, *settings, *overrides]))
    assert summary is not None
    return summary


def speed(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Time steps of an image model in both memory formats."""
    for layout, channels_last in gpu.LAYOUTS.items():
        overrides = images(sizes, sizes.steps, channels_last)
        note_times(seen, layout, overrides, sizes, sizes.batch_size)
    return verdict(seen)


def language(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Time steps of a GPT with AdamW."""
    note_times(seen, "gpt", text(sizes, sizes.steps), sizes, sizes.language_batch)
    return verdict(seen)


def note_times(
    seen: dict[str, Any], what: str, overrides: Sequence[str], sizes: Sizes, samples: int
) -> None:
    """Record the tables, the samples per second and the peak memory."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    times = gpu.step_times(overrides, sizes.repeats, sizes.steps)
    seen[what] = {
        "tables": [asdict(table) for table in gpu.tables("", times)],
        "samples_per_s": {name: samples / min(values) for name, values in times.items()},
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "mfu": mfu(overrides, samples, times["AR-SGD"]),
    }


def mfu(overrides: Sequence[str], samples: int, times: Sequence[float]) -> float | None:
    """Return the model FLOPs utilization; None if FLOPs or published rate are unknown."""
    from sgp_runner.assembly.build import build_problem
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.flops import flops_per_sample
    from sgp_runner.utils.devices import peak_flops

    peak = peak_flops("cuda:0", half=True)
    flops = flops_per_sample(build_problem(experiment_of([*overrides]).run), 0)
    return None if peak is None or flops is None else flops * samples / min(times) / peak


def verdict(seen: dict[str, Any]) -> str:
    """Return ``yes`` if all our median ratios are at most the goal, else ``no``."""
    ratios = [ratio for what in seen.values() for ratio in what["tables"][1]["results"]]
    medians = [sorted(ratio["values"])[len(ratio["values"]) // 2] for ratio in ratios]
    return "yes" if max(medians) <= GOAL else "no"


def images(sizes: Sizes, steps: int, channels_last: bool = True) -> list[str]:
    plain = gpu.settings(steps, sizes.batch_size, channels_last)
    return [*plain, *sizes.images]


def text(sizes: Sizes, steps: int) -> list[str]:
    batch = sizes.language_batch
    sizes_of_data = (f"batch_size={batch}", f"data.train_size={2 * steps * batch}")
    return [*sizes.language, *sizes_of_data, *gpu.on_one_node(steps), "optim.lr=1e-4"]


def profile(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Profile some steps of our loop and of the plain loop, for both models."""
    for what, overrides in {
        "images": images(sizes, PROFILED),
        "gpt": text(sizes, PROFILED),
    }.items():
        noted = seen.setdefault(what, {})
        with OneRank(), rivals.Resident().read():
            run = [*overrides, "algo=ar_sgd", f"results={out / 'results'}", "name=profiled"]
            with between_steps(PROFILED, 2 * PROFILED, partial(profiled, noted, "ours")):
                rank_of_run(run)
            around = partial(profiled, noted, "plain")
            rivals.train(rivals.plain, overrides, PROFILED, around=around)
    return "yes"


@contextmanager
def profiled(noted: dict[str, Any], name: str) -> Iterator[None]:
    """Record kernel launches, GPU busy time, gaps and the longest kernels inside the context."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    torch.cuda.synchronize()
    began = time.perf_counter()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    supported = torch.profiler.supported_activities()
    with torch.profiler.profile(
        activities=[activity for activity in activities if activity in supported]
    ) as run:
        yield
        torch.cuda.synchronize()
    ms = 1000 * (time.perf_counter() - began) / PROFILED
    events = run.events()
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    busy = sum(kernel.time_range.elapsed_us() for kernel in kernels) / 1000 / PROFILED
    by_name: Counter[str] = Counter()
    for kernel in kernels:
        by_name[kernel.name] += kernel.time_range.elapsed_us() / 1000 / PROFILED
    operators = sum(event.name.startswith("aten::") for event in events)
    noted[name] = {
        "ms": round(ms, 3),
        "kernels": len(kernels) / PROFILED,
        "operators": operators / PROFILED,
        "busy_ms": round(busy, 3),
        "gaps_ms": round(ms - busy, 3),
        "longest": {key[:100]: round(value, 3) for key, value in by_name.most_common(20)},
    }


@contextmanager
def between_steps(first: int, last: int, make: Any) -> Iterator[None]:
    """Enter a context before step ``first`` of a real run, and leave it after ``last - 1``."""
    from sgp_runner.distributed.rank import Rank

    start, end = Rank.start_of_step, Rank.end_of_step
    entered: list[Any] = []

    def start_of_step(self: Rank, worker: Any) -> None:
        start(self, worker)
        if worker.steps_taken == first and not entered:
            entered.append(make())
            entered[0].__enter__()

    def end_of_step(self: Rank, worker: Any) -> None:
        if worker.steps_taken == last and len(entered) == 1:
            entered[0].__exit__(None, None, None)
            entered.append(None)
        end(self, worker)

    with patch.multiple(Rank, start_of_step=start_of_step, end_of_step=end_of_step):
        yield
    assert len(entered) == 2, "the run had fewer steps"


def syncs(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Record where the host waits in steps of each algorithm; no step should wait."""
    for name, overrides in ALGORITHMS.items():
        shorter, longer = (
            waits(out, f"algo={name}", *overrides, f"epochs={epochs}", "log_every=1000")
            for epochs in (0.1, 0.2)
        )
        each_step = {
            place
            for place, count in longer.items()
            if count > shorter[place] and POSTPONED not in place
        }
        seen[name] = {"all": dict(longer), "in_steps": sorted(each_step)}
    return "no" if any(found["in_steps"] for found in seen.values()) else "yes"


def waits(out: Path, *overrides: str) -> Counter[str]:
    """Return how often the host waits for the GPU in a simulated run, by source line."""
    import torch

    counts: Counter[str] = Counter()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if WAITS in str(message):
            counts[place(sys._getframe(1))] += 1

    with warnings.catch_warnings(), patch.object(warnings, "showwarning", note):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            small(out, "cuda:0", *overrides, "name=waits")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return counts


def place(frame: FrameType | None) -> str:
    """Return the innermost frame inside the package, as file, line and function."""
    while frame is not None:
        _, package, path = frame.f_code.co_filename.rpartition("/sgp_runner/")
        if package:
            return f"{path}:{frame.f_lineno} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"


def compiled(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Record the time of a step and of a whole run, with and without torch.compile."""
    from benchmarks.step import run

    steps = max(2, sizes.steps // 2)
    with OneRank() as rank, rivals.Resident().read():
        for compiles in ("false", "true"):
            overrides = [*text(sizes, steps), "algo=ar_sgd", f"network.compile={compiles}"]
            began = time.perf_counter()
            outcome = run(rank, [*overrides, f"results={out / 'results'}", "name=compiled"], steps)
            whole = time.perf_counter() - began
            seen[f"compile={compiles}"] = {"ms": 1000 * outcome["seconds"], "run_s": whole}
    return "yes"


def snapshot(seen: dict[str, Any], out: Path, sizes: Sizes = REAL) -> str:
    """Record the seconds of each step around a checkpoint, and a resumed run's peak memory."""
    import torch

    from sgp_runner.recording.recorder import read_metrics

    batch, steps = 4, 8
    overrides = [
        *(*sizes.state, "algo=ar_sgd", "nodes=1", "epochs=1", f"batch_size={batch}"),
        *(f"data.train_size={steps * batch}", "checkpoint.every_steps=3", "log_every=1"),
        *(f"results={out / 'results'}", "name=saved", "optim.lr=1e-4", "logger=jsonl"),
    ]
    with OneRank(), kept_checkpoints(), rivals.Resident().read():
        torch.cuda.reset_peak_memory_stats()
        began = time.time()
        folder = rank_of_run(overrides)
        seen["peak_bytes"], seen["run_s"] = torch.cuda.max_memory_allocated(), time.time() - began
        saved = [*folder.glob("checkpoints/step-*")]
        seen["checkpoint_bytes"] = sum(path.stat().st_size for path in saved[-1].rglob("*"))
        seen["train"] = [
            {"step": record["step"], "real_s": record.get("real_s"), "time_s": record["time_s"]}
            for record in read_metrics(folder)
            if record["kind"] == "train"
        ]
        (folder / "summary.json").unlink()
        torch.cuda.reset_peak_memory_stats()
        began = time.time()
        rank_of_run(overrides)
        seen["resumed_peak_bytes"] = torch.cuda.max_memory_allocated()
        seen["resumed_run_s"] = time.time() - began
    return "yes"


@contextmanager
def kept_checkpoints() -> Iterator[None]:
    """Prevent finished runs from removing their checkpoints."""
    from sgp_runner.assembly import execution

    with patch.object(execution, "remove_checkpoints", lambda experiment, keeps: None):
        yield
