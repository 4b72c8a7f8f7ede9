"""Config sources for Hydra: YAML files, choices with a path, and plug-ins.

``model=hf:gpt2`` is ``model=hf`` with ``model.path=gpt2``. Every choice that has a setting ``path``
may be written so, wherever Hydra reads the name of a choice: in an override, in a sweep and in the
defaults list of a file.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from sgp_runner.config.choices import groups, without_path
from sgp_runner.config.plugins import composition
from sgp_runner.config.plugins.loading import KEY

SCHEME = "path-choices"


class PathChoices(ConfigSource):
    """A config source for Hydra with a file for each choice that has a path."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.partition("/")
        return group in groups() and without_path(group, name) != name

    def load_config(self, config_path: str) -> ConfigResult:
        choice, _, path = config_path.partition("/")[2].partition(":")
        config = OmegaConf.create({"defaults": [choice, "_self_"], "path": path})
        return ConfigResult(self.provider, f"{SCHEME}://", config, {"package": None})


class Sources(SearchPathPlugin):
    """The locations where Hydra searches for choices with a path and choices of plug-ins."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(SCHEME, f"{SCHEME}://")
        for folder in composition.folders():
            search_path.append(KEY, f"file://{folder}")
