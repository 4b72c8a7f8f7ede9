"""The groups of ``configs/`` and their choices, read from its folders, and where in a configuration each belongs."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

# In a wheel the folder is in the package, in a clone beside it.
CONFIGS = next(folder / "configs" for folder in Path(__file__).resolve().parents[:2] if (folder / "configs").is_dir())
# Parts of an algorithm that are algorithms themselves; every other nested group is a key of its own name.
ALGORITHM_PARTS = ("first", "then")
# Groups that are chosen inside another one, never at the root, and where.
NESTED = {"base": "algo.base", "topology": "algo.topology", "schedule": "optim.schedule", "compute_time": "cluster.compute_time"}


@functools.cache
def groups() -> Mapping[str, tuple[str, ...]]:
    """Group -> its choices, both in alphabetical order; those for Hydra itself are not among them."""
    folders = sorted(path for path in CONFIGS.iterdir() if path.is_dir() and not path.name.startswith((".", "_", "hydra")))
    return {folder.name: tuple(sorted(path.stem for path in folder.glob("*.yaml"))) for folder in folders}


@functools.cache
def classes(group: str) -> Mapping[str, str]:
    """Choice -> the class that its file names; files that name none are variants of other choices.

    Where a group has several classes, a stored configuration tells them apart by these choices. A base of SlowMo stands for the algorithm
    of its name.
    """
    folder = CONFIGS / ("algo" if group == "base" else group)
    texts = {choice: (folder / f"{choice}.yaml").read_text(encoding="utf-8") for choice in groups()[group]}
    found = {choice: re.search(r"^ *_target_: *(\S+)", text, re.MULTILINE) for choice, text in texts.items()}
    return {choice: match[1] for choice, match in found.items() if match}


def has_one_class(group: str) -> bool:
    return len({*classes(group).values()}) == 1


def group_of(key: str) -> str | None:
    """The group that ``key`` chooses from: ``topology`` for ``algo.topology``, ``algo`` for ``algo`` and ``algo.first``."""
    parent, _, word = key.rpartition(".")
    if not parent:
        return word if word in groups() and word not in NESTED else None
    if word in ALGORITHM_PARTS:
        return "algo"
    return word if word in NESTED else None
