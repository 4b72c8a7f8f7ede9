"""Compositions by Hydra, each made once in a process."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf, read_write

from sgp_runner.config.choices import EXTENSIONS
from sgp_runner.config.command_line import Setting

#: Overrides of a run -> those without its algorithm, the name of the algorithm, and its node.
PREPARED: dict[tuple[str, ...], tuple[tuple[str, ...], str, Any]] = {}


def composed_of(lines: Sequence[str], hydra_too: bool = False) -> DictConfig:
    """Return what Hydra composes for the overrides ``lines``.

    Hydra takes a tenth of a second. A process composes the same choices of this package once, and
    copies the result unless Hydra's own settings matter (``hydra_too``).
    """
    if hydra_too or not is_fixed(lines):
        return compose("config", overrides=list(lines), return_hydra_config=True)
    if tuple(lines) not in PREPARED:
        return copy.deepcopy(composed_once(tuple(lines)))
    rest, name, node = PREPARED[tuple(lines)]
    config = copy.deepcopy(composed_once(rest))
    with read_write(config):
        config.hydra.runtime.choices.algo = name
        config.algo = node
    return config


def is_fixed(lines: Sequence[str]) -> bool:
    """Return whether only files of this package are composed."""
    return not EXTENSIONS and not any("searchpath" in line for line in lines)


@functools.lru_cache(maxsize=500)
def composed_once(lines: tuple[str, ...]) -> DictConfig:
    return compose("config", overrides=list(lines), return_hydra_config=True)


def compose_algorithms(run: Sequence[Setting], algorithms: Sequence[Sequence[Setting]]) -> None:
    """Compose all algorithms at once for `composed_of`, each under a separate key.

    run: settings of a run without its algorithm
    algorithms: settings of each algorithm; the first one chooses it
    """
    rest = tuple(setting.line for setting in run if setting.composed)
    if not is_fixed(rest):
        return
    chosen = [[each.line for each in settings if each.composed] for settings in algorithms]
    lines = [
        re.sub(r"^algo=", f"+algo@algo{number}=", line.replace("@algo.", f"@algo{number}."))
        for number, words in enumerate(chosen)
        for line in words
    ]
    composed = compose("config", overrides=lines)
    for number, words in enumerate(chosen):
        node = OmegaConf.to_container(composed[f"algo{number}"])
        PREPARED[*rest, *words] = rest, words[0].partition("=")[2], node
