"""Constants of the profiles of AWS, fitted again, and their errors: literal values."""

from __future__ import annotations

from statistics import fmean, median

import pytest
import yaml
from helpers.paths import ROOT

from validation import aws, delays, laws, scaling
from validation.cells import mean_and_worst


@pytest.mark.parametrize(
    ("operation", "library", "new", "old"),
    [
        ("all_reduce", "nccl", (0.6, 1.3), (1.3, 4.1)),
        ("all_reduce", "gloo", (2.0, 5.2), (39.9, 45.3)),
        ("send", "nccl", (1.0, 2.8), (0.8, 1.9)),
        ("send", "gloo", (0.4, 1.4), (4.5, 12.1)),
    ],
)
def test_errors_on_links_with_a_rate_and_those_of_the_old_law(
    operation: str, library: str, new: tuple[float, float], old: tuple[float, float]
) -> None:
    for errors, law in ((new, False), (old, True)):
        found = aws.limited(aws.cells(operation, library, law))
        assert len(found) == 12
        mean, worst = mean_and_worst(cell.error for cell in found)
        assert (round(mean, 1), round(worst, 1)) == errors


@pytest.mark.parametrize(
    ("operation", "library", "errors"),
    [
        ("all_reduce", "nccl", (2.7, 4.1)),
        ("all_reduce", "gloo", (0.1, 0.2)),
        ("send", "nccl", (2.2, 5.9)),
        ("send", "gloo", (1.6, 3.7)),
    ],
)
def test_errors_on_links_without_a_rate(
    operation: str, library: str, errors: tuple[float, float]
) -> None:
    found = aws.limited(aws.cells(operation, library), yes=False)
    mean, worst = mean_and_worst(cell.error for cell in found)
    assert (round(mean, 1), round(worst, 1)) == errors


def test_windows_between_regions() -> None:
    errors = [abs(error) for error in aws.region_errors()]
    assert (len(errors), round(median(errors), 1), round(fmean(errors), 1)) == (45, 4.4, 14.5)
    assert aws.fit_regions() == pytest.approx((aws.REGION_RATE, aws.REGION_WINDOW))
    text = (ROOT / "configs" / "cluster" / "aws_10_regions.yaml").read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    links = profile["links"]
    assert links["connections"] * links["window_bytes"] == pytest.approx(10.9e6, rel=1e-3)
    assert {region["bandwidth_up"] for region in links["regions"]} == {aws.REGION_RATE}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["nccl", "gloo"])
def test_the_constants_of_the_profiles_are_those_of_the_fits(library: str) -> None:
    cluster = aws.profile(aws.PROFILES[library])
    found = aws.fit(library)
    assert found.pop("share") == aws.SHARES[library]
    assert found == {
        "first_window_bytes": cluster.links.first_window_bytes,
        "window_bytes": cluster.links.window_bytes,
        "host_seconds_per_byte": cluster.hosts.host_seconds_per_byte,
    }
    known = cluster.collectives.all_reduce_bandwidth
    assert aws.fit_rate(library) == pytest.approx(known, rel=1e-3)


def test_predicted_rows_of_jobs_and_the_errors_of_the_old_law() -> None:
    errors = [
        [round(cell.error, 1) for cell in cells if not cell.fitted]
        for cells in (scaling.cells(), scaling.old_cells())
    ]
    assert errors == [[-3.4, 2.1, -13.2, -0.7], [52.8, 2.1, -14.1, -0.6]]


def test_rings_of_gloo_on_our_own_links_with_delay() -> None:
    two = [cell for cell in delays.cells() if cell.what[0] == "2"]
    assert [round(cell.error, 1) for cell in two] == [2.8, 0.7, 5.7, 1.5]


def test_no_given_cell_tells_the_slice_of_nccl() -> None:
    cell = aws.timed("all_reduce", "nccl")[-1]
    assert laws.change(cell, "slice") == 0
    assert laws.change(cell, "rate") == pytest.approx(99.6, abs=0.1)
