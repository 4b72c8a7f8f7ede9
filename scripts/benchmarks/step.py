"""Cost of a real step: gloo, 4 processes of one thread, a perceptron with 21 MB of parameters.

All train the same model on the same batches with the same optimizer (SGD with momentum). Ours are
complete runs of ``sgp-run``, timed by their ``metrics.jsonl``; the other libraries run in processes
of their own, which sleep meanwhile. As many steps come before the timed ones. AR-SGD and DDP must
end with the same loss. Messages go through shared memory, and beside that over TCP
(`network.shared_memory=false`); all-reduces and the other libraries use TCP.

In the same turns, every process trains by itself with a plain loop of PyTorch, and copies its
parameters. There are more processes than cores, so a step takes at least the processor time of its
parts, which are also measured alone. OSGP has nothing to gain here: there is no wire whose time it
could hide, and while its messages are on their way its push-sum weights are below one, by which it
multiplies and divides its parameters.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from types import FrameType

from benchmarks import least, rivals
from benchmarks.hosts import Hosts
from benchmarks.measure import REPEATS, Goal, Result, Skipped, Table, interleaved, ratio
from benchmarks.ranks import Ranks

OURS = {"AR-SGD": "algo=ar_sgd", "SGP": "algo=sgp", "OSGP": "algo=osgp"}
TCP = "network.shared_memory=false"
OVER_TCP = {f"{name} over TCP": f"{OURS[name]} {TCP}" for name in ("SGP", "OSGP")}
PLAIN, COPY = "a plain loop, no messages", "a copy of the parameters"
THEIRS = {
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
    *((name, other, None) for name in OVER_TCP for other in THEIRS),
    ("OSGP over TCP", "SGP over TCP", None),
    *((name, other, None) for name in OURS for other in (PLAIN, COPY)),
)
ACROSS = (("SGP", "DDP"), ("OSGP", "DDP"), ("AR-SGD", "DDP"), ("OSGP", "SGP"))
OVERLAP = "Its all-reduce is part of the backward pass, and so of the computation."
# Parts of a step by file and function, the innermost first.
PARTS = {
    "compute": ("sgp_runner/core/problem.py:backward", "sgp_runner/core/flat.py:take_"),
    "update": ("sgp_runner/core/optim/sgd.py:direction",),
    "send": ("sgp_runner/distributed/gloo_transport.py:send",),
    "wait": (
        "sgp_runner/core/scheduler.py:advance",
        "sgp_runner/distributed/gloo_transport.py:finish",
    ),
    "mix": ("sgp_runner/algorithms/", "sgp_runner/core/gossip.py", "sgp_runner/core/push_sum.py"),
    "the rest": (),
}


def measure(
    repeats: int = REPEATS,
    steps: int = 20,
    processes: int = 4,
    hidden: int = 1024,
    batch_size: int = 32,
) -> Iterator[Table]:
    words = settings(steps, processes, hidden, batch_size)
    with (
        TemporaryDirectory() as folder,
        Ranks(processes) as our_ranks,
        Ranks(processes) as their_ranks,
    ):
        turns: dict[str, Callable[[], Mapping[str, float]]] = {}
        for name, algo in (OURS | OVER_TCP).items():
            turns[name] = partial(
                run, our_ranks, [*words, *algo.split(), f"results={folder}", "name=run"], steps
            )
        missing = [name for name, (_, package) in THEIRS.items() if find_spec(package) is None]
        for name, (make, _) in THEIRS.items():
            if name not in missing:
                turns[name] = partial(train, their_ranks, make, words, steps)
        turns[PLAIN] = partial(train, their_ranks, rivals.plain, words, steps)
        turns[COPY] = partial(copied, our_ranks, words)
        outcomes = interleaved(turns, repeats)
        shares = {
            name: [
                profiled(our_ranks, [*words, algo, f"results={folder}", "name=run"])
                for _ in range(repeats)
            ]
            for name, algo in OURS.items()
        }
        alone = [our_ranks.call(least.parts, words) for _ in range(repeats)]
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
    for name, profiles in shares.items():
        parts = tuple(
            Result(part, "%", tuple(100 * share[part] for share in profiles)) for part in PARTS
        )
        yield Table(f"Where {name} spends a step", parts, OVERLAP if name == "AR-SGD" else "")
    yield bound(alone, processes)
    yield traffic(alone)
    goals = [(us, them, goal) for us, them, goal in GOALS if them in milliseconds]
    yield Table(
        "Against each other",
        tuple(
            ratio(f"{us} / {them}", milliseconds[us], milliseconds[them], goal)
            for us, them, goal in goals
        ),
    )
    yield across_hosts(repeats, steps, processes, words)


def bound(turns: Sequence[Sequence[Mapping[str, float]]], processes: int) -> Table:
    """The lower bound of a step from the processor times of its parts, by turn and rank."""
    cores = min(os.cpu_count() or 1, processes)
    means = [
        {part: mean(1000 * rank[part] for rank in ranks) for part in ranks[0] if part != least.COPY}
        for ranks in turns
    ]
    results = [Result(part, "ms", tuple(each[part] for each in means)) for part in means[0]]
    whole = tuple(sum(each.values()) * processes / cores for each in means)
    results.append(Result(f"{processes} processes on {cores} cores", "ms", whole))
    return Table(
        "What a step of SGP costs at least",
        tuple(results),
        "Processor time of each part alone, without gloo and without waiting.",
    )


def traffic(turns: Sequence[Sequence[Mapping[str, float]]]) -> Table:
    """How near the parts that only move memory are to the speed at which it is copied."""
    results = []
    for part in (least.STEP, least.ADD):
        shares = tuple(
            mean(
                (rank[least.COPY] / least.MOVED[least.COPY]) / (rank[part] / least.MOVED[part])
                for rank in ranks
            )
            for ranks in turns
        )
        what = f"{part}, {least.MOVED[part]} vectors"
        results.append(Result(what, "%", tuple(100 * share for share in shares)))
    return Table(
        "Bytes moved, over the bandwidth of a copy",
        tuple(results),
        "100 % is as fast as memory is copied by all processes at once. A vector has the length of "
        "the parameters; those that a processor reads to overwrite them count too. The share stays "
        "below 100 % where the arithmetic in the cache takes longer.",
    )


def across_hosts(repeats: int, steps: int, processes: int, words: list[str]) -> Table:
    """Steps of processes on virtual hosts, between which no memory can be shared."""
    title = "Across hosts"
    try:
        with (
            TemporaryDirectory() as folder,
            Hosts(processes) as hosts,
            Ranks(processes, hosts) as our_ranks,
            Ranks(processes, hosts) as their_ranks,
        ):
            turns: dict[str, Callable[[], Mapping[str, float]]] = {
                name: partial(
                    run, our_ranks, [*words, algo, TCP, f"results={folder}", "name=run"], steps
                )
                for name, algo in OURS.items()
            }
            for name, make in (("DDP", rivals.ddp), (PLAIN, rivals.plain)):
                turns[name] = partial(train, their_ranks, make, words, steps)
            turns[COPY] = partial(copied, our_ranks, words)
            outcomes = interleaved(turns, repeats)
    except Skipped as reason:
        return Table(title, text=str(reason))
    times = {
        name: tuple(1000 * turn["seconds"] for turn in outcome)
        for name, outcome in outcomes.items()
    }
    return Table(
        title,
        (
            *(Result(name, "ms", values) for name, values in times.items()),
            *(ratio(f"{us} / {them}", times[us], times[them]) for us, them in ACROSS),
        ),
        "Each process is on a host of its own, a network namespace; the links between them have no "
        "limit.",
    )


def settings(steps: int, processes: int, hidden: int, batch_size: int) -> list[str]:
    """Settings of one epoch of twice ``steps``, recorded at the middle and at the end."""
    model = [
        "model=mlp",
        f"model.hidden=[{hidden},{hidden}]",
        f"batch_size={batch_size}",
        f"nodes={processes}",
        "network=gloo",
    ]
    data = [
        "data=synthetic",
        "data.image_size=32",
        f"data.size={2 * steps * processes * batch_size}",
        "data.valid_size=4",
        "epochs=1",
    ]
    return [
        *model,
        *data,
        "optim.schedule=constant",
        "optim.lr=0.01",
        "resume=never",
        f"log_every={steps}",
        "logger=jsonl",
    ]


def run(ranks: Ranks, words: list[str], steps: int) -> dict[str, float]:
    """Make a run of ``sgp-run``: seconds of a step and the last batch's loss, on rank 0."""
    [folder, *_] = ranks.call(rank_of_run, words)
    from sgp_runner.recording.recorder import read_metrics

    records = [
        each for each in read_metrics(Path(folder)) if each["kind"] == "train" and each["rank"] == 0
    ]
    times = {int(str(each["step"])): float(str(each["time_s"])) for each in records}
    losses = {int(str(each["step"])): float(str(each["loss"])) for each in records}
    return {
        "seconds": (times[2 * steps - 1] - times[steps - 1]) / steps,
        "loss": losses[2 * steps - 1],
    }


