"""Errors of the profiles of AWS: literal values."""

from __future__ import annotations

from statistics import fmean, median

import pytest
import yaml
from helpers.paths import ROOT

from validation import aws, delays, scaling
from validation.cells import mean_and_worst


@pytest.mark.parametrize(
    ("operation", "library", "errors"),
    [
        ("all_reduce", "nccl", (0.6, 1.3)),
        ("all_reduce", "gloo", (2.0, 5.2)),
        ("send", "nccl", (1.0, 2.8)),
        ("send", "gloo", (0.4, 1.4)),
    ],
)
def test_errors_on_links_with_a_rate(
    operation: str, library: str, errors: tuple[float, float]
) -> None:
    found = aws.limited(aws.cells(operation, library))
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
    text = (ROOT / "configs" / "cluster" / "aws_10_regions.yaml").read_text(encoding="utf-8")
    profile = yaml.safe_load(text)
    links = profile["links"]
    assert links["connections"] * links["window_bytes"] == pytest.approx(10.9e6, rel=1e-3)
    assert {region["bandwidth_up"] for region in links["regions"]} == {aws.REGION_RATE}


def test_predicted_rows_of_jobs() -> None:
    errors = [round(cell.error, 1) for cell in scaling.cells() if not cell.fitted]
    assert errors == [-3.4, 2.1, -13.2, -0.7]


def test_rings_of_gloo_on_our_own_links_with_delay() -> None:
    two = [cell for cell in delays.cells() if cell.what[0] == "2"]
    assert [round(cell.error, 1) for cell in two] == [2.8, 0.7, 5.7, 1.5]
