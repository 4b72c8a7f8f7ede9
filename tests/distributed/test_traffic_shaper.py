"""Imitated links: what they charge, on a clock of the test's own; and real runs over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.paths import RANKS
from helpers.variants import check_same_end, simulate_all

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.distributed.traffic_shaper import TrafficShaper
from sgp_runner.recording.recorder import read_metrics

REAL_RANK = str(RANKS / "real_rank.py")


class Hands:
    """A clock that is set by hand."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_messages_wait_for_each_other_in_both_directions() -> None:
    clock = Hands()
    link = TrafficShaper(bandwidth=800.0, latency_seconds=0.5, now=clock)  # 100 bytes a second
    assert [link.leave(200), link.leave(100), link.leave(0)] == [10.0, 12.0, 13.0]
    clock.now = 20.0
    assert [link.leave(50), link.leave(50)] == [
        20.0,
        20.5,
    ]  # nothing was saved up while the link was idle
    # What leaves others at 20 and 20.25 arrives in turn; a later one finds the link free.
    assert [link.arrive(100, 20.0), link.arrive(100, 20.25), link.arrive(100, 30.0)] == [
        21.5,
        22.5,
        31.5,
    ]
    assert link.leave(1) == 21.0  # the two directions do not disturb each other


def test_the_achieved_rate_is_exactly_the_one_asked_for() -> None:
    clock = Hands()
    sender, receiver = TrafficShaper(1e6, 0.25, clock), TrafficShaper(1e6, 0.25, clock)
    ends = []
    for _ in range(1000):
        left = sender.leave(1250)  # 10 ms
        clock.now = left + 0.003  # a thread that wakes up late does not add up
        ends.append(receiver.arrive(1250, left))
    assert ends[-1] - ends[0] == pytest.approx(999 * 0.01, abs=1e-9)
    assert ends[0] == 10.0 + 0.25 + 0.01


def test_an_all_reduce_takes_both_directions() -> None:
    link = TrafficShaper(bandwidth=800.0, latency_seconds=0.5, now=Hands())
    link.leave(200)  # until 12
    assert link.reduce(300, rounds=6) == 12.0 + 3.0 + 6 * 0.5
    assert link.leave(1) == 18.0
    assert link.arrive(100, 10.0) == 19.0


def test_without_a_bandwidth_only_latency_counts() -> None:
    link = TrafficShaper(latency_seconds=0.5, now=Hands())
    assert (link.leave(10**9), link.leave(10**9), link.arrive(10**9, 10.0)) == (10.0, 10.0, 10.5)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_real_runs_are_as_slow_as_their_links_and_end_where_they_would_without(
    tmp_path: Path,
) -> None:
    variants = {
        "sgp": (),
        "ar_sgd": (),
        "ar_sgd of parameters": ("algo.average=parameters",),
        "osgp": ("algo.tau=0",),
    }
    tiny = (
        "dtype=float64",
        "model=mlp",
        "data=digits",
        "nodes=2",
        "batch_size=8",
        "epochs=0.1",
        "log_every=1",
    )
    results = simulate_all(
        tmp_path,
        "gloo",
        "network.bandwidth=1e6",
        "network.latency_seconds=0.02",
        tiny=tiny,
        variants=variants,
    )
    real = [real for _, real in results.values()]
    launch(
        real[-1],
        program=(
            REAL_RANK,
            "-1",
            *(str(experiment.directory / "config.yaml") for experiment in real[:-1]),
        ),
    )
    for simulated, measured in results.values():
        check_same_end(simulated, measured)
        problem = build_problem(measured.run)
        message = 8 * sum(
            problem.flat.layers
        )  # bytes, and what each of two nodes sends in an all-reduce
        end = max(
            float(str(record["time_s"]))
            for record in read_metrics(measured.directory)
            if record["kind"] == "train"
        )
        assert end >= measured.run.steps(problem) * (message * 8 / 1e6 + 0.02)
