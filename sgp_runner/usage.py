"""What ``sgp-run --help`` prints. Groups, choices, keys and defaults are read from ``configs/``, so it is never out of date."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from sgp_runner.groups import ALGORITHM_PARTS, CONFIGS, NESTED, groups

WIDTH = 80
INDENT = 25


def usage() -> str:
    text = (CONFIGS / "config.yaml").read_text(encoding="utf-8")
    defaults = dict(re.findall(r"^  - (\w+): (\w+)", text, re.MULTILINE))
    lines = ["Trains with a decentralised algorithm, in simulated time or on real processes.", ""]
    lines += ["usage: sgp-run [GROUP=CHOICE ...] [KEY=VALUE ...]"]
    lines += ["       sgp-run -m GROUP=A,B KEY=1,2 ...   a sweep: one run for each combination", ""]
    lines += ["groups (the default comes first)"]
    for group in [*(name for name in defaults if name in groups()), *others(defaults)]:
        lines += row(f"{group}=", listed(group, defaults.get(group, "")))
    lines += ["", "chosen inside these"]
    for group, key in NESTED.items():
        lines += row(f"{key}=", listed(group, ""))
    lines += row(" ".join(f"algo.{part}=" for part in ALGORITHM_PARTS), "an algorithm; for algo=hybrid")
    lines += ["", "keys (with their defaults; a model brings its own batch_size and epochs)"]
    for key, value, comment in keys(text):
        lines += row(f"{key}={value}", comment)
    lines += ["", "examples", "  sgp-run algo=osgp model=resnet50 nodes=32"]
    lines += ["  sgp-run -m algo=ar_sgd,sgp,osgp,slowmo nodes=4,8 optim.lr=0.05", ""]
    lines += ["  sgp-run algo=osgp --cfg job     all settings of a run, and what they are"]
    lines += ["  sgp-run --config-dir FOLDER ... presets of your own, in FOLDER/experiment/"]
    lines += ["  sgp-run calibrate nodes=4 ...   measure this machine for the simulator"]
    lines += ["  sgp-run --version"]
    return "\n".join(lines)


def keys(text: str) -> Iterator[tuple[str, str, str]]:
    """(key, default, comment) of the settings in ``config.yaml`` that have one."""
    parent = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+):(?: +#.*)?", line):
            parent = f"{match[1]}."
        elif match := re.fullmatch(r"( *)(\w+): (\S+) +# (.+)", line):
            yield (parent if match[1] else "") + match[2], match[3], match[4]


def others(defaults: dict[str, str]) -> Iterator[str]:
    """Groups that users choose from although ``config.yaml`` has no default for them."""
    return (name for name in groups() if name not in defaults and name not in NESTED)


def listed(group: str, default: str) -> str:
    choices = groups()[group]
    return " ".join(sorted(choices, key=lambda choice: choice != default)) or "(none yet)"


def row(left: str, right: str) -> list[str]:
    """``left``, and beside it, or below when it is too long, ``right`` folded into its column."""
    folded = textwrap.wrap(right, WIDTH - INDENT)
    first = f"  {left}"
    if len(first) < INDENT:
        return [first.ljust(INDENT) + folded[0], *(" " * INDENT + line for line in folded[1:])]
    return [first, *(" " * INDENT + line for line in folded)]
