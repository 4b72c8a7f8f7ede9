"""Names of groups of runs, files and units, as shown in titles, tables and plots."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import FINISHED, TIMING
from sgp_runner.utils.units import BYTE_UNITS, HOUR, MINUTE, counted

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
BASELINE = "AR-SGD"  # the algorithm that all others replace
CLOCK = {"simulated": "simulated time", "wall": "measured time"}


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> Mapping[Key, list[Item]]:
    """Group the items that belong in one plot or table."""
    out: dict[Key, list[Item]] = {}
    for item in items:
        out.setdefault(key(item), []).append(item)
    return out


def lines_over_nodes(settings: Sequence[RunGroup]) -> list[tuple[str, list[RunGroup]]]:
    """Return, for each method on each network, a label and the settings by number of nodes."""
    lines = group_by(settings, lambda setting: (setting.method, setting.network))
    networks = {setting.network for setting in settings}
    return [
        (
            " ".join(
                [line[0].algorithm, *map(short_key, distinguishing_overrides(line[0], settings))]
            )
            + (f" · {network}" if len(networks) > 1 else ""),
            sorted(line, key=lambda setting: int(setting.nodes)),
        )
        for (_, network), line in lines.items()
    ]


def kinds(settings: Sequence[RunGroup]) -> str:
    """Describe the kinds of results and their data in words."""
    out = []
    for kind in dict.fromkeys(setting.kind for setting in settings):
        where = " and ".join(
            dict.fromkeys(
                f"{setting.model} on {setting.data}" for setting in settings if setting.kind == kind
            )
        )
        out.append(
            f"timing only, simulated, of {settings[0].data}"
            if kind == TIMING
            else f"{kind}, {where}"
        )
    return "; ".join(out)


def on_cluster(settings: Sequence[RunGroup]) -> str:
    """Name the modelled machines, and the models whose times are simulated (`timed_models`)."""
    clusters = dict.fromkeys(setting.cluster for setting in settings if setting.cluster)
    clock = timed_models(settings)
    timed = f", clock of {clock} on" if clock else ","
    return f"{timed} {' and '.join(clusters)}" if clusters else ""


def title(settings: Sequence[RunGroup]) -> str:
    """Return the title of a stand-alone picture: the model, the clock, and the machines.

    For example ``mlp trained, clock of ResNet-50 on 16 nodes of sgp_ethernet (10 Gbit/s),
    simulated``.
    """
    models = " and ".join(dict.fromkeys(str(setting.model) for setting in settings))
    nodes = sorted({int(setting.nodes) for setting in settings})
    where = f"{', '.join(map(str, nodes))} {'node' if nodes == [1] else 'nodes'}"
    names = dict.fromkeys(setting.cluster for setting in settings if setting.cluster)
    where += f" of {' and '.join(names)}" if names else ""
    clock = timed_models(settings)
    how = "simulated" if settings[0].clock == "simulated" else "measured"
    return f"{models} trained, {f'clock of {clock} on ' if clock else ''}{where}, {how}"


def timed_models(settings: Sequence[RunGroup]) -> str:
    """Name the models whose times are simulated, except those that are also trained."""
    models = dict.fromkeys(
        str(model)
        for setting in settings
        if (model := setting.settings.get("timed_as.model")) not in (None, setting.model)
        and setting.clock == "simulated"
    )
    return " and ".join(re.sub(r"^resnet(\d+)$", r"ResNet-\1", model) for model in models)


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the largest unit that fits three times into ``seconds``, and its length in seconds."""
    return next(
        (
            (unit, size)
            for unit, size in (("hours", HOUR), ("minutes", MINUTE))
            if seconds >= 3 * size
        ),
        ("seconds", 1.0),
    )


def three_digits(value: float) -> str:
    """Format a positive number with 3 digits and no exponent: ``0.0512``, ``7.30``, ``1204``."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def byte_unit(count: float) -> tuple[str, float]:
    power = min(max(0, math.floor(math.log10(count) / 3)), len(BYTE_UNITS) - 1) if count > 0 else 0
    return BYTE_UNITS[power], 1000.0**power


def file_name(*parts: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts)


def wrap_label(label: str) -> str:
    """Wrap a name into at most four short lines, so that the plot fits on a phone."""
    spaced = label.replace("_", "_ ")
    lines = textwrap.wrap(spaced, 20, break_on_hyphens=False, max_lines=4, placeholder=" …")
    return "\n".join(line.replace("_ ", "_") for line in lines)


def names(settings: Sequence[RunGroup]) -> list[str]:
    """Name each setting of a plot by its algorithm and the values that distinguish it."""
    texts: dict[str, Callable[[RunGroup], str]] = {
        "nodes": lambda setting: counted(setting.nodes, "node"),
        "kind": lambda setting: setting.kind,
        "network": lambda setting: setting.network,
        "row": lambda setting: setting.row or "",
    }
    out = [
        " ".join([setting.algorithm, *map(short_key, distinguishing_overrides(setting, settings))])
        for setting in settings
    ]
    for key, text in texts.items():
        values = {getattr(setting, key) for setting in settings}
        needed = len(set(out)) < len(out) if key in ("row", "network") else len(values) > 1
        if needed and len(values) > 1:
            out = [
                " · ".join(filter(None, (name, text(setting))))
                for name, setting in zip(out, settings, strict=True)
            ]
    return [
        f"{name} ({setting.state})" if setting.state != FINISHED else name
        for name, setting in zip(out, settings, strict=True)
    ]


def distinguishing_overrides(setting: RunGroup, settings: Sequence[RunGroup]) -> list[str]:
    """Return the overrides of a setting that not all ``settings`` of its algorithm have."""
    alike = [other for other in settings if other.algorithm == setting.algorithm]
    return [
        override
        for override in setting.overrides
        if not all(override in other.overrides for other in alike)
    ]


def short_key(word: str) -> str:
    """Shorten ``optim.schedule.warmup_epochs=5`` to ``warmup_epochs=5``."""
    key, sign, value = word.partition("=")
    return f"{key.rpartition('.')[2]}{sign}{value}"
