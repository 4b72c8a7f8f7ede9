"""Models, one file each."""

from __future__ import annotations

from sgp_runner.data.dataset import DataConfig
from sgp_runner.models.config import ModelConfig
from sgp_runner.utils.errors import ConfigError


def check(model: ModelConfig, data: DataConfig) -> None:
    """Raise ConfigError, with a data set that works, when ``model`` cannot read ``data``."""
    if data.task not in model.tasks:
        raise ConfigError(
            "data",
            f"model={model.name} reads {' or '.join(model.tasks)} data; "
            f"data={data.name} is {data.task}. Use data={model.default_data}.",
        )
