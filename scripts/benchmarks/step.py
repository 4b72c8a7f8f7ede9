"""Cost of a real step: gloo, 4 processes of one thread, a perceptron with 21 MB of parameters.

All libraries train the same model on the same batches with the same optimizer (SGD with momentum).
Our times are from complete runs of ``sgp-run``, read from their ``metrics.jsonl``. The other
libraries run in separate processes, which sleep during our runs; each runs with PyTorch's usual SGD
and with its fused kernel, which our SGD uses too. An equal number of untimed steps precedes the
timed steps. AR-SGD and DDP must end with the same loss. Our messages and all-reduces go through
shared memory, or over TCP in further runs (`network.shared_memory=false`). The other libraries use
TCP.

In the same turns, every process also trains alone with a plain PyTorch loop: no library can be
faster than this bound. OSGP cannot be faster than SGP here, because there is no transfer time to
hide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks import rivals
from benchmarks.measure import REPEATS, Result, Table, interleaved, ratio
from benchmarks.picture import Bar, bars
from benchmarks.ranks import OneRank, Ranks, rank_of_run
from sgp_runner.assembly.build import build_problem

TCP = "network.shared_memory=false"
OURS = {
    "SGP": "algo=sgp",
    "OSGP": "algo=osgp",
    "AR-SGD": "algo=ar_sgd",
    "SGP over TCP": f"algo=sgp {TCP}",
    "OSGP over TCP": f"algo=osgp {TCP}",
}
AVERAGER = "SGP by Averager"
PLAIN = "a plain loop, no messages"
FUSED = ", fused SGD"
THEIRS = {
    "DDP": (rivals.ddp, "torch"),
    "fairscale's SGP": (rivals.fairscale, "fairscale"),
    "decent-dp": (rivals.decent_dp, "decent_dp"),
}
DDP = f"DDP{FUSED}"
OUR_SGD, KERNEL = "our SGD", "PyTorch's SGD, fused"
GOALS = (
    ("SGP", DDP, 0.60),
    ("AR-SGD", DDP, 0.72),
    ("SGP over TCP", DDP, 0.90),
    ("OSGP", "SGP", 1.02),
    (AVERAGER, "SGP", 1.1),
    (OUR_SGD, KERNEL, 1.1),
)
UPDATES = 10


def measure(
    repeats: int = REPEATS,
    steps: int = 20,
    processes: int = 4,
    hidden: int = 1024,
    batch_size: int = 32,
) -> Iterator[Table]:
    overrides = settings(steps, processes, hidden, batch_size)
    with (
        TemporaryDirectory() as folder,
        Ranks(processes) as our_ranks,
        Ranks(processes) as their_ranks,
    ):
        turns: dict[str, Callable[[], Mapping[str, float]]] = {}
        for name, algo in OURS.items():
            turns[name] = partial(
                run, our_ranks, [*overrides, *algo.split(), f"results={folder}", "name=run"], steps
            )
        turns[AVERAGER] = partial(train, their_ranks, rivals.averager, overrides, steps, True)
        missing = [name for name, (_, package) in THEIRS.items() if find_spec(package) is None]
        makers = {name: make for name, (make, _) in THEIRS.items() if name not in missing}
        for name, make in {**makers, PLAIN: rivals.plain}.items():
            for end, fused in (("", False), (FUSED, True)):
                turns[f"{name}{end}"] = partial(train, their_ranks, make, overrides, steps, fused)
        updates = {
            what: partial(update, our_ranks, overrides, fused)
            for what, fused in ((OUR_SGD, None), ("PyTorch's SGD", False), (KERNEL, True))
        }
        outcomes = interleaved({**turns, **updates}, repeats)
    check(outcomes["AR-SGD"][0]["loss"], outcomes["DDP"][0]["loss"])
    times = {
        name: Result(name, "ms", tuple(1000 * turn["seconds"] for turn in outcome))
        for name, outcome in outcomes.items()
    }

    def over(us: str, them: str, goal: float | None = None) -> Result:
        return ratio(f"{us} / {them}", times[us].values, times[them].values, goal)

    left_out = f"Not installed, and left out: {', '.join(missing)}." if missing else ""
    yield Table("Time of a step", tuple(times[name] for name in turns), left_out)
    yield Table("Goals", tuple(over(*goal) for goal in GOALS))
    us, them = (*OURS, AVERAGER), [name for name in turns if name not in (*OURS, AVERAGER)]
    matrix = tuple(over(name, other) for name in us for other in them)
    yield Table("Our steps over the others", matrix, is_matrix=True)
    updating = tuple(times[name] for name in updates)
    yield Table("An update by SGD, without gradient and messages", updating)


def picture(table: Table) -> str:
    """Return the picture of the step times, with the better of a rival's two times."""
    medians = {result.what: result.median for result in table.results}

    def best(name: str) -> float:
        return min(medians[name], medians.get(f"{name}{FUSED}", medians[name]))

    ours = [Bar(name, medians[name], True) for name in (*OURS, AVERAGER)]
    theirs = [Bar(name, best(name), False) for name in THEIRS if name in medians]
    title = "A training step of 4 processes: shorter is faster"
    return bars(title, "ms", [*ours, *theirs], Bar("training without messages", best(PLAIN), False))


