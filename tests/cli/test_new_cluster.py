"""``sgp-run new cluster``: regions with measured rates and round trips."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgp_runner.cli.main import main
from sgp_runner.config.overrides import experiment_of

RATES = """\
source,destination,connections,mbit_per_s
a:1,b:2,64,800
b:2,a:1,64,500.5
a:1,c:3,64,100
c:3,a:1,64,200
"""
TRIPS = """\
source,destination,min_rtt_ms,mean_rtt_ms
a:1,b:2,20,21
b:2,a:1,22,23
c:3,a:1,80,81
"""
PRICES = """\
src,dst,cost
1,internet,0.09
1,2,0.02
2,1,0
"""
WORDS = ["new", "cluster", "clouds", "rates=rates.csv", "round_trips=trips.csv"]


@pytest.fixture(autouse=True)
def files(in_an_empty_folder: Path) -> None:
    Path("rates.csv").write_text(RATES)
    Path("trips.csv").write_text(TRIPS)
    Path("prices.csv").write_text(PRICES)


def test_regions_have_the_measured_rates_and_half_of_the_round_trips(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*WORDS, "regions=a:1,b:2", "nodes=3", "base=infiniband_100g"]) == 0
    assert capsys.readouterr().out == (
        "clouds.yaml: 2 regions; run it with\n  sgp-run cluster=./clouds.yaml nodes=6\n"
    )
    run = experiment_of(["cluster=./clouds.yaml", "nodes=6", "model=timing_only"]).run
    one, other = run.cluster.links.regions
    assert (one.nodes, one.rate_to(1), one.bandwidth_down, one.latency_to(1)) == (
        (3, 800e6, 500.5e6, 0.010)
    )
    assert (other.nodes, other.rate_to(0), other.bandwidth_down, other.latency_to(0)) == (
        (3, 500.5e6, 800e6, 0.011)
    )
    assert run.cluster.links.bandwidth == 100e9 and run.cluster.links.window_bytes == 0


def test_a_round_trip_that_was_measured_once_holds_in_both_directions() -> None:
    assert main([*WORDS, "regions=a:1,c:3"]) == 0
    run = experiment_of(["cluster=./clouds.yaml", "nodes=2", "model=timing_only"]).run
    one, other = run.cluster.links.regions
    assert (one.latency_to(1), other.latency_to(0)) == (0.040, 0.040)
    assert (one.rate_to(1), other.rate_to(0)) == (100e6, 200e6)


def test_prices_of_one_cloud_hold_inside_of_it_and_to_the_internet() -> None:
    for name, text in (("rates.csv", RATES), ("trips.csv", TRIPS)):
        Path(name).write_text(text.replace("b:2", "a:2"))
    with Path("prices.csv").open("a") as file:
        file.write("2,internet,0.12\n3,internet,0.2\n")
    with Path("rates.csv").open("a") as file:
        file.write("a:2,c:3,64,100\nc:3,a:2,64,200\n")
    with Path("trips.csv").open("a") as file:
        file.write("a:2,c:3,50,50\n")
    assert main([*WORDS, "regions=a:1,a:2,c:3", "prices=prices.csv"]) == 0
    run = experiment_of(["cluster=./clouds.yaml", "nodes=3", "model=timing_only"]).run
    assert [list(region.price_per_gb or []) for region in run.cluster.links.regions] == [
        *([0, 0.02, 0.09], [0, 0, 0.12], [0.2, 0.2, 0])
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("regions=b:2,c:3", "rates: rates.csv has no row from b:2 to c:3: add it, or omit the "),
        ("regions=a:1,d:4", "rates: rates.csv has no region d:4: add it, or omit the region."),
        ("regions=a:1", "regions: write two or more different regions."),
        ("regions=a:1,b:2 nodes=0", "nodes: '0' is not a number of nodes per region, such as 1."),
        ("regions=a:1,b:2 node=2", "new: 'node' is not a key; write sgp-run new cluster NAME "),
        ("regions=a:1,b:2 rates=no.csv", "rates: cannot read no.csv: No such file or directory."),
        (
            "regions=a:1,b:2 rates=trips.csv",
            "rates: trips.csv must have the columns source or src, destination or dst, mbit_per_s.",
        ),
        (
            "regions=a:1,b:2 prices=trips.csv",
            "prices: trips.csv must have the columns source or src, destination or dst, "
            "price_per_gb or cost.",
        ),
        (
            "regions=a:1,b:2 prices=prices.csv",
            "prices: prices.csv has no row from 2 to internet: add it, or omit the region.",
        ),
        (
            "regions=a:1,b:2 prices=negative.csv",
            "prices: line 2 of negative.csv: price_per_gb must be zero or a positive number.",
        ),
        ("", "new: write sgp-run new cluster NAME rates=FILE round_trips=FILE regions="),
    ],
)
def test_what_is_refused(arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("negative.csv").write_text("source,destination,price_per_gb\na:1,b:2,-1\n")
    assert main([*WORDS, *arguments.split()]) == 2
    assert capsys.readouterr().err.startswith(f"sgp-run: {sentence}")
    assert not Path("clouds.yaml").exists()


def test_a_rate_of_zero_and_a_file_that_is_there_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("rates.csv").write_text(RATES.replace("500.5", "0"))
    assert main([*WORDS, "regions=a:1,b:2"]) == 2
    assert capsys.readouterr().err == (
        "sgp-run: rates: line 3 of rates.csv: mbit_per_s must be a positive number.\n"
    )
    Path("rates.csv").write_text(RATES)
    Path("clouds.yaml").write_text("mine")
    assert main([*WORDS, "regions=a:1,b:2"]) == 2
    assert capsys.readouterr().err == "sgp-run: new: 'clouds.yaml' already exists in this folder.\n"
    assert Path("clouds.yaml").read_text() == "mine"
