"""Cost of a real step: gloo, 4 processes of one thread, a perceptron with 21 MB of parameters.

All libraries train the same model on the same batches with the same optimizer (SGD with momentum).
Our times are from complete runs of ``sgp-run``, read from their ``metrics.jsonl``. The other
libraries run in separate processes, which sleep during our runs. An equal number of untimed steps
precedes the timed steps. AR-SGD and DDP must end with the same loss. Our messages go through shared
memory, or over TCP in further runs (`network.shared_memory=false`). All-reduces and the other
libraries use TCP.

In the same turns, every process also trains alone with a plain PyTorch loop, and copies its
parameters, which shows the speed of memory. OSGP cannot be faster than SGP here, because there is
no transfer time to hide. While messages are in flight, the push-sum weights of OSGP are below one,
so OSGP also multiplies and divides the parameters by the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from statistics import mean
from tempfile import TemporaryDirectory

from benchmarks import rivals
from benchmarks.measure import REPEATS, Goal, Result, Table, interleaved, ratio
from benchmarks.processes import Ranks, rank_of_run
from sgp_runner.assembly.build import build_problem

OURS = {"AR-SGD": "algo=ar_sgd", "SGP": "algo=sgp", "OSGP": "algo=osgp"}
TCP = "network.shared_memory=false"
OVER_TCP = {f"{name} over TCP": f"{OURS[name]} {TCP}" for name in ("SGP", "OSGP")}
AVERAGER = "SGP by Averager"
PLAIN, COPY = "a plain loop, no messages", "a copy of the parameters"
THEIRS = {
    AVERAGER: (rivals.averager, "sgp_runner"),
    "DDP": (rivals.ddp, "torch"),
    "fairscale's SGP": (rivals.fairscale, "fairscale"),
    "decent-dp": (rivals.decent_dp, "decent_dp"),
}
GOALS: tuple[tuple[str, str, Goal | None], ...] = (
    ("AR-SGD", "DDP", Goal("at most", 0.95)),
    ("SGP", "DDP", Goal("at most", 0.75)),
    ("SGP", "fairscale's SGP", Goal("at most", 0.70)),
    ("SGP", "decent-dp", Goal("at most", 0.70)),
    ("OSGP", "SGP", Goal("at most", 1.0)),
    ("OSGP", "DDP", None),
    *((AVERAGER, other, None) for other in ("DDP", "decent-dp", "SGP")),
    *((name, other, None) for name in OVER_TCP for other in THEIRS if other != AVERAGER),
    ("OSGP over TCP", "SGP over TCP", None),
    *((name, other, None) for name in OURS for other in (PLAIN, COPY)),
)
COPIES = 100


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
        for name, algo in (OURS | OVER_TCP).items():
            turns[name] = partial(
                run, our_ranks, [*overrides, *algo.split(), f"results={folder}", "name=run"], steps
            )
        missing = [name for name, (_, package) in THEIRS.items() if find_spec(package) is None]
        for name, (make, _) in THEIRS.items():
            if name not in missing:
                turns[name] = partial(train, their_ranks, make, overrides, steps)
        turns[PLAIN] = partial(train, their_ranks, rivals.plain, overrides, steps)
        turns[COPY] = partial(copied, our_ranks, overrides)
        outcomes = interleaved(turns, repeats)
    check(outcomes["AR-SGD"][0]["loss"], outcomes["DDP"][0]["loss"])
    milliseconds = {
        name: tuple(1000 * turn["seconds"] for turn in outcome)
        for name, outcome in outcomes.items()
    }
    left_out = f" Not installed, and left out: {', '.join(missing)}." if missing else ""
    yield Table(
        "Time of a step",
        tuple(Result(name, "ms", values) for name, values in milliseconds.items()),
        left_out.strip(),
    )
    goals = [(us, them, goal) for us, them, goal in GOALS if them in milliseconds]
    yield Table(
        "Against each other",
        tuple(
            ratio(f"{us} / {them}", milliseconds[us], milliseconds[them], goal)
            for us, them, goal in goals
        ),
    )


def settings(steps: int, processes: int, hidden: int, batch_size: int) -> list[str]:
    """Return the settings of one epoch of ``2 * steps`` steps, recorded halfway and at the end."""
    return [
        *("model=mlp", f"model.hidden=[{hidden},{hidden}]", f"batch_size={batch_size}"),
        *(f"nodes={processes}", "network=gloo", "data=synthetic", "data.image_size=32"),
        f"data.size={2 * steps * processes * batch_size}",
        *("data.valid_size=4", "epochs=1", "optim.schedule=constant", "optim.lr=0.01"),
        *("resume=never", f"log_every={steps}", "logger=jsonl"),
    ]


def run(ranks: Ranks, overrides: list[str], steps: int) -> dict[str, float]:
    """Run ``sgp-run``; return the seconds per step and the last batch's loss, on rank 0."""
    [folder, *_] = ranks.call(rank_of_run, overrides)
    from sgp_runner.recording.recorder import read_metrics

    records = [
        record
        for record in read_metrics(folder)
        if record["kind"] == "train" and record["rank"] == 0
    ]
    times = {int(str(record["step"])): float(str(record["time_s"])) for record in records}
    losses = {int(str(record["step"])): float(str(record["loss"])) for record in records}
    return {
        "seconds": (times[2 * steps - 1] - times[steps - 1]) / steps,
        "loss": losses[2 * steps - 1],
    }


def train(
    ranks: Ranks, make: Callable[..., rivals.Step], overrides: list[str], steps: int
) -> dict[str, float]:
    """Train with another library; return the same values as `run`."""
    outcome: dict[str, float] = ranks.call(rivals.train, make, overrides, steps)[0]
    return outcome


def copied(ranks: Ranks, overrides: list[str]) -> dict[str, float]:
    """Copy the parameters in all processes at the same time; return their mean seconds."""
    return {"seconds": mean(ranks.call(copy_seconds, overrides))}


def copy_seconds(overrides: list[str]) -> float:
    """Copy the parameters several times in this rank; return the mean seconds per copy."""
    from sgp_runner.config.overrides import experiment_of

    start = build_problem(experiment_of(overrides).run).start()
    to = start.clone()
    before = time.monotonic()
    for _ in range(COPIES):
        to.copy_(start)
    return (time.monotonic() - before) / COPIES


def check(ours: float, theirs: float) -> None:
    if abs(ours - theirs) > 1e-4 * abs(theirs):
        raise RuntimeError(
            f"AR-SGD and DDP do not train the same: their losses are {ours} and {theirs}"
        )
