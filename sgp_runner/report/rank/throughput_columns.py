"""Columns of the throughput of real runs, in tables that have any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import TypeAlias

from sgp_runner.recording.throughput import RATES
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.utils.units import with_prefix

FLOPS = "FLOP/s per node"
# Head of each column, and its text for a setting whose value is known.
FORMS: dict[str, tuple[str, Callable[[float], str]]] = {
    "samples_per_s": ("samples/s per node", "{:,.4g}".format),
    "tokens_per_s": ("tokens/s per node", "{:,.4g}".format),
    "flops_per_s": (FLOPS, lambda value: with_prefix(value, "").rstrip()),
    "mfu": ("MFU", lambda value: f"{100 * value:.3g} %"),
    "waiting_share": ("waiting", lambda value: f"{100 * value:.3g} %"),
}
Column: TypeAlias = tuple[str, Callable[[RunGroup], str]]


def known_rates(settings: Sequence[RunGroup]) -> list[str]:
    """Return the rates that at least one setting has."""
    return [name for name in RATES if not all(isnan(setting.mean(name)) for setting in settings)]


def rate_columns(settings: Sequence[RunGroup]) -> list[Column]:
    """Return the columns of the `known_rates`; tokens take the place of samples."""
    names = known_rates(settings)
    return [
        (FORMS[name][0], lambda setting, name=name: rate_text(setting, name))  # type: ignore[misc]
        for name in names
        if name != "samples_per_s" or "tokens_per_s" not in names
    ]


def rate_text(setting: RunGroup, name: str) -> str:
    value = setting.mean(name)
    return "" if value != value else FORMS[name][1](value)