def profiled(ranks: Ranks, words: list[str]) -> dict[str, float]:
    """The share of each part of a step, over all ranks."""
    counts = ranks.call(profiled_rank, words)
    total = sum(sum(count.values()) for count in counts)
    return {part: sum(count[part] for count in counts) / total for part in PARTS}


def rank_of_run(words: list[str]) -> str:
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.session.execution import perform

    experiment = experiment_of(words)
    perform(experiment)
    return str(experiment.directory)


def profiled_rank(words: list[str]) -> dict[str, int]:
    """Sample the algorithm's thread and count the samples in each part of a step."""
    counts = dict.fromkeys(PARTS, 0)
    main, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            part = part_of(sys._current_frames()[main])
            if part is not None:
                counts[part] += 1

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        rank_of_run(words)
    finally:
        done.set()
        watcher.join()
    return counts


def part_of(frame: FrameType | None) -> str | None:
    """The part of a step that a frame belongs to; None outside of steps."""
    part = None
    while frame is not None:
        path, function = frame.f_code.co_filename, frame.f_code.co_name
        if path.endswith("sgp_runner/distributed/rank.py") and function == "run":
            return part or "the rest"
        if part is None:
            part = next(
                (
                    name
                    for name, places in PARTS.items()
                    if any(where in f"{path}:{function}" for where in places)
                ),
                None,
            )
        frame = frame.f_back
    return None


def train(
    ranks: Ranks, make: Callable[..., rivals.Step], words: list[str], steps: int
) -> dict[str, float]:
    """Train with another library: seconds of a step and the last batch's loss, on rank 0."""
    outcome: dict[str, float] = ranks.call(rivals.train, make, words, steps)[0]
    return outcome


def copied(ranks: Ranks, words: list[str]) -> dict[str, float]:
    """Seconds in which a process copies its parameters while all do; the mean of their means."""
    return {"seconds": mean(ranks.call(least.copied, words))}


def check(ours: float, theirs: float) -> None:
    if abs(ours - theirs) > 1e-4 * abs(theirs):
        raise RuntimeError(
            f"AR-SGD and DDP do not train the same: their losses are {ours} and {theirs}"
        )
