"""The page about the costs of compression, and the runs behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.experiments import make_experiment

from compression import PAGE, PLAIN, RATES, Arm, break_even, crossing, fastest, page, read, target
from sgp_runner.session.start import execute


def arm(name: str, rate: float, seconds: float, step_bytes: float, coding_s: float) -> Arm:
    return Arm(name, rate, True, 2 * seconds, step_bytes, coding_s, [(seconds, 2.0)])


def test_rates_of_literal_runs() -> None:
    """Saved: 1 MB, in 10 ms of coding. The coded run is faster at the first three rates."""
    plain = [arm(PLAIN, rate, 1 + 1e9 / rate, 2e6, 0.0) for rate in RATES]
    coded = [arm("int8", rate, 1.2 + 0.1e9 / rate, 1e6, 0.01) for rate in RATES]
    assert break_even(coded[0], plain[0]) == pytest.approx(8e6 / 0.01)
    assert crossing([*plain, *coded], "int8") == "3 Gbit/s to 10 Gbit/s"
    slow = [arm("fp4", rate, 1e9, 1e6, 0.01) for rate in RATES]
    assert crossing([*plain, *slow], "fp4") == "below 100 Mbit/s"
    assert crossing([*plain, *[arm("x", rate, 0.1, 1, 1) for rate in RATES]], "x") == (
        "above 100 Gbit/s"
    )
    assert target([*plain, *coded]) == 2.0
    assert fastest([*plain, *coded], RATES[0], True) == "int8"
    assert coded[0].seconds_to(1.9) == float("inf")


def test_the_page_has_the_stored_times_and_compression_pays_on_slow_links_alone() -> None:
    arms = read()
    assert PAGE.read_text(encoding="utf-8") == page(arms)
    assert fastest(arms, RATES[0], True) != PLAIN == fastest(arms, RATES[-1], True)
    assert len(arms) == 2 * len(RATES) * 7


def test_a_codec_pays_on_slow_links_alone_if_coding_takes_time(tmp_path: Path) -> None:
    times = {}
    for rate in ("100Mbit/s", "100Gbit/s"):
        for codec in ("none", "int8"):
            words = ("data.train_size=64", "data.valid_size=32", "logger=jsonl", "nodes=4")
            summary = execute(
                make_experiment(
                    tmp_path,
                    *("model=gpt", "cluster=cpu_nodes", "algo=ar_sgd", f"algo.codec={codec}"),
                    *(*words, f"cluster.bandwidth={rate}"),
                )
            )
            assert summary is not None
            times[rate, codec] = float(str(summary["time_s"]))
    assert times["100Mbit/s", "int8"] < times["100Mbit/s", "none"]
    assert times["100Gbit/s", "int8"] > times["100Gbit/s", "none"]
