"""Real training over slow networks, compared with the simulator's predictions.

Each node is a process on a virtual host: a network namespace. A token bucket limits each direction
of the host's link to 100, 300 or 1000 Mbit/s. A TCP transfer checks this rate before the runs. The
ranks run ``sgp-run network=gloo`` under a launcher. Consecutive ranks share a core, with the same
number of ranks on each core. The model is a perceptron with 2.2 MB of parameters. Each node has a
batch of 128 digits, whose gradient takes about 6 ms on one core. Compute is the time of a step of
local SGD without messages, while all nodes compute. Times are seconds per step of a node, in the
second part of a run.

The machine is calibrated once: the probe of ``sgp-run calibrate`` runs on four nodes, at 300 and at
1000 Mbit/s. From the profile at 300 Mbit/s, the simulator predicts the time of every algorithm on
every network. It also uses the measured TCP rate of each network, and the number of ranks per core
(``cluster.hosts.ranks_per_host``). A message costs processor time in proportion to its bytes and,
due to timers and wake-ups, in proportion to its duration. The profile at 1000 Mbit/s serves only to
separate these two costs. The profiles and the predictions are in ``network/``. SlowMo takes a slow
step every 4 steps. A slow node sleeps (`faults.slow_nodes`). Every run is recorded. The recordings
are in ``network/recordings/``, for `sgp-replay` and for other simulators. If TCP achieves much less
than the rate of the links, the network is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.hosts import Hosts
from benchmarks.measure import Goal, Result, Table
from benchmarks.network_runs import (
    ALGORITHMS,
    COMPUTE,
    FACTOR,
    SLOW,
    Bench,
    Network,
    Timed,
    num_bytes,
)
from validation.cells import Cell, mean_and_worst
from validation.networks import right_pairs

OUT = Path(__file__).resolve().parents[2] / "results" / "benchmarks" / "network"
SLOWED = ("AR-SGD", "AD-PSGD", "OSGP")  # also run with a slow node or link; AR-SGD is the baseline
WITHIN = Goal("at most", 10)  # percent
# Runs on all networks take half an hour. Goals apply to four nodes at up to 300 Mbit/s.
NETWORKS = (
    *(Network(4, 100e6, 8), Network(4, 300e6, 12), Network(4, 1000e6, 16)),
    *(Network(8, 100e6, 4, 2), Network(8, 300e6, 8, 2), Network(8, 1000e6, 12, 2)),
)


CALIBRATED = NETWORKS[1:3]


def measure(
    networks: Sequence[Network] = NETWORKS,
    at: Sequence[Network] = CALIBRATED,
    seconds: float = 0.7,
) -> Iterator[Table]:
    """Compare predictions and measurements.

    at: two networks with different rates, on which the simulator is calibrated.
    seconds: time limit of each calibration measurement.
    """
    with (
        TemporaryDirectory() as folder,
        Hosts(max(network.nodes for network in networks) + 1) as hosts,
    ):
        first, second, *benches = (
            Bench(hosts, each, Path(folder), OUT) for each in (*at, *networks)
        )
        yield from columns((first, second), benches, seconds)


def columns(
    calibrated: tuple[Bench, Bench], benches: Sequence[Bench], seconds: float
) -> Iterator[Table]:
    """Calibrate two networks, predict and then measure each network, and compare at the end."""
    profiles = tuple(bench.calibrate(seconds) for bench in calibrated)
    predicted: dict[str, dict[str, float]] = {}
    measured: dict[str, dict[str, float]] = {}
    for bench in benches:
        network, out = bench.network, bench.out
        cells = {name: Timed(words) for name, words in ALGORITHMS.items()}
        slow = {
            f"{name}, slow {what}": Timed(ALGORITHMS[name], what)
            for what in network.slows
            for name in SLOWED
        }
        achieved = bench.achieved()
        off, tolerance = abs(median(achieved) / network.bits_per_second - 1), network.tolerance
        if off > tolerance:
            what = (
                f"{median(achieved) / 1e6:.1f} Mbit/s were achieved here, more than "
                f"{100 * tolerance:g} % off: the processors are the limit, not the links, and "
                "nothing is reported."
            )
            yield Table(network.title, text=what)
            continue
        predicted[network.title] = bench.predict(cells | slow, profiles, median(achieved))
        out.mkdir(parents=True, exist_ok=True)
        # Predictions are written before the measurement.
        (out / "predicted.json").write_text(
            json.dumps(predicted, indent=1) + "\n", encoding="utf-8"
        )
        times = bench.times(cells | slow)
        bench.release()
        measured[network.title] = {name: median(times[name]) for name in cells | slow}
        yield table_of(network, times, predicted[network.title], achieved)
        if slow:
            yield losses(times, network)
    if measured:
        yield accuracy(predicted, measured)


def table_of(
    network: Network,
    times: Mapping[str, tuple[float, ...]],
    predicted: Mapping[str, float],
    achieved: tuple[float, ...],
) -> Table:
    rate, aimed = (
        median(achieved) / 1e6,
        network.nodes == 4 and network.bits_per_second < 1e9,
    )
    wire = num_bytes() * 8 / median(achieved) * 1000  # ms
    results = [Result("achieved", "Mbit/s", tuple(value / 1e6 for value in achieved))]
    results += [Result(name, "ms", values) for name, values in times.items() if "slow" not in name]
    bounds = {
        "SGP": tuple(alone + wire for alone in times[COMPUTE]),
        "OSGP": tuple(max(alone, wire) for alone in times[COMPUTE]),
    }
    for (name, bound), what in zip(
        bounds.items(), ("compute + bytes / rate", "max(compute, bytes / rate)"), strict=True
    ):
        off = tuple(
            100 * abs(took / should - 1) for took, should in zip(times[name], bound, strict=True)
        )
        results.append(Result(f"{name}, off from {what}", "%", off, WITHIN if aimed else None))
    results += [
        Result(f"{name}, simulated before", "ms", (ms,))
        for name, ms in predicted.items()
        if "slow" not in name
    ]
    text = f"Each message has {num_bytes() / 1e6:.2f} MB: {wire:.1f} ms at {rate:.1f} Mbit/s."
    return Table(network.title, tuple(results), text)


def losses(times: Mapping[str, tuple[float, ...]], network: Network) -> Table:
    """Return the increase of step times due to one slow node or link."""
    results = []
    for what in network.slows:
        lost = {name: lost_to(times[f"{name}, slow {what}"], times[name]) for name in SLOWED}
        results += [
            Result(f"{name} loses, one {what} {FACTOR} times slower", "%", values)
            for name, values in lost.items()
        ]
        for name in SLOWED[1:]:
            shares = tuple(
                own / theirs for own, theirs in zip(lost[name], lost[SLOWED[0]], strict=True)
            )
            results.append(
                Result(f"{name} / {SLOWED[0]} of that, {what}", "x", shares, Goal("less than", 0.5))
            )
    return Table(f"One slow node or link: {network.title}", tuple(results), f"It is rank {SLOW}.")


def lost_to(slow: Sequence[float], plain: Sequence[float]) -> tuple[float, ...]:
    """Return the increase from ``plain`` to ``slow`` in percent, turn by turn."""
    return tuple(100 * (late / before - 1) for late, before in zip(slow, plain, strict=True))


def accuracy(
    predicted: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, float]]
) -> Table:
    """Return a table of prediction errors and of the pairs of algorithms in the right order."""
    cells = {
        title: [Cell((title, name), real, predicted[title][name]) for name, real in times.items()]
        for title, times in measured.items()
    }
    every = [cell for each in cells.values() for cell in each]
    results = [
        Result(f"error, {title}", "%", tuple(cell.error for cell in each))
        for title, each in cells.items()
    ]
    off, worst = mean_and_worst(cell.error for cell in every)
    results.append(Result("mean error of all cells", "%", (off,), Goal("at most", 5)))
    results.append(Result("worst error", "%", (worst,), Goal("at most", 15)))
    right, pairs = right_pairs(every)
    if pairs:
        share = 100 * right / pairs
        results.append(Result("pairs in the right order", "%", (share,), Goal("at least", 98)))
    text = (
        "Predictions were written down before anything was measured. Of the pairs whose times "
        f"differ by more than 5 %, {right} of {pairs} are in the right order."
    )
    return Table("What the simulator predicted", tuple(results), text)
