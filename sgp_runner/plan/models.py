"""Models of known size."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from sgp_runner.cluster.timed_as import LANGUAGE_MODELS
from sgp_runner.utils.errors import ConfigError, nearest

MODELS = Path(__file__).with_name("models.csv")


def known_models() -> Mapping[str, tuple[int, str]]:
    """Return the number of parameters and the source for each known model."""
    with MODELS.open(encoding="utf-8", newline="") as file:
        sizes = {
            line["model"]: (int(line["parameters"]), line["source"])
            for line in csv.DictReader(file)
        }
    return sizes | {
        name: (model.num_parameters, "Douillard et al. 2025")
        for name, model in LANGUAGE_MODELS.items()
    }


def known_size(name: str | None) -> tuple[int, str]:
    """Return the number of parameters of a model, and its source."""
    if name is None:
        raise ConfigError("model", "missing: write model=gpt2, or parameters=1e9.")
    sizes = known_models()
    if name not in sizes:
        raise ConfigError(
            "model",
            f"the size of '{name}' is not known.{nearest(name, sizes)} Write "
            "parameters=, for example parameters=7e9.",
        )
    return sizes[name]