def settings(steps: int, processes: int, hidden: int, batch_size: int) -> list[str]:
    """Return the settings of one epoch of ``2 * steps`` steps, recorded halfway and at the end."""
    return [
        *("model=mlp", f"model.hidden=[{hidden},{hidden}]", f"batch_size={batch_size}"),
        *(f"nodes={processes}", "network=gloo", "data=synthetic", "data.image_size=32"),
        f"data.size={2 * steps * processes * batch_size}",
        *("data.valid_size=4", "epochs=1", "optim.schedule=constant", "optim.lr=0.01"),
        *("resume=never", f"log_every={steps}", "logger=jsonl"),
    ]


def run(ranks: Ranks | OneRank, overrides: list[str], steps: int) -> dict[str, float]:
    """Run ``sgp-run``; return the seconds per step and the last batch's loss, on rank 0."""
    [folder, *_] = ranks.call(rank_of_run, overrides)
    from sgp_runner.recording.recorder import read_metrics

    records = {
        int(str(record["step"])): record
        for record in read_metrics(folder)
        if record["kind"] == "train" and record["rank"] == 0
    }
    halfway, end = records[steps - 1], records[2 * steps - 1]
    seconds = float(str(end["time_s"])) - float(str(halfway["time_s"]))
    return {"seconds": seconds / steps, "loss": float(str(end["loss"]))}


def train(
    ranks: Ranks | OneRank,
    make: Callable[..., rivals.Step],
    overrides: list[str],
    steps: int,
    fused: bool = False,
) -> dict[str, float]:
    """Train with another library; return the same quantities as `run`."""
    outcome: dict[str, float] = ranks.call(rivals.train, make, overrides, steps, fused)[0]
    return outcome


def update(ranks: Ranks, overrides: list[str], fused: bool | None) -> dict[str, float]:
    """Update parameters in all processes simultaneously; return their mean seconds."""
    return {"seconds": mean(ranks.call(update_seconds, overrides, fused))}


def update_seconds(overrides: list[str], fused: bool | None) -> float:
    """Update the parameters several times in this rank; return the mean seconds.

    fused: PyTorch's SGD with or without its fused kernel; None: our SGD
    """
    import torch

    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.core.optim import local_step

    run = experiment_of(overrides).run
    problem, optim = build_problem(run), run.optim
    x = problem.start()
    gradients = [torch.full((size,), 1e-3) for size in problem.flat.layers]
    buffers, shapes = optim.buffers(x), problem.flat.shapes
    parameters = [part.clone().requires_grad_() for part in x.split_with_sizes(problem.flat.layers)]
    rates = {name: getattr(optim, name) for name in ("lr", "momentum", "nesterov", "weight_decay")}
    theirs = torch.optim.SGD(parameters, fused=fused or None, **rates)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient

    def once() -> None:
        if fused is not None:
            theirs.step()
            return
        for _ in local_step(optim, gradients, x, buffers, optim.lr, shapes)():
            pass

    once()
    before = time.monotonic()
    for _ in range(UPDATES):
        once()
    return (time.monotonic() - before) / UPDATES


def check(ours: float, theirs: float) -> None:
    if abs(ours - theirs) > 1e-4 * abs(theirs):
        raise RuntimeError(
            f"AR-SGD and DDP do not train the same: their losses are {ours} and {theirs}"
        )
